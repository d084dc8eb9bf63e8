"""Shows a comparison as text for a terminal, as Markdown for a pull request, and as HTML.

Names come from models and files. In Markdown they are code, which nothing in them ends; in HTML
every value goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import polars as pl
from markupsafe import Markup

from xsp.answer.analyses import text_of
from xsp.answer.comparison.alignment import Change
from xsp.answer.comparison.significance import Verdict
from xsp.answer.comparison.whole import LATENCY
from xsp.level import Kind
from xsp.text import NOTHING, counted, duration, printable, shorten

Row = dict[str, Any]
Table = tuple[Sequence[str], list[list[str]]]

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_ORDINAL = re.compile(r"#\d+$")
_STEP = re.compile(r"(?:[^\\/]|\\.)*")  # a name in a path, in which `\` stands before `/` and `#`
_SHORTEST_NAME = 24
_SETTING = 40  # characters of a setting
_ROWS = 50  # of each table in a notebook
_LONGEST = 80  # characters of a path in Markdown and HTML
_LABELS = {
    "latency_ns": "latency",
    "device_ns": "device time",
    "throughput_per_s": "throughput",
    "peak_bytes": "memory",
}
_UNSURE = {
    "unknown": "nobody can tell whether that is chance",
    "not significant": "no significant difference",
}
_VERDICTS = ("slower", "faster", "not significant", "unknown")


@dataclass(frozen=True, slots=True)
class Beside:
    """The tables of one trace that is compared with the first.

    Attributes:
        names: What the first trace and this one are called.
        summary: The whole, a row for each quantity.
        table: A row for each span, the root first, then what costs most.
        sums: Sums by layer type and by primitive where the frameworks differ, by the column's name.
    """

    names: tuple[str, str]
    summary: pl.DataFrame
    table: pl.DataFrame
    sums: Mapping[str, pl.DataFrame]

    @property
    def headline(self) -> str:
        """The sentence on the latency of the whole: how it was, how it is, and what to think."""
        for row in self.summary.filter(pl.col("quantity") == LATENCY).iter_rows(named=True):
            before, after = duration(row["a"]), duration(row["b"])
            change = f"{self.names[0]} {before}, {self.names[1]} {after}"
            if row["ratio"] is None or row["verdict"] in _UNSURE:
                return f"{change}: {_UNSURE.get(row['verdict'], row['verdict'])}"
            return f"{change}: {_more(row['ratio'])}, {row['verdict']} ({chance(row['p_value'])})"
        return f"{self.names[0]}, {self.names[1]}: a latency is not known"

    @property
    def changed(self) -> list[Row]:
        """The rows of what is not the same any more, the most expensive first."""
        rows = self.table.filter(pl.col("change") != Change.SAME.value)
        return list(rows.iter_rows(named=True))

    @property
    def verdicts(self) -> str:
        """How many rows below the root are slower, faster, or neither, and what became of them."""
        inside = self.table[1:]
        often = Counter([*inside["verdict"].drop_nulls(), *inside["change"]])
        words = [*_VERDICTS, *(each.value for each in Change if each is not Change.SAME)]
        parts = [f"{often[word]:,} {word}" for word in words if often[word]]
        noun = "layer" if set(inside["kind"]) == {Kind.LAYER.value} else "span"
        return f"{counted(inside.height, noun)} compared: {', '.join(parts)}"


def drawn(
    parts: Sequence[Beside],
    settings: pl.DataFrame,
    notes: Sequence[str],
    *,
    rows: int,
    width: int | None,
) -> str:
    """Return the settings that differ, and for each trace the whole and the rows that cost most.

    Args:
        parts: The traces beside the first.
        settings: A row for each setting in which the traces differ.
        notes: What to know before trusting the differences.
        rows: Most rows of each table.
        width: Columns to fill; None for those of the terminal, or 100 without one.
    """
    wide = width or shutil.get_terminal_size((100, 24)).columns
    marked = (wrap(f"! {printable(note)}", wide, subsequent_indent="  ") for note in notes)
    blocks = [_settings_lines(settings, wide), [line for lines in marked for line in lines]]
    for each in parts:
        whole = [[*row[:2], "→", *row[2:]] for row in _whole(each)]
        blocks.append([printable(each.headline), *_columns(whole, "<><>>><")])
        blocks += [_sum_lines(each, key, rows) for key in each.sums]
        blocks += _span_lines(each, rows, wide)
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def markdown(
    parts: Sequence[Beside], settings: pl.DataFrame, notes: Sequence[str], *, rows: int
) -> str:
    """Return headlines, the whole, what costs most, what changed, and below a fold the settings."""
    found: list[str] = []
    for each in parts:
        found += [f"**{_plain(each.headline)}**", *map(_in_markdown, _tables(each))]
        if each.table.height > 1 or not each.sums:
            found += [_plain(each.verdicts), _in_markdown(_costly(each.table[1 : rows + 1]))]
        if (rest := each.table.height - 1 - rows) > 0:
            found.append(f"… {rest:,} more (`--rows`, or the table of `--csv`)")
        lines = [
            f"- {row['change']}: {_code(shorten(_became(row), 2 * _LONGEST))}"
            for row in each.changed[:rows]
        ]
        more = len(each.changed) - len(lines)
        lines += [f"- … {more:,} more"] if more else []
        found += ["\n".join(lines)] if lines else []
    found += [f"> {_plain(note)}" for note in notes]
    if settings.height:
        fold = "<details><summary>Measured differently</summary>"
        found.append(f"{fold}\n\n{_in_markdown(_settings(settings))}\n\n</details>")
    return "\n\n".join(found) + "\n"


def html(parts: Sequence[Beside], settings: pl.DataFrame, notes: Sequence[str]) -> str:
    """Return the comparison as an HTML fragment without a script."""
    found = [_P.format(note) for note in notes]
    for each in parts:
        found += [_B.format(each.headline), *map(_in_html, _tables(each))]
        if each.table.height > 1 or not each.sums:
            found += [_P.format(each.verdicts), _in_html(_costly(each.table[1 : _ROWS + 1]))]
        found += [_P.format(f"{row['change']}: {_became(row)}") for row in each.changed[:_ROWS]]
    if settings.height:
        found.append(_FOLD.format("Measured differently", _in_html(_settings(settings))))
    return str(_PAGE.format(Markup("").join(found)))


_PAGE = Markup('<div class="xsp-comparison">{}</div>')
_P, _B = Markup("<p>{}</p>"), Markup("<p><b>{}</b></p>")
_FOLD = Markup("<details><summary>{}</summary>{}</details>")
_TABLE = Markup("<table><thead>{}</thead><tbody>{}</tbody></table>")
_TR, _TH, _TD = Markup("<tr>{}</tr>"), Markup("<th>{}</th>"), Markup("<td>{}</td>")


def _more(ratio: float) -> str:
    """Return by how much longer something takes, in words that need no sign.

    >>> _more(0.264), _more(4.353), _more(170.44)
    ('73.6 % less time', '335.3 % more time', '× 170 the time')
    """
    if ratio >= 10:
        return f"× {ratio:,.0f} the time"
    return f"{100 * abs(ratio - 1):.1f} % {'more' if ratio >= 1 else 'less'} time"


def percent(ratio: float | None) -> str:
    """Return by how much more than 1 a ratio is, in percent.

    >>> percent(1.2), percent(0.875), percent(170.44), percent(None)
    ('+20.0 %', '-12.5 %', '× 170', '—')
    """
    if ratio is None:
        return NOTHING
    if ratio >= 10:
        return f"× {ratio:,.0f}"
    return f"{100 * (ratio - 1):+.1f} %"


def chance(p: float | None) -> str:
    """Return a p-value as text.

    >>> chance(0.0321), chance(1e-9), chance(None)
    ('p = 0.032', 'p < 0.001', '')
    """
    if p is None:
        return ""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def signed(value: float | None, high: float | None) -> str:
    """Return a difference of durations in ns with the reach of its interval, in one unit.

    >>> signed(-2_200_000.0, -1_840_000.0), signed(1_500.0, None), signed(None, None)
    ('-2.20 ± 0.36 ms', '+1.50 µs', '—')
    """
    if value is None:
        return NOTHING
    half = None if high is None else high - value
    size = max(abs(value), half or 0.0)
    scale, unit = next((each for each in _UNITS if size >= each[0]), _UNITS[-1])
    decimals = 2 if size < 10 * scale else 1 if size < 100 * scale else 0
    reach = "" if half is None else f" ± {half / scale:.{decimals}f}"
    return f"{value / scale:+.{decimals}f}{reach} {unit}"


def below(path: str) -> str:
    r"""Return a path without the root; that of the root itself as it is.

    >>> below("predict/net/fc"), below(r"a\/b/fc"), below("predict")
    ('net/fc', 'fc', 'predict')
    """
    root = _STEP.match(path)
    return path[root.end() + 1 :] or path if root else path


def unescaped(path: str) -> str:
    r"""Return a path with its names as they are.

    >>> unescaped(r"step/\#\# forward \#\##2")
    'step/## forward ###2'
    """
    return re.sub(r"\\(.)", r"\1", path)


def _place(row: Row) -> str:
    """Return where a span is, below the root; and where it was, if it has another name now."""
    before, after = (
        None if path is None else below(path) for path in (row["path_a"], row["path_b"])
    )
    phase = f" ({row['phase']})" if row["phase"] == "backward" else ""
    if before is None or after is None or before == after:
        return unescaped(after or before or "") + phase
    if "#" in after and "#" not in before:  # one of many in a flat model
        return unescaped(before) + phase
    old, new = (_ORDINAL.sub("", _STEP.findall(each)[-2]) for each in (before, after))
    was = "" if old == new else f" (was {unescaped(old)})"
    return unescaped(after) + phase + was


def _became(row: Row) -> str:
    """Word the change of a span: the paths or types before and after it."""
    parts = [unescaped(below(path)) for path in (row["path_a"], *row["more_a"]) if path]
    now = [unescaped(below(path)) for path in (row["path_b"], *row["more_b"]) if path]
    change, types = row["change"], f"{row['type_a']} → {row['type_b']}"
    if change in (Change.ADDED, Change.REMOVED):
        phase = ", backward" if row["phase"] == "backward" else ""
        return f"{(now or parts)[0]} ({row['type_b'] or row['type_a']}{phase})"
    if change == Change.FUSED:
        return f"{' + '.join(parts)} → {now[0]} ({row['type_b']})"
    if change == Change.SPLIT:
        return f"{parts[0]} ({row['type_a']}) → {' + '.join(now)}"
    if change == Change.REPLACED:
        return f"{_place(row)}: {types}"
    return f"{parts[0]} → {now[0]}" if parts != now else parts[0]


def _calls(row: Row) -> str:
    """Return how many calls a span stood for and stands for, where that is not the same."""
    before, after = row["calls_a"], row["calls_b"]
    if before is None or after is None or before == after:
        return ""
    return f"{before:,} → {after:,}"


def _whole(each: Beside) -> list[list[str]]:
    """Return a row for each quantity of the whole: what it was, what it is, and what to think."""
    return [
        [
            _LABELS[row["quantity"]],
            text_of(row["quantity"], row["a"]),
            text_of(row["quantity"], row["b"]),
            _difference(row),
            percent(row["ratio"]),
            row["verdict"],
        ]
        for row in each.summary.iter_rows(named=True)
    ]


def _difference(row: Row) -> str:
    """Return a difference of one of the whole's quantities, with the reach of its interval."""
    if row["quantity"].endswith("_ns"):
        return signed(row["difference"], row["difference_high"])
    value = text_of(row["quantity"], abs(row["difference"]))
    sign = "+" if row["difference"] > 0 else "-" if row["difference"] < 0 else ""
    return f"{sign}{value}"


def _summed(row: Row) -> list[str]:
    """Return the cells of a sum: its difference, what it was, what it is, and what to think."""
    alone = "only there" if row["calls_a"] is None else "only before"
    sides = (row["own_a_ns"], row["own_b_ns"])
    return [
        signed(row["difference_ns"], row["difference_high_ns"]),
        percent(row["ratio"]),
        *(NOTHING if side is None else duration(side) for side in sides),
        row["verdict"] or alone,
    ]


def _settings_lines(settings: pl.DataFrame, width: int) -> list[str]:
    if not settings.height:
        return ["measured alike: the traces tell of no setting in which they differ"]
    most = max(12, min(_SETTING, (width - 24) // (settings.width - 1) - 2))
    head, rows = _settings(settings)
    short = [[shorten(printable(cell), most) for cell in row] for row in (head, *rows)]
    return ["measured differently:", *_columns(short, "<" * settings.width)]


def _settings(settings: pl.DataFrame) -> Table:
    return ("", *settings.columns[1:]), [
        [NOTHING if cell is None else printable(str(cell)) for cell in row]
        for row in settings.iter_rows()
    ]


def _sum_lines(each: Beside, key: str, most: int) -> list[str]:
    """Tabulate the times of two traces by layer type, or by primitive."""
    table = each.sums[key]
    if not table.height:
        return []
    names = (shorten(printable(name), 16) for name in each.names)
    cells = [["difference", "", *names, "verdict", key.replace("_", " ")]]
    cells += [[*_summed(row), row[key] or NOTHING] for row in table[:most].iter_rows(named=True)]
    title = "by layer type:" if key == "layer_type" else "by library primitive:"
    return [title, *_columns(cells, ">>>><<"), *_rest(table.height - most)]


def _span_lines(each: Beside, most: int, width: int) -> Iterator[list[str]]:
    if each.table.height == 1 and each.sums:
        return
    yield [each.verdicts]
    inside = each.table[1:]
    same = (pl.col("verdict") == Verdict.NOT_SIGNIFICANT) & (pl.col("change") == Change.SAME.value)
    moved = inside.filter(~same.fill_null(False))
    costly, unchanged = moved[:most], inside.height - moved.height
    noun = "layer" if set(inside["kind"]) == {Kind.LAYER.value} else "span"
    left = [f"{counted(unchanged, noun)} unchanged within their error bars"] if unchanged else []
    if not costly.height:
        yield left
    else:
        unlike = bool((costly["calls_a"] != costly["calls_b"]).any())
        names = [shorten(printable(name), 16) for name in each.names]
        head = ["own", "difference", "per call" if unlike else "", *names]
        cells = [[*head, *["calls"] * unlike, "verdict", "span"]]
        cells += [
            [
                signed(row["own_difference_ns"], None),
                signed(row["difference_ns"], row["difference_high_ns"]),
                percent(row["ratio"]),
                duration(row["latency_a_ns"]),
                duration(row["latency_b_ns"]),
                *[_calls(row)] * unlike,
                row["verdict"] or row["change"],
                printable(_place(row)),
            ]
            for row in costly.iter_rows(named=True)
        ]
        used = sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[:-1])
        room = max(_SHORTEST_NAME, width - used)
        cells = [[*row[:-1], shorten(row[-1], room)] for row in cells]
        sides = ">>>>>" + ">" * unlike + "<<"
        yield [*_columns(cells, sides), *_rest(moved.height - most), *left]
    if others := each.changed:
        lines = [f"{row['change']:9}{printable(_became(row))}" for row in others[:most]]
        yield ["not the same any more:", *lines, *_rest(len(others) - most)]


def _rest(rows: int) -> list[str]:
    return [f"… {rows:,} more"] if rows > 0 else []


def _columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows as lines whose cells stand below each other.

    >>> _columns([["a", "1"], ["bcd", "22"]], "<>")
    ['a     1', 'bcd  22']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _tables(each: Beside) -> Iterator[Table]:
    """Yield the whole, and the sums by layer type and by primitive, for Markdown and HTML."""
    yield ("", "before", "after", "difference", "", ""), _whole(each)
    for key, table in each.sums.items():
        if table.height:
            head = (key.replace("_", " "), "difference", "", "before", "after", "")
            rows = table.iter_rows(named=True)
            yield head, [[row[key] or NOTHING, *_summed(row)] for row in rows]


def _costly(table: pl.DataFrame) -> Table:
    """Return the rows of spans for Markdown and HTML."""
    rows = []
    for row in table.iter_rows(named=True):
        of_one = f" of one call, {calls}" if (calls := _calls(row)) else ""
        rows.append(
            [
                shorten(printable(_place(row)), _LONGEST),
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
