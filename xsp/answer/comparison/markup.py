"""Writes a comparison as Markdown for a pull request, and as HTML.

Names come from models and files. In Markdown they are code, which nothing in them ends; in HTML
every value goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import polars as pl
from markupsafe import Markup

from xsp.answer.comparison.device import title
from xsp.answer.comparison.text import (
    Beside,
    Row,
    Table,
    alone,
    became,
    calls_of,
    device_parts,
    percent,
    place_of,
    settings_table,
    signed,
    sum_cells,
    time_of,
    whole_rows,
)
from xsp.text import NOTHING, duration, printable, shorten

_ROWS = 50  # of each table in a notebook
_LONGEST = 80  # characters of a path


def markdown(
    parts: Sequence[Beside], settings: pl.DataFrame, notes: Sequence[str], *, rows: int
) -> str:
    """Return headlines, the whole, what costs most, what changed, and below a fold the settings."""
    found: list[str] = []
    for each in parts:
        found += [f"**{_plain(each.headline)}**", *map(_in_markdown, _tables(each, rows))]
        if each.table.height > 1 or not each.sums:
            found += [_plain(each.verdicts), _in_markdown(_costly(each.table[1 : rows + 1]))]
        if (rest := each.table.height - 1 - rows) > 0:
            found.append(f"… {rest:,} more (`--rows`, or the table of `--csv`)")
        lines = [
            f"- {row['change']}: {_code(shorten(became(row), 2 * _LONGEST))}"
            for row in each.changed[:rows]
        ]
        more = len(each.changed) - len(lines)
        lines += [f"- … {more:,} more"] if more else []
        found += ["\n".join(lines)] if lines else []
    found += [f"> {_plain(note)}" for note in notes]
    if settings.height:
        fold = "<details><summary>Measured differently</summary>"
        found.append(f"{fold}\n\n{_in_markdown(settings_table(settings))}\n\n</details>")
    return "\n\n".join(found) + "\n"


def html(parts: Sequence[Beside], settings: pl.DataFrame, notes: Sequence[str]) -> str:
    """Return the comparison as an HTML fragment without a script."""
    found = [_P.format(note) for note in notes]
    for each in parts:
        found += [_B.format(each.headline), *map(_in_html, _tables(each, _ROWS))]
        if each.table.height > 1 or not each.sums:
            found += [_P.format(each.verdicts), _in_html(_costly(each.table[1 : _ROWS + 1]))]
        found += [_P.format(f"{row['change']}: {became(row)}") for row in each.changed[:_ROWS]]
    if settings.height:
        found.append(_FOLD.format("Measured differently", _in_html(settings_table(settings))))
    return str(_PAGE.format(Markup("").join(found)))


_PAGE = Markup('<div class="xsp-comparison">{}</div>')
_P, _B = Markup("<p>{}</p>"), Markup("<p><b>{}</b></p>")
_FOLD = Markup("<details><summary>{}</summary>{}</details>")
_TABLE = Markup("<table><thead>{}</thead><tbody>{}</tbody></table>")
_TR, _TH, _TD = Markup("<tr>{}</tr>"), Markup("<th>{}</th>"), Markup("<td>{}</td>")


def _tables(each: Beside, most: int) -> Iterator[Table]:
    """Yield the whole, and sums by layer type, primitive and kernel, for Markdown and HTML."""
    yield ("", "before", "after", "difference", "", ""), whole_rows(each)
    for key, table in each.sums.items():
        if table.height:
            head = (key.replace("_", " "), "difference", "", "before", "after", "")
            rows = table.iter_rows(named=True)
            yield head, [[row[key] or NOTHING, *sum_cells(row)] for row in rows]
    for part in device_parts(each):
        if part.rows.height:
            head = (part.title, "difference", "", "before", "after", "")
            cells = _worked if part.keys else _worked_span
            yield head, [cells(row) for row in part.rows[:most].iter_rows(named=True)]


def _worked_span(row: Row) -> list[str]:
    """Return the cells of what a device did for a span."""
    return [
        shorten(printable(place_of(row)), _LONGEST),
        signed(row["device_difference_ns"], row["device_difference_high_ns"]),
        percent(row["device_ratio"]),
        *(duration(row[f"device_{side}_ns"]) for side in "ab"),
        row["device_verdict"] or row["change"],
    ]


def _worked(row: Row) -> list[str]:
    """Return the cells of what a device did by kernel or operator."""
    return [
        shorten(printable(title(row)), _LONGEST),
        signed(row["difference_ns"], row["difference_high_ns"]),
        percent(row["ratio"]),
        *(time_of(row, side) for side in "ab"),
        row["verdict"] or alone(row),
    ]


def _costly(table: pl.DataFrame) -> Table:
    """Return the rows of spans for Markdown and HTML."""
    rows = []
    for row in table.iter_rows(named=True):
        of_one = f" of one call, {calls}" if (calls := calls_of(row)) else ""
        rows.append(
            [
                shorten(printable(place_of(row)), _LONGEST),
                duration(row["latency_a_ns"]),
                duration(row["latency_b_ns"]),
                signed(row["difference_ns"], row["difference_high_ns"]),
                percent(row["ratio"]) + of_one,
                signed(row["own_difference_ns"], None),
                row["verdict"] or row["change"],
            ]
        )
    return ("span", "before", "after", "difference", "", "own", ""), rows


def _in_markdown(table: Table) -> str:
    """Return a table of Markdown whose first column is code, and all others numbers."""
    head, rows = table
    lines = [
        " | ".join(_plain(cell) for cell in head),
        "|".join(["---", *["---:"] * (len(head) - 1)]),
    ]
    lines += [" | ".join([_code(first), *map(_plain, rest)]) for first, *rest in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _code(name: str) -> str:
    r"""Return a name as code, fenced by more backticks than it has in a row.

    >>> _code("layer1/0"), _code("a|`b")
    ('`layer1/0`', '`` a\\|`b ``')
    """
    name = printable(name).replace("|", "\\|")
    if "`" not in name:
        return f"`{name}`"
    fence = "`" * (max(map(len, re.findall("`+", name))) + 1)
    return f"{fence} {name} {fence}"


def _plain(words: str) -> str:
    r"""Return text in which nothing is markup.

    >>> _plain("a*b|<c>")
    'a\\*b\\|\\<c\\>'
    """
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|!~" else c for c in printable(words))


def _in_html(table: Table) -> Markup:
    head, rows = table
    first = _TR.format(Markup("").join(_TH.format(cell) for cell in head))
    body = [_TR.format(Markup("").join(_TD.format(cell) for cell in row)) for row in rows]
    return _TABLE.format(first, Markup("").join(body))
