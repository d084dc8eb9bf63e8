"""Writes a comparison as text for a terminal."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, NamedTuple

import polars as pl

from xsp.answer.analyses import text_of
from xsp.answer.comparison.alignment import Change
from xsp.answer.comparison.device import GROUPS, title
from xsp.answer.comparison.significance import Verdict
from xsp.answer.comparison.whole import DEVICE, LATENCY
from xsp.level import Kind
from xsp.text import NOTHING, counted, duration, printable, shorten

Row = dict[str, Any]
Table = tuple[Sequence[str], list[list[str]]]

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_ORDINAL = re.compile(r"#\d+$")
_STEP = re.compile(r"(?:[^\\/]|\\.)*")  # a name in a path, in which `\` stands before `/` and `#`
_SHORTEST_NAME = 24
_SETTING = 40  # characters of a setting
_LABELS = {
    "latency_ns": "latency",
    "device_ns": "device time",
    "throughput_per_s": "throughput",
    "peak_bytes": "memory",
    "energy_j": "energy",
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
        device: What devices did, a row for each kernel, operator, and operator with its shapes.
    """

    names: tuple[str, str]
    summary: pl.DataFrame
    table: pl.DataFrame
    sums: Mapping[str, pl.DataFrame]
    device: pl.DataFrame

    @property
    def headline(self) -> str:
        """The sentence on the whole: how long it took, how long it takes, and what to think.

        Where devices worked, the second half of it is on their time.
        """
        names = f"{self.names[0]} {{}}, {self.names[1]} {{}}"
        words = [*self._told(LATENCY, names), *self._told(DEVICE, "device time {}, {}")]
        return "; ".join(words) or f"{self.names[0]}, {self.names[1]}: a latency is not known"

    def _told(self, quantity: str, words: str) -> Iterator[str]:
        """Word how a quantity changed, where both traces have it."""
        for row in self.summary.filter(pl.col("quantity") == quantity).iter_rows(named=True):
            change = words.format(duration(row["a"]), duration(row["b"]))
            verdict, ratio = row["verdict"], row["ratio"]
            if verdict == Verdict.NOT_SIGNIFICANT or ratio is None:
                yield f"{change}: {_UNSURE.get(verdict, verdict)}"
            elif verdict == Verdict.UNKNOWN:
                yield f"{change}: {_more(ratio)}, {_UNSURE[verdict]}"
            else:
                yield f"{change}: {_more(ratio)}, {verdict} ({chance(row['p_value'])})"

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
        whole = [[*row[:2], "→", *row[2:]] for row in whole_rows(each)]
        blocks.append([printable(each.headline), *_columns(whole, "<><>>><")])
        blocks += [_sum_lines(each, key, rows) for key in each.sums]
        blocks += _device_blocks(each, rows, wide)
        blocks += _span_lines(each, rows, wide)
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


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


def place_of(row: Row) -> str:
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


def became(row: Row) -> str:
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
        return f"{place_of(row)}: {types}"
    return f"{parts[0]} → {now[0]}" if parts != now else parts[0]


def calls_of(row: Row) -> str:
    """Return how many calls a span stood for and stands for, where that is not the same."""
    before, after = row["calls_a"], row["calls_b"]
    if before is None or after is None or before == after:
        return ""
    return f"{before:,} → {after:,}"


def whole_rows(each: Beside) -> list[list[str]]:
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


def sum_cells(row: Row) -> list[str]:
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
    head, rows = settings_table(settings)
    short = [[shorten(printable(cell), most) for cell in row] for row in (head, *rows)]
    return ["measured differently:", *_columns(short, "<" * settings.width)]


def settings_table(settings: pl.DataFrame) -> Table:
    """Return head and rows of the settings that differ."""
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
    cells += [[*sum_cells(row), row[key] or NOTHING] for row in table[:most].iter_rows(named=True)]
    title = "by layer type:" if key == "layer_type" else "by library primitive:"
    return [title, *_columns(cells, ">>>><<"), *_rest(table.height - most)]


def _span_lines(each: Beside, most: int, width: int) -> Iterator[list[str]]:
    if each.table.height == 1 and each.sums:
        return
    yield [each.verdicts]
    inside = each.table[1:]
    kept, left = _noteworthy(
        inside, "verdict", "own_difference_ns", each.table["latency_a_ns"][0], "the latency"
    )
    noun = "layer" if set(inside["kind"]) == {Kind.LAYER.value} else "span"
    yield _spans(each, kept, ("", "latency"), most, width) + _left(left, noun)
    if others := each.changed:
        lines = [f"{row['change']:9}{printable(became(row))}" for row in others[:most]]
        yield ["not the same any more:", *lines, *_rest(len(others) - most)]


class DevicePart(NamedTuple):
    """What devices did in two traces, summed up in one way.

    Attributes:
        title: What the rows are.
        keys: Columns that name a row; none of spans.
        rows: The rows that changed.
        left: How many others there are, and why they are left out.
    """

    title: str
    keys: Sequence[str]
    rows: pl.DataFrame
    left: list[str]


def device_parts(each: Beside) -> Iterator[DevicePart]:
    """Yield what devices did: for spans, by kernel, by operator, and by operator and shapes."""
    if not each.device.height:
        return
    whole = float(each.device.filter(pl.col("by") == "kernel")["device_a_ns"].sum())
    sides = [pl.col(f"device_{side}_ns").fill_null(0.0) for side in "ab"]
    inside = each.table[1:].filter(sides[0] + sides[1] > 0)
    if inside.height:
        own = "own_device_difference_ns"
        ordered = inside.sort(pl.col(own).abs(), descending=True, nulls_last=True)
        kept, left = _noteworthy(ordered, "device_verdict", own, whole, _DEVICE_TIME)
        noun = "layer" if set(inside["kind"]) == {Kind.LAYER.value} else "span"
        yield DevicePart(f"device time of {noun}s", (), kept, _left(left, noun))
    for by, keys in GROUPS.items():
        table = each.device.filter(pl.col("by") == by)
        if by == "operator and shapes" and table["operator"].is_unique().all():
            continue  # it says no more than the part before
        kept, left = _noteworthy(table, "verdict", "difference_ns", whole, _DEVICE_TIME)
        yield DevicePart(f"device time by {by}", keys, kept, _left(left, _NOUNS[by]))


def _device_blocks(each: Beside, most: int, width: int) -> Iterator[list[str]]:
    for part in device_parts(each):
        if part.keys:
            lines = _device_lines(each, part.rows, part.keys, most, width)
        else:
            lines = _spans(each, part.rows, ("device_", "device"), most, width)
        yield _titled(f"{part.title}:", lines, part.left)


def _titled(title: str, lines: list[str], left: list[str]) -> list[str]:
    """Return a table below its title; without rows, what was left out beside it."""
    return [title, *lines, *left] if lines else [f"{title} {', '.join(left)}"]


_DEVICE_TIME = "the device time"
_NOUNS = {"kernel": "kernel", "operator": "operator", "operator and shapes": "row"}
_SMALL = 0.01  # of the whole: smaller differences without an interval are only counted


def _noteworthy(
    table: pl.DataFrame, verdict: str, difference: str, whole: float | None, noun: str
) -> tuple[pl.DataFrame, list[tuple[int, str]]]:
    """Return the rows that changed, and how many others there are and why they are left out."""
    here = table.with_columns(
        small=pl.col(difference).abs().fill_null(0.0) < _SMALL * (whole or 0.0)
    )
    of_spans = verdict == "verdict" and "change" in table.columns
    is_same = pl.col("change") == Change.SAME.value if of_spans else pl.lit(True)
    said = pl.col(verdict)
    same = (is_same & (said == Verdict.NOT_SIGNIFICANT)).fill_null(False)
    unknown = (is_same & (said == Verdict.UNKNOWN) & pl.col("small")).fill_null(False)
    left = [
        (int(here.select(same.sum()).item()), "unchanged within their error bars"),
        (int(here.select(unknown.sum()).item()), f"with a difference below 1 % of {noun}"),
    ]
    return here.filter(~same & ~unknown).drop("small"), left


def _left(left: Sequence[tuple[int, str]], noun: str) -> list[str]:
    return [f"{counted(count, noun)} {why}" for count, why in left if count]


def _spans(
    each: Beside, rows: pl.DataFrame, times: tuple[str, str], most: int, width: int
) -> list[str]:
    """Tabulate spans by what they cost.

    Args:
        each: The traces.
        rows: Rows of `COLUMNS`.
        times: What the columns of differences begin with, and those of the times themselves.
        most: Most rows.
        width: Columns to fill.
    """
    costly = rows[:most]
    if not costly.height:
        return []
    of, time = times
    unlike = not of and bool((costly["calls_a"] != costly["calls_b"]).any())
    names = [shorten(printable(name), 16) for name in each.names]
    head = ["own", "difference", "per call" if unlike else "", *names]
    cells = [[*head, *["calls"] * unlike, "verdict", "span"]]
    cells += [
        [
            signed(row[f"own_{of}difference_ns"], None),
            signed(row[f"{of}difference_ns"], row[f"{of}difference_high_ns"]),
            percent(row[f"{of}ratio"]),
            duration(row[f"{time}_a_ns"]),
            duration(row[f"{time}_b_ns"]),
            *[calls_of(row)] * unlike,
            row[f"{of}verdict"] or row["change"],
            printable(place_of(row)),
        ]
        for row in costly.iter_rows(named=True)
    ]
    sides = ">>>>>" + ">" * unlike + "<<"
    return [*_columns(_fitted(cells, width), sides), *_rest(rows.height - most)]


def _device_lines(
    each: Beside, rows: pl.DataFrame, keys: Sequence[str], most: int, width: int
) -> list[str]:
    """Tabulate kernels, or operators, by how much longer devices work for them."""
    shown = list(rows[:most].iter_rows(named=True))
    if not shown:
        return []
    names = [shorten(printable(name), 16) for name in each.names]
    unlike = any(_counts(row) for row in shown)
    often = Counter(title(row) for row in shown)
    cells = [["difference", "", *names, *["count"] * unlike, "verdict", keys[0]]]
    cells += [
        [
            signed(row["difference_ns"], row["difference_high_ns"]),
            percent(row["ratio"]),
            *(time_of(row, side) for side in "ab"),
            *[_counts(row)] * unlike,
            row["verdict"] or alone(row),
            # Instances of one template differ in their full names.
            printable(title(row) if often[title(row)] == 1 else row["kernel"] or title(row)),
        ]
        for row in shown
    ]
    sides = ">>>>" + ">" * unlike + "<<"
    return [*_columns(_fitted(cells, width), sides), *_rest(rows.height - most)]


def time_of(row: Row, side: str) -> str:
    """Return the device time of a row in one trace, `a` or `b`."""
    return NOTHING if row[f"count_{side}"] is None else duration(row[f"device_{side}_ns"])


def alone(row: Row) -> str:
    """Say which of two traces has a row that the other lacks."""
    return "only there" if row["count_a"] is None else "only before"


def _counts(row: Row) -> str:
    """Return how many kernels a step there were and are, where that differs."""
    before, after = row["count_a"], row["count_b"]
    if before is None or after is None or before == after:
        return ""
    return f"{before:,.4g} → {after:,.4g}"


def _fitted(cells: list[list[str]], width: int) -> list[list[str]]:
    """Return cells whose last one, a name, is shortened where a line would be too long."""
    used = sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[:-1])
    room = max(_SHORTEST_NAME, width - used)
    return [[*row[:-1], shorten(row[-1], room)] for row in cells]


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
