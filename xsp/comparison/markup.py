"""Markup: a comparison in, Markdown for a pull request and HTML for a notebook out.

Names come from models and files. In Markdown they are code, which nothing in them ends; in HTML
every value goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from xsp.analyses import text_of
from xsp.comparison import text
from xsp.comparison.whole import LATENCY
from xsp.text import NOTHING, duration, printable, shorten

if TYPE_CHECKING:
    from xsp.comparison.comparison import Comparison

_ROWS = 50  # of each table in a notebook
_LONGEST = 80  # characters of a path
_WHOLE = ("", "before", "after", "difference", "", "")
_COSTLY = ("span", "before", "after", "difference", "", "own", "")

Table = tuple[Sequence[str], list[list[str]]]


def markdown(comparison: Comparison, *, rows: int) -> str:
    """Return headlines, the whole, what costs most, what changed, and below a fold the settings.

    Args:
        comparison: What to show.
        rows: Most rows of each table.
    """
    parts: list[str] = []
    for name in comparison.names[1:]:
        table = comparison.table.filter(pl.col("trace") == name)
        parts += [f"**{_plain(_headline(comparison, name))}**", _drawn(_whole(comparison, name))]
        parts += [_drawn(each) for each in _sums(comparison, name)]
        parts += [_plain(text.verdicts(table)), _drawn(_costly(table, rows))]
        rest = table.height - 1 - rows
        parts += [f"… {rest:,} more (`--rows`, or the table of `--csv`)"] if rest > 0 else []
        parts += _changes(table, rows)
    parts += [f"> {_plain(note)}" for note in comparison.notes]
    settings = _settings(comparison)
    if settings[1]:
        fold = "<details><summary>Measured differently</summary>"
        parts.append(f"{fold}\n\n{_drawn(settings)}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def html(comparison: Comparison) -> str:
    """Return the comparison as an HTML fragment without a script."""
    parts: list[Markup] = [_P.format(note) for note in comparison.notes]
    for name in comparison.names[1:]:
        table = comparison.table.filter(pl.col("trace") == name)
        parts += [_B.format(_headline(comparison, name)), _html(_whole(comparison, name))]
        parts += [_html(each) for each in _sums(comparison, name)]
        parts += [_P.format(text.verdicts(table)), _html(_costly(table, _ROWS))]
        parts += [_P.format(f"{row['change']}: {text.became(row)}") for row in _few(table, _ROWS)]
    if comparison.settings.height:
        parts.append(_FOLD.format("Measured differently", _html(_settings(comparison))))
    return str(_PAGE.format(Markup("").join(parts)))


_PAGE = Markup('<div class="xsp-comparison">{}</div>')
_P, _B = Markup("<p>{}</p>"), Markup("<p><b>{}</b></p>")
_FOLD = Markup("<details><summary>{}</summary>{}</details>")
_TABLE = Markup("<table><thead>{}</thead><tbody>{}</tbody></table>")
_TR, _TH, _TD = Markup("<tr>{}</tr>"), Markup("<th>{}</th>"), Markup("<td>{}</td>")


def _headline(comparison: Comparison, name: str) -> str:
    rows = comparison.summary.filter(pl.col("trace") == name, pl.col("quantity") == LATENCY)
    if not rows.height:
        return f"{comparison.names[0]}, {name}: a latency is not known"
    return text.heading(rows.row(0, named=True), comparison.names)


def _whole(comparison: Comparison, name: str) -> Table:
    of_name = comparison.summary.filter(pl.col("trace") == name)
    return _WHOLE, [
        [
            text.LABELS[row["quantity"]],
            text_of(row["quantity"], row["a"]),
            text_of(row["quantity"], row["b"]),
            text.difference(row),
            text.percent(row["ratio"]),
            row["verdict"],
        ]
        for row in of_name.iter_rows(named=True)
    ]


def _sums(comparison: Comparison, name: str) -> Iterator[Table]:
    """Yield what traces of two frameworks take by layer type, and by primitive of libraries."""
    for key in text.SUMS if name in comparison.across else ():
        rows = list(text.sums_of(comparison, name, key).iter_rows(named=True))
        if rows:
            head = (key.replace("_", " "), "difference", "", "before", "after", "")
            yield head, [[row[key] or NOTHING, *text.summed(row)] for row in rows]


def _costly(table: pl.DataFrame, rows: int) -> Table:
    return _COSTLY, [
        [
            shorten(printable(text.place(row)), _LONGEST),
            duration(row["latency_a_ns"]),
            duration(row["latency_b_ns"]),
            text.signed(row["difference_ns"], row["difference_high_ns"]),
            _ratio(row),
            text.signed(row["own_difference_ns"], None),
            row["verdict"] or row["change"],
        ]
        for row in table[1 : rows + 1].iter_rows(named=True)
    ]


def _ratio(row: text.Row) -> str:
    """Return a row's ratio; with the numbers of calls, if it is that of one call."""
    calls = text.calls(row)
    return (
        f"{text.percent(row['ratio'])} of one call, {calls}"
        if calls
        else text.percent(row["ratio"])
    )


def _settings(comparison: Comparison) -> Table:
    rows = comparison.settings.iter_rows()
    return ("", *comparison.names), [
        [NOTHING if cell is None else printable(str(cell)) for cell in row] for row in rows
    ]


def _few(table: pl.DataFrame, rows: int) -> Iterator[text.Row]:
    yield from text.changed(table)[:rows]


def _changes(table: pl.DataFrame, rows: int) -> list[str]:
    lines = [
        f"- {row['change']}: {_code(shorten(text.became(row), 2 * _LONGEST))}"
        for row in _few(table, rows)
    ]
    more = len(text.changed(table)) - len(lines)
    lines += [f"- … {more:,} more"] if more else []
    return ["\n".join(lines)] if lines else []


def _drawn(table: Table) -> str:
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
    longest = max(len(run) for run in _runs_of_backticks(name))
    fence = "`" * (longest + 1)
    return f"{fence} {name} {fence}"


def _runs_of_backticks(name: str) -> list[str]:
    return "".join(c if c == "`" else " " for c in name).split()


def _plain(words: str) -> str:
    r"""Return text in which nothing is markup.

    >>> _plain("a*b|<c>")
    'a\\*b\\|\\<c\\>'
    """
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|!~" else c for c in printable(words))


def _html(table: Table) -> Markup:
    head, rows = table
    first = _TR.format(Markup("").join(_TH.format(cell) for cell in head))
    body = [_TR.format(Markup("").join(_TD.format(cell) for cell in row)) for row in rows]
    return _TABLE.format(first, Markup("").join(body))
