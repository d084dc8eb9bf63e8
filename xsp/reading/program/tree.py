"""Sums items into the rows of a program's tree, and infers times that no window recorded.

Items of one label below one row are one row. Calls, passes, steps, parts and regions are all seen.
Layers are seen in most windows: a row of layers has the time of those that were seen, in proportion
to that of the calls around all of them. Operators and what is deeper are seen in few windows: they
have their share of the row around them. So no row is longer than the row around it.

    calls 100 × 10 ms        layers in 90 of them: fc 90 × 4 ms        fc ~100 × 4 ms
    in 5 windows of operators: fc 8 ms, in it addmm 6 ms               addmm 3 of fc's 4 ms
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import covered, numbered
from xsp.provider import REGION
from xsp.reading.program.cost import DEEP_ERROR
from xsp.reading.program.forest import Forest
from xsp.text import duration

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MOST_NAMES, FURTHER = 500, "further parts"  # below one row, and the one row of all others
_NINETY_FIVE = 1.96
# Times differ so much between two kinds of occurrences that a mean says nothing of either.
_UNLIKE, _LEAST_PART = 4.0, 0.02


@dataclass(frozen=True, slots=True)
class Label:
    """The properties that all items of one row share; they stand below one other row.

    Attributes:
        kind: Kind of span.
        name: Name of the row.
        group: Number of the group whose members they are; -1: none.
        attributes: What is known of them besides.
    """

    kind: Kind
    name: str
    group: int = -1
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class Rows:
    """The rows of a tree, parents before children; `[rows]`.

    Attributes:
        label: What each row is.
        parent: Index of the row around each, -1 for the block.
        total_ns: Time of all occurrences, without xsp.
        reach_ns: Half of its 95 % interval; 0: it is simply what the clock had.
        count: How many occurrences; not whole where it was inferred.
        seen: How many of them the row rests on.
        inferred: Whether the count was inferred.
        measured_ns: Time with xsp.
        added_ns: What was subtracted.
        device_ns: Time on devices below it; NaN: none.
        least_ns: The shortest occurrence; NaN where not known.
        median_ns: The median; `most_ns`: the longest.
        kinds: The two kinds of occurrences, where they are unlike.
        begin_ns: When the first began.
        thread: Identifier of the first one's thread, or, if that ran or waited for it, of the row
            around; -1: on a device.
        busy_ns: Time in which at least one ran, where several ran at once, or, of what else ran
            meanwhile in the row around, their part of that time; NaN elsewhere.
        errors: How many of them raised which exception.
        found: What providers say of it.
    """

    label: list[Label]
    parent: Ints
    total_ns: Floats
    reach_ns: Floats
    count: Floats
    seen: Ints
    inferred: Bools
    measured_ns: Floats
    added_ns: Floats
    device_ns: Floats
    least_ns: Floats
    median_ns: Floats
    most_ns: Floats
    kinds: list[str]
    begin_ns: Ints
    thread: Ints
    busy_ns: Floats
    errors: list[dict[str, int]]
    found: list[dict[str, Any]]
    of_item: Ints  # the row of each item

    def __len__(self) -> int:
        return len(self.label)


def rows_of(
    forest: Forest,
    labels: Sequence[Label],
    label: Ints,
    names: tuple[Sequence[int], Sequence[str]],
    recorded: tuple[Bools, Bools],
) -> Rows:
    """Return the rows of calls, layers, steps, parts and regions.

    Args:
        forest: The items with their times.
        labels: The labels.
        label: Index of the label of each item.
        names: Identifier of the thread of each log, and names of exceptions, by number less 1.
        recorded: Whether layers, and whether operators, were recorded where each item began.
    """
    (threads, exceptions), (layered, deep) = names, recorded
    of_item, parent, row_label, labels = _aggregate(forest, labels, label)
    count = len(parent)
    items, took, weight = forest.items, forest.took_ns, forest.weight
    is_layer = forest.call >= 0
    factor, often, timed = _scales(forest, of_item, count, layered, deep)
    own_factor = np.ones(count)
    own_often = np.ones(count)
    layer_row = np.zeros(count, bool)
    layer_row[of_item[is_layer]] = True
    at = np.flatnonzero(is_layer)
    own_factor[of_item[at]] = factor[of_item[forest.call[at]]]
    own_often[of_item[at]] = often[of_item[forest.call[at]]]
    used = ~is_layer | _timed_layers(forest, of_item, layered, deep)
    total = np.bincount(of_item, took * weight * used, count) * own_factor
    plain = np.bincount(of_item, weight, count)
    seen = np.bincount(of_item, minlength=count)
    rows = Rows(
        label=[labels[n] for n in row_label],
        parent=parent,
        total_ns=total,
        reach_ns=np.zeros(count),
        count=np.where(layer_row, plain * own_often, plain),
        seen=seen,
        inferred=(np.abs(own_often - 1.0) > 1e-9) | (np.abs(plain - seen) > 1e-6),
        measured_ns=_sums(of_item, items.end - items.begin, count),
        added_ns=_sums(of_item, forest.added_ns, count),
        device_ns=np.full(count, np.nan),
        least_ns=np.full(count, np.nan),
        median_ns=np.full(count, np.nan),
        most_ns=np.full(count, np.nan),
        kinds=[""] * count,
        begin_ns=firsts(of_item, items.begin, count),
        thread=np.array([0] * count),
        busy_ns=np.full(count, np.nan),
        errors=[{} for _ in range(count)],
        found=[{} for _ in range(count)],
        of_item=of_item,
    )
    first = np.full(count, -1)
    first[of_item[::-1]] = np.arange(len(of_item))[::-1]
    known = np.array([*threads, 0])
    rows.thread = known[np.minimum(items.thread[first], len(threads))]
    within = items.thread[first] == items.thread[forest.parent[first]]
    for row in np.flatnonzero(within[1:]) + 1:  # parents before children
        rows.thread[row] = rows.thread[parent[row]]
    rows.reach_ns = _reach(forest, rows, deep, used, timed)
    _spread(rows, took, of_item, deep, used)
    _concurrency(forest, rows)
    _note_awaiting(forest, rows)
    _raised(rows, items.raised, exceptions)
    return rows


def _aggregate(
    forest: Forest, labels: Sequence[Label], label: Ints
) -> tuple[Ints, Ints, list[int], list[Label]]:
    """Return the row of each item, and parent and label of each row."""
    labels = [*labels, Label(Kind.REGION, FURTHER)]
    of_item = np.zeros(len(label), np.int64)
    parents: list[Ints] = []
    row_labels: list[int] = []
    offset = 0
    for items in forest.levels:
        above = of_item[forest.parent[items]] if offset else np.full(len(items), -1)
        own = _with_few_names(above, label[items].copy(), labels)
        first, of = numbered(above, own)
        by_time = np.argsort(first)
        rank = np.empty(len(first), np.int64)
        rank[by_time] = np.arange(len(first))
        of_item[items] = offset + rank[of]
        parents.append(above[first[by_time]])
        row_labels += own[first[by_time]].tolist()
        offset += len(first)
    return of_item, np.concatenate(parents), row_labels, list(labels)


def _with_few_names(above: Ints, own: Ints, labels: Sequence[Label]) -> Ints:
    """Return labels; those beyond the first 500 below one row become `further parts`."""
    first, _ = numbered(above, own)
    if len(first) <= _MOST_NAMES:
        return own
    rank: dict[int, int] = {}
    for at in np.sort(first).tolist():
        around, what = int(above[at]), int(own[at])
        rank[around] = rank.get(around, 0) + 1
        if rank[around] > _MOST_NAMES and labels[what].group < 0:
            own[(above == around) & (own == what)] = len(labels) - 1
    return own


def _timed_layers(forest: Forest, of_item: Ints, layered: Bools, deep: Bools) -> Bools:
    """Return which layers' times count: those in windows of layers, where a row has any such."""
    is_layer = forest.call >= 0
    call = np.maximum(forest.call, 0)
    plain = _has_plain(forest, of_item, layered, deep)
    return is_layer & layered[call] & ~(deep[call] & plain[call])


def _has_plain(forest: Forest, of_item: Ints, layered: Bools, deep: Bools) -> Bools:
    """Return for each call, or pass, whether others of its row were recorded without operators."""
    return np.isin(of_item, of_item[layered & ~deep & (forest.call < 0)])


def _scales(
    forest: Forest, of_item: Ints, count: int, layered: Bools, deep: Bools
) -> tuple[Floats, Floats, Floats]:
    """Return the factors of layers' times and counts, for each row of calls or passes.

    Also returned is how many of these calls have layers whose times count.
    """
    holds = forest.call < 0
    took = forest.took_ns * forest.weight
    whole = np.bincount(of_item, took * holds, count)
    number = np.bincount(of_item, forest.weight * holds, count)
    counted = layered & holds
    timed = counted & ~(deep & _has_plain(forest, of_item, layered, deep))
    # Layers are weighted as the calls are that they lie in.
    part = np.bincount(of_item, took * timed, count)
    seen = np.bincount(of_item, forest.weight * counted, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(part > 0, whole / part, 1.0)
        often = np.where(seen > 0, number / seen, 1.0)
    return factor, often, _sums(of_item, timed.astype(float), count)


def _sums(of: Ints, values: Ints | Floats, count: int) -> Floats:
    return np.bincount(of, values, count).astype(np.float64)


def firsts(of: Ints, values: Ints, count: int) -> Ints:
    """Return the least value of each row.

    Args:
        of: The row of each value.
        values: The values.
        count: How many rows there are.
    """
    result = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(result, of, values)
    return result


def _reach(forest: Forest, rows: Rows, deep: Bools, used: Bools, timed: Floats) -> Floats:
    """Return half of the 95 % interval of each row's time.

    What is subtracted is in doubt by the standard error of the cost; in windows of operators by
    15 % of it besides. What was inferred is in doubt by how much occurrences differ; of layers it
    is calls that are a sample, for layers of one call depend on each other.
    """
    count, size = len(rows), len(rows.of_item)
    of, added, costs = rows.of_item, forest.learned_ns, forest.costs
    layer = min(_NINETY_FIVE * costs.layer_se / max(costs.layer, 1.0), 1.0)
    operator = min(_NINETY_FIVE * costs.operator_se / max(costs.operator, 1.0), 1.0)
    doubt = np.where(deep, np.hypot(DEEP_ERROR, operator), layer) * added * used
    is_layer = forest.call >= 0
    holder = np.arange(count)
    holder[of[is_layer]] = of[forest.call[is_layer]]
    below = holder != np.arange(count)  # rows of layers
    one = np.where(is_layer, forest.call, np.arange(size))
    pairs, which = np.unique(of[used] * size + one[used], return_inverse=True)
    sample = np.bincount(which, forest.took_ns[used])
    row = pairs // max(size, 1)
    n = np.maximum(np.where(below, timed[holder], np.bincount(row, minlength=count)), 1)
    sums, squares = np.bincount(row, sample, count), np.bincount(row, sample**2, count)
    variance = np.maximum(squares - sums**2 / n, 0.0) / np.maximum(n - 1, 1)
    whole = rows.count[holder]
    part = np.clip(1.0 - n / np.maximum(whole, 1e-9), 0.0, 1.0)
    sampling = _NINETY_FIVE * whole * np.sqrt(variance / n * part)
    sampling = np.where(n >= 2, sampling, rows.total_ns * (part > 0.01))
    reach = np.bincount(of, doubt, count) * np.where(below, np.maximum(whole / n, 1.0), 1.0)
    return np.where(rows.inferred | below, np.hypot(reach, sampling), reach)


def _spread(rows: Rows, took: Floats, of: Ints, deep: Bools, used: Bools) -> None:
    """Note the shortest, the median and the longest occurrence, those among operators left out."""
    frame = pl.DataFrame({"row": of, "took": took, "deep": deep, "used": used})
    table = (
        frame.filter("used")
        .with_columns(plain=(~pl.col("deep")).any().over("row"))
        .filter(~pl.col("deep") | ~pl.col("plain"))
        .group_by("row")
        .agg(
            pl.col("took").min().alias("least"),
            pl.col("took").median().alias("median"),
            pl.col("took").max().alias("most"),
            pl.len().alias("n"),
        )
    )
    at = table["row"].to_numpy()
    rows.least_ns[at] = table["least"].to_numpy()
    rows.median_ns[at] = table["median"].to_numpy()
    rows.most_ns[at] = table["most"].to_numpy()
    wide = table.filter(pl.col("most") > _UNLIKE * pl.col("least"), pl.col("n") >= 4)
    if not wide.height:
        return
    chosen = np.isin(of, wide["row"].to_numpy()) & used
    order = np.lexsort((took[chosen], of[chosen]))
    own, values = of[chosen][order], took[chosen][order]
    starts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    for begin, end in zip(starts, [*starts[1:], len(own)], strict=True):
        row = int(own[begin])
        rows.kinds[row] = two_kinds(values[begin:end], float(rows.count[row]))


def two_kinds(values: Floats, count: float) -> str:
    """Return the number of occurrences of each of two kinds; nothing where there is one kind.

    Args:
        values: Times of occurrences in ns, sorted.
        count: How many there are in all.

    >>> two_kinds(np.array([1.8e6] * 20 + [440e6] * 4), 24)
    '4 × 440 ms, 20 × 1.80 ms'
    >>> two_kinds(np.array([1.0, 1.2, 1.4, 1.6, 1.8]), 5)
    ''
    """
    values = np.maximum(values, 1.0)
    ratio = values[1:] / values[:-1]
    if not len(ratio):
        return ""
    at = int(ratio.argmax()) + 1
    low, high = values[:at], values[at:]
    if high.mean() < _UNLIKE * low.mean() or ratio[at - 1] < 2.0:
        return ""
    if high.sum() < _LEAST_PART * values.sum():
        return ""
    scale = count / len(values)
    about = "~" if abs(scale - 1.0) > 1e-6 else ""
    parts = [
        f"{about}{max(round(len(some) * scale), 1):,} × {duration(float(some.mean()))}"
        for some in (high, low)
    ]
    return ", ".join(parts)


def _concurrency(forest: Forest, rows: Rows) -> None:
    """Note for how long at least one occurrence of each row ran, where several ran at once.

    Tasks of an event loop take turns with unlike ones beside them, too: each of these rows has its
    share of the time that they take together.
    """
    items = forest.items
    several = len(np.unique(items.thread)) > 1 or bool(forest.alone.any())
    if not several:
        return
    union = covered(rows.of_item, items.begin, items.end, len(rows)).astype(float)
    if forest.alone.any():
        _share_turns(forest, rows, union)
    at_once = union < 0.999 * rows.measured_ns
    share = union / np.maximum(rows.measured_ns, 1.0)
    rows.busy_ns = np.where(at_once, rows.total_ns * share, np.nan)
    _note_elsewhere(forest, rows)


def _note_awaiting(forest: Forest, rows: Rows) -> None:
    """Note how long an occurrence of each region waited on average, where that is known of all.

    What xsp added is in waits and in work as the time without xsp is.
    """
    items = forest.items
    at = np.flatnonzero(items.kind == REGION)
    part = forest.took_ns[at] / np.maximum(items.end[at] - items.begin[at], 1)
    waited, of = forest.awaiting_ns[items.number[at] - 1] * part, rows.of_item[at]
    for row in np.unique(of[np.isfinite(waited)]).tolist():
        mean = float(waited[of == row].mean())
        if np.isfinite(mean):
            rows.found[row]["awaiting_ns"] = mean


def _note_elsewhere(forest: Forest, rows: Rows) -> None:
    """Note the time in which other threads worked for a row while its own thread did not."""
    items = forest.items
    inside = forest.parent >= 0
    above, of = rows.parent[rows.of_item[inside]], rows.of_item[inside]
    begin, end = items.begin[inside], items.end[inside]
    own = (rows.thread[of] == rows.thread[above]) | (of == above)
    every = covered(above, begin, end, len(rows))
    mine = covered(above[own], begin[own], end[own], len(rows))
    for row in np.unique(above[~own & (above >= 0)]).tolist():
        rows.found[row]["elsewhere_ns"] = int(every[row] - mine[row])


def _share_turns(forest: Forest, rows: Rows, union: Floats) -> None:
    """Divide the time that tasks and what is beside them take together among the tasks' rows."""
    items, parent = forest.items, rows.parent
    tasks = np.zeros(len(rows), bool)
    tasks[rows.of_item[forest.alone]] = True
    holds = np.zeros(len(rows), bool)
    holds[parent[tasks]] = True
    around = np.where(forest.parent >= 0, parent[rows.of_item], 0)
    beside = (
        (forest.parent >= 0) & holds[around] & (rows.thread[rows.of_item] == rows.thread[around])
    )
    whole = covered(around[beside], items.begin[beside], items.end[beside], len(rows))
    below = parent >= 0
    same = below & (rows.thread == rows.thread[parent])
    others = np.bincount(parent[same & ~tasks], union[same & ~tasks], len(rows))
    theirs = np.bincount(parent[same & tasks], union[same & tasks], len(rows))
    share = np.clip(whole - others, 0.0, None) / np.maximum(theirs, 1.0)
    of_clock_ns = union.copy()
    of_clock_ns[same & tasks] *= np.minimum(share, 1.0)[parent[same & tasks]]
    # Tasks in a task share what that one has of the clock.
    for row in np.flatnonzero(same & tasks).tolist():  # parents before children
        above = int(parent[row])
        of_clock_ns[row] *= float(of_clock_ns[above]) / max(float(union[above]), 1.0)
    union[:] = of_clock_ns


def _raised(rows: Rows, raised: Ints, exceptions: Sequence[str]) -> None:
    at = np.flatnonzero(raised)
    for item in at.tolist():
        number = int(raised[item]) - 1
        name = exceptions[number] if number < len(exceptions) else "an exception"
        errors = rows.errors[int(rows.of_item[item])]
        errors[name] = errors.get(name, 0) + 1


def within_parents(rows: Rows) -> None:
    """Shorten inferred rows that are longer than the row around them.

    Nor has a row more of the clock than the row around it. Rows beside their parent (on other
    threads, on devices) are not compared.
    """
    count = len(rows)
    clock, beside = of_clock(rows), _beside(rows)
    at_once = clock < 1.0
    _share_clock(rows, clock, ~beside)
    rows.busy_ns = np.where(clock < 1.0, rows.total_ns * clock, rows.busy_ns)
    part = clock / clock[rows.parent]
    # Of calls that ran at once each has its own reading.
    compared = ~beside & (~at_once | rows.inferred | at_once[rows.parent])
    children: list[list[int]] = [[] for _ in range(count)]
    for row in np.flatnonzero(compared).tolist():
        children[int(rows.parent[row])].append(row)
    for row in range(count):
        mine = np.array(children[row], dtype=np.int64)
        inside, whole = rows.total_ns[mine] * part[mine], float(rows.total_ns[row])
        own = float(inside.sum())
        if own > whole > 0:
            guessed = mine[rows.inferred[mine]]
            known = float(inside[~rows.inferred[mine]].sum())
            if known < whole:
                factor = (whole - known) / (own - known)
            else:
                guessed, factor = mine, whole / own
            rows.total_ns[guessed] *= factor
            rows.busy_ns[guessed] *= factor


def _share_clock(rows: Rows, clock: Floats, own: Bools) -> None:
    """Give no row more of the clock than the row around it, nor all rows in one together.

    What xsp added is subtracted from each of several that ran at once, and once from what is
    around them: so they may have more of the clock than that.

    Args:
        rows: The rows.
        clock: Their parts of the clock, which are changed.
        own: Which rows are on the thread of the row around them.
    """
    if not (clock < 1.0).any():
        return
    at_once, inside = clock < 1.0, np.flatnonzero(own)
    order = inside[np.argsort(rows.parent[inside], kind="stable")]
    starts = np.flatnonzero(np.diff(rows.parent[order], prepend=-1))
    for mine in np.split(order, starts[1:]):  # parents before children
        around = int(rows.parent[mine[0]])
        clock[mine] = np.minimum(clock[mine], clock[around])
        crowd = mine[at_once[mine]]
        if at_once[around] or not len(crowd):
            continue
        whole = float(rows.total_ns[around] * clock[around])
        taken, theirs = (float(rows.total_ns[each] @ clock[each]) for each in (mine, crowd))
        if taken > whole:
            clock[crowd] *= max(whole - taken + theirs, 0.0) / theirs
            clock[crowd] = np.maximum(clock[crowd], 1e-9)


def self_times(rows: Rows) -> Floats:
    """Return the time of each row less that of the rows below it on its thread."""
    on_clock = rows.total_ns * of_clock(rows)
    inside = np.where(_beside(rows), 0.0, on_clock)
    taken = np.bincount(rows.parent[1:], inside[1:], len(rows))
    return np.maximum(on_clock - taken, 0.0)


def of_clock(rows: Rows) -> Floats:
    """Return how much of the time of each row is that of a clock: half, where two ran at once.

    Of a row without any time it is all; it is never nothing.
    """
    busy = np.where(np.isfinite(rows.busy_ns), rows.busy_ns, rows.total_ns)
    part = np.where(busy < rows.total_ns, busy / np.maximum(rows.total_ns, 1e-9), 1.0)
    return np.maximum(part, 1e-9)


def _beside(rows: Rows) -> Bools:
    """Return which rows are not on the thread of the row around them; of all, the first is none."""
    result: Bools = (rows.thread < 0) | (rows.thread != rows.thread[rows.parent])
    result[0] = True
    return result
