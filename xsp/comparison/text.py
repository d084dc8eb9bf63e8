"""Text: a comparison in, what a terminal shows of it out."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from xsp.analyses import text_of
from xsp.comparison.alignment import Change
from xsp.comparison.whole import LATENCY
from xsp.level import Kind
from xsp.text import NOTHING, counted, duration, printable, shorten

if TYPE_CHECKING:
    import polars as pl

    from xsp.comparison.comparison import Comparison

Row = dict[str, Any]

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_ORDINAL = re.compile(r"#\d+$")
_SHORTEST_NAME = 24
_SETTING = 40  # characters of a setting
LABELS = {
    "latency_ns": "latency",
    "device_ns": "device time",
    "throughput_per_s": "throughput",
    "peak_bytes": "memory",
}

# What is summed up across frameworks, and what that is called.
SUMS = {"layer_type": "by layer type:", "primitive": "by library primitive:"}


def drawn(comparison: Comparison, *, rows: int, width: int | None) -> str:
    """Return the settings that differ, the whole, and for each trace the rows that cost most.

    Args:
        comparison: What to show.
        rows: Most rows of each table.
        width: Columns to fill; None for those of the terminal, or 100 without one.
    """
    wide = width or shutil.get_terminal_size((100, 24)).columns
    parts = [_settings(comparison, wide), _notes(comparison, wide)]
    for name in comparison.names[1:]:
        parts.append(_whole(comparison, name))
        if name in comparison.across:
            parts += [_sums(comparison, name, key, rows) for key in SUMS]
        parts += _rows(comparison, name, rows, wide)
    return "\n\n".join("\n".join(part) for part in parts if part)


def sums_of(comparison: Comparison, name: str, key: str) -> pl.DataFrame:
    """Return the sums by layer type or by primitive of one trace beside the first."""
    table: pl.DataFrame = getattr(comparison, f"by_{key}")
    return table.filter(table["trace"] == name)


def heading(row: Row, names: Sequence[str]) -> str:
    """Return the sentence on the latency of the whole: how it was, how it is, and what to think."""
    before, after = (duration(row[side]) for side in "ab")
    change = f"{names[0]} {before}, {row['trace']} {after}"
    if row["ratio"] is None or row["verdict"] in ("unknown", "not significant"):
        return f"{change}: {said(row['verdict'])}"
    return f"{change}: {_more(row['ratio'])}, {row['verdict']} ({chance(row['p_value'])})"


def _more(ratio: float) -> str:
    """Return by how much longer something takes, in words that need no sign.

    >>> _more(0.264), _more(4.353), _more(170.44)
    ('73.6 % less time', '335.3 % more time', '× 170 the time')
    """
    if ratio >= 10:
        return f"× {ratio:,.0f} the time"
    return f"{100 * abs(ratio - 1):.1f} % {'more' if ratio >= 1 else 'less'} time"


def said(verdict: str) -> str:
    """Return a verdict of no difference as a sentence has it."""
    told = {
        "unknown": "nobody can tell whether that is chance",
        "not significant": "no significant difference",
    }
    return told.get(verdict, verdict)


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


def place(row: Row) -> str:
    """Return where a span is, below the root; and where it was, if it has another name now."""
    before, after = (
        None if path is None else below(path) for path in (row["path_a"], row["path_b"])
    )
    if before is None or after is None or before == after:
        return after or before or ""
    if "#" in after and "#" not in before:  # one of many in a flat model
        return before
    old, new = (_ORDINAL.sub("", each.rpartition("/")[2]) for each in (before, after))
    return after if old == new else f"{after} (was {old})"


def below(path: str) -> str:
    """Return a path without the root; that of the root itself as it is."""
    return path.partition("/")[2] or path


def became(row: Row) -> str:
    """Return in one line what became of a span that is not the same any more."""
    parts = [below(path) for path in (row["path_a"], *row["more_a"]) if path]
    now = [below(path) for path in (row["path_b"], *row["more_b"]) if path]
    change, types = row["change"], f"{row['type_a']} → {row['type_b']}"
    if change in (Change.ADDED, Change.REMOVED):
        return f"{(now or parts)[0]} ({row['type_b'] or row['type_a']})"
    if change == Change.FUSED:
        return f"{' + '.join(parts)} → {now[0]} ({row['type_b']})"
    if change == Change.SPLIT:
        return f"{parts[0]} ({row['type_a']}) → {' + '.join(now)}"
    if change == Change.REPLACED:
        return f"{place(row)}: {types}"
    return f"{parts[0]} → {now[0]}" if parts != now else parts[0]


def changed(table: pl.DataFrame) -> list[Row]:
    """Return the rows of what is not the same any more, the most expensive first."""
    rows = table.filter(table["change"] != Change.SAME.value)
    return list(rows.iter_rows(named=True))


def unlike_calls(table: pl.DataFrame) -> bool:
    """Return whether a span of the table stands for more calls in one trace than in the other."""
    return bool((table["calls_a"] != table["calls_b"]).any())


def calls(row: Row) -> str:
    """Return how many calls a span stood for and stands for, where that is not the same."""
    before, after = row["calls_a"], row["calls_b"]
    if before is None or after is None or before == after:
        return ""
    return f"{before:,} → {after:,}"


def verdicts(table: pl.DataFrame) -> str:
    """Return how many rows below the root are slower, faster, or neither."""
    inside = table[1:]
    often = Counter(each for each in inside["verdict"].to_list() if each is not None)
    parts = [f"{often[each]:,} {each}" for each in _ORDER if often[each]]
    changes = Counter(inside["change"].to_list())
    parts += [f"{changes[each.value]:,} {each.value}" for each in Change if _told(each, changes)]
    layers = set(inside["kind"]) == {Kind.LAYER.value}
    return f"{counted(inside.height, 'layer' if layers else 'span')} compared: {', '.join(parts)}"


_ORDER = ("slower", "faster", "not significant", "unknown")


def _told(change: Change, changes: Counter[str]) -> bool:
    return change is not Change.SAME and changes[change.value] > 0


def _settings(comparison: Comparison, width: int) -> list[str]:
    table = comparison.settings
    if not table.height:
        return ["measured alike: the traces tell of no setting in which they differ"]
    most = max(12, min(_SETTING, (width - 24) // len(comparison.names) - 2))
    cells = [["", *comparison.names]]
    cells += [[NOTHING if cell is None else cell for cell in row] for row in table.iter_rows()]
    short = [[shorten(printable(str(cell)), most) for cell in row] for row in cells]
    return ["measured differently:", *columns(short, "<" * len(short[0]))]


def _notes(comparison: Comparison, width: int) -> list[str]:
    return [
        line
        for note in comparison.notes
        for line in wrap(f"! {printable(note)}", width, subsequent_indent="  ")
    ]


def _whole(comparison: Comparison, name: str) -> list[str]:
    """Return the headline, and the whole model's quantities below it."""
    of_name = comparison.summary.filter(comparison.summary["trace"] == name)
    found = list(of_name.iter_rows(named=True))
    lines = [
        printable(heading(row, comparison.names)) for row in found if row["quantity"] == LATENCY
    ]
    lines = lines or [f"{comparison.names[0]}, {name}: a latency is not known"]
    cells = [
        [
            LABELS[row["quantity"]],
            text_of(row["quantity"], row["a"]),
            "→",
            text_of(row["quantity"], row["b"]),
            difference(row),
            percent(row["ratio"]),
            row["verdict"],
        ]
        for row in found
    ]
    return [*lines, *columns(cells, "<><>>><")]


def difference(row: Row) -> str:
    """Return a difference of one of the whole's quantities, with the reach of its interval."""
    if row["quantity"].endswith("_ns"):
        return signed(row["difference"], row["difference_high"])
    value = text_of(row["quantity"], abs(row["difference"]))
    sign = "+" if row["difference"] > 0 else "-" if row["difference"] < 0 else ""
    return f"{sign}{value}"


def _sums(comparison: Comparison, name: str, key: str, most: int) -> list[str]:
    """Return what the first trace and another one take by layer type, or by primitive."""
    table = sums_of(comparison, name, key)
    if not table.height:
        return []
    head = [
        "difference",
        "",
        *(shorten(printable(each), 16) for each in (comparison.names[0], name)),
    ]
    cells = [[*head, "verdict", key.replace("_", " ")]]
    cells += [[*summed(row), row[key] or NOTHING] for row in table[:most].iter_rows(named=True)]
    rest = table.height - most
    return [SUMS[key], *columns(cells, ">>>><<"), *([f"… {rest:,} more"] if rest > 0 else [])]


def summed(row: Row) -> list[str]:
    """Return the cells of a sum: its difference, what it was, what it is, and what to think."""
    alone = "only there" if row["calls_a"] is None else "only before"
    return [
        signed(row["difference_ns"], row["difference_high_ns"]),
        percent(row["ratio"]),
        *(
            NOTHING if row[side] is None else duration(row[side])
            for side in ("own_a_ns", "own_b_ns")
        ),
        row["verdict"] or alone,
    ]


def _rows(comparison: Comparison, name: str, most: int, width: int) -> Iterator[list[str]]:
    table = comparison.table.filter(comparison.table["trace"] == name)
    yield [verdicts(table)]
    costly = table[1 : most + 1]
    if costly.height:
        unlike = unlike_calls(costly)
        names = [shorten(printable(each), 16) for each in (comparison.names[0], name)]
        head = ["own", "difference", "per call" if unlike else "", *names]
        head += [*["calls"] * unlike, "verdict", "span"]
        cells = [head, *(_cells(row, with_calls=unlike) for row in costly.iter_rows(named=True))]
        used = sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[:-1])
        room = max(_SHORTEST_NAME, width - used)
        cells = [[*row[:-1], shorten(row[-1], room)] for row in cells]
        rest = table.height - 1 - costly.height
        sides = ">>>>>" + ">" * unlike + "<<"
        yield [*columns(cells, sides), *([f"… {rest:,} more"] if rest else [])]
    others = changed(table)
    if others:
        lines = [f"{row['change']:9}{printable(became(row))}" for row in others[:most]]
        rest = len(others) - most
        yield ["not the same any more:", *lines, *([f"… {rest:,} more"] if rest > 0 else [])]


def _cells(row: Row, *, with_calls: bool) -> list[str]:
    return [
        signed(row["own_difference_ns"], None),
        signed(row["difference_ns"], row["difference_high_ns"]),
        percent(row["ratio"]),
        duration(row["latency_a_ns"]),
        duration(row["latency_b_ns"]),
        *[calls(row)] * with_calls,
        row["verdict"] or row["change"],
        printable(place(row)),
    ]


def columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows as lines whose cells stand below each other.

    >>> columns([["a", "1"], ["bcd", "22"]], "<>")
    ['a     1', 'bcd  22']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
