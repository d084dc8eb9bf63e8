"""Adds operators, library calls and device work below the rows of a program's log."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import ON_DEVICE
from xsp.provider import BACKWARD, CALL, LAYER, OPTIMIZER, PART
from xsp.reading.program.cost import DEEP_ERROR
from xsp.reading.program.deep import Deep, corrected
from xsp.reading.program.events import TWIN
from xsp.reading.program.forest import Forest
from xsp.reading.program.tree import Label, Rows, firsts, of_clock

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_NINETY_FIVE = 1.96
# What windows of operators have whole: they begin with a call, and end with one. A part that holds
# calls, and a step, may be cut.
RECORDED_WHOLE = (CALL, TWIN, LAYER, BACKWARD, OPTIMIZER, PART)
_UNITS = (CALL, BACKWARD, OPTIMIZER)


def with_operators(rows: Rows, deep: Deep, forest: Forest) -> Rows:
    """Return the rows, and below them those of operators, library calls and device work.

    Args:
        rows: The rows of what the log has.
        deep: What was recorded in windows of operators.
        forest: The items.
    """
    if not deep.rows.height:
        return rows
    frame = deep.rows
    took = corrected(deep, forest.costs.operator, forest.costs.layer)
    device = frame.select(ON_DEVICE).to_series().to_numpy()
    of, parents, labels = _nodes(rows, deep)
    parent_of = deep.parent
    count, old = len(rows) + len(labels), len(rows)
    parent = np.append(rows.parent, parents)
    # What is timed counts for shares; where nothing is, what was recorded with attributes.
    timed = np.bincount(of[deep.timed], minlength=count) > 0
    used = deep.timed | ~timed[of]
    on_device = np.zeros(count, bool)
    on_device[of[device]] = True
    whole = np.append(_recorded_whole(rows, forest), np.ones(len(labels), bool))
    # Of a step, a region, or the block, a window may have a part: calls, and what ran after each of
    # them. So what ran there stands for as many as its call, pass or optimizer's step does. Where
    # it follows none, it is told by the time of this part.
    stands = np.where(whole[of[np.maximum(parent_of, 0)]], np.nan, _stands_for(rows, deep, forest))
    weight = np.nan_to_num(stands) * used
    sums = (np.bincount(of, each, count) for each in (took * used, used, weight, weight * took))
    seen = _Seen(*(np.asarray(each, float) for each in sums))
    threads = frame["thread"].fill_null(-1).to_numpy()
    first = np.full(count, -1)
    first[of[::-1]] = np.arange(len(of))[::-1]
    thread, part = _threads(
        np.append(rows.thread, threads[first[old:]]),
        of_clock(rows),
        deep, of, parent, on_device,
    )  # fmt: skip
    total, often = _scaled(rows, parent, part, whole, on_device, seen)
    missing = np.full(len(labels), np.nan)
    begin = firsts(of, frame["start_ns"].to_numpy(), count)
    busy = np.where(part[old:] < 1.0, total[old:] * part[old:], np.nan)
    return Rows(
        label=[*rows.label, *labels],
        parent=parent,
        total_ns=total,
        reach_ns=np.append(rows.reach_ns, total[old:] * _share_error(of, took, used, count)[old:]),
        count=often,
        seen=np.append(rows.seen, seen.count[old:].astype(np.int64)),
        inferred=np.append(rows.inferred, np.abs(often[old:] - seen.count[old:]) > 1e-6),
        measured_ns=np.append(
            rows.measured_ns,
            np.bincount(of, (frame["end_ns"] - frame["start_ns"]).to_numpy() * used, count)[old:],
        ),
        added_ns=np.append(rows.added_ns, np.zeros(len(labels))),
        device_ns=_device_sums(parent, total, on_device, old),
        least_ns=np.append(rows.least_ns, missing),
        median_ns=np.append(rows.median_ns, missing),
        most_ns=np.append(rows.most_ns, missing),
        kinds=[*rows.kinds, *[""] * len(labels)],
        begin_ns=np.append(rows.begin_ns, begin[old:]),
        thread=thread,
        busy_ns=np.append(rows.busy_ns, busy),
        errors=[*rows.errors, *({} for _ in labels)],
        found=[*rows.found, *_found(frame, of, old, count)],
        of_item=rows.of_item,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Sums over what windows recorded of each row, `[rows]`.

    Attributes:
        took_ns: Time.
        count: Number of occurrences.
        stands_for: Number of the program's occurrences that these stand for, where known.
        stands_for_ns: Time that these stand for.
    """

    took_ns: Floats
    count: Floats
    stands_for: Floats
    stands_for_ns: Floats


def _recorded_whole(rows: Rows, forest: Forest) -> Bools:
    """Return which rows of the log lie whole in the windows of operators that hold them."""
    kind, whole = forest.items.kind, np.zeros(len(rows), bool)
    units = _inside(rows, np.isin(kind, _UNITS).nonzero()[0])
    whole[rows.of_item[np.isin(kind, RECORDED_WHOLE)]] = True
    return whole & ((units == 0) | np.isin(np.arange(len(rows)), rows.of_item[kind != PART]))


def _scaled(
    rows: Rows, parent: Ints, part: Floats, whole: Bools, on_device: Bools, seen: _Seen
) -> tuple[Floats, Floats]:
    """Return time in ns and count of each row, scaled from the windows to the whole program."""
    old, count = len(rows), len(parent)
    total = np.append(rows.total_ns, np.zeros(count - old))
    often = np.append(rows.count, np.zeros(count - old))
    for row in range(old, count):
        around = int(parent[row])
        share = seen.took_ns[row] / seen.took_ns[around] if seen.took_ns[around] > 0 else 0.0
        mean = seen.took_ns[row] / max(seen.count[row], 1.0)
        often[row] = often[around] * seen.count[row] / max(seen.count[around], 1.0)
        if on_device[row]:
            total[row] = often[row] * mean
            continue
        most = total[around] * part[around] / part[row]
        total[row] = min(total[around] * share, most)
        if not whole[around] and seen.stands_for[row] > 0:
            often[row] = seen.stands_for[row]
            total[row] = min(seen.stands_for_ns[row], most)
        elif not whole[around] and mean > 0:
            often[row] = max(total[row] / mean, seen.count[row])
    return total, often


def _inside(rows: Rows, items: Ints) -> Ints:
    """Count the items among `items` that lie below each row, on whatever level."""
    result = np.bincount(rows.of_item[items], minlength=len(rows))
    own = result.copy()
    for row in range(len(rows) - 1, 0, -1):
        result[rows.parent[row]] += result[row]
    return result - own


def _stands_for(rows: Rows, deep: Deep, forest: Forest) -> Floats:
    """Return the number of the program's occurrences that each one in a window stands for.

    That is for as many as the call, pass or optimizer's step does that began last before it on its
    thread: how many of these there are for each that was recorded. NaN where none began.
    """
    kind, frame = forest.items.kind, deep.rows
    # A call is among what was recorded as its twin, the layer that it is.
    item = np.where(kind[deep.item] == TWIN, forest.parent[deep.item], deep.item)
    recorded = (deep.item >= 0) & np.isin(kind[item], _UNITS)
    row_of = rows.of_item[item]
    result = np.full(len(item), np.nan)
    start = frame["start_ns"].to_numpy()
    thread = frame["thread"].fill_null(-1).to_numpy()
    units = np.bincount(rows.of_item[np.isin(kind, _UNITS)], minlength=len(rows))
    # Where something was recorded in windows without what costs time, the others do not count.
    for timed in (False, True):
        chosen = recorded & deep.timed if timed else recorded
        seen = np.bincount(rows.of_item[np.unique(item[chosen])], minlength=len(rows))
        each = units / np.maximum(seen, 1)
        for one in np.unique(thread[chosen]).tolist():
            began = np.flatnonzero(chosen & (thread == one))
            began = began[np.argsort(start[began], kind="stable")]
            mine = np.flatnonzero((thread == one) & (deep.timed if timed else ~deep.timed))
            last = np.searchsorted(start[began], start[mine], side="right") - 1
            known = last >= 0
            result[mine[known]] = each[row_of[began[last[known]]]]
    return result


def _nodes(rows: Rows, deep: Deep) -> tuple[Ints, Ints, list[Label]]:
    """Return the row of everything in windows of operators, and parents and labels of new rows."""
    frame, parent = deep.rows, deep.parent
    kinds, names = frame["kind"].cast(pl.String).to_list(), frame["name"].to_list()
    phases = _column(frame, "phase")
    of = np.zeros(frame.height, np.int64)
    known: dict[Hashable, int] = {}
    parents: list[int] = []
    labels: list[Label] = []
    logged = deep.item >= 0
    of[logged] = rows.of_item[deep.item[logged]]
    for at in range(frame.height):
        around = int(parent[at])
        if not logged[at] and around >= 0:
            key = int(of[around]), kinds[at], names[at], phases[at]
            if key not in known:
                known[key] = len(rows) + len(labels)
                parents.append(key[0])
                labels.append(Label(Kind(kinds[at]), str(names[at])))
            of[at] = known[key]
    return of, np.array(parents, dtype=np.int64), labels


def _threads(
    thread: Ints, part: Floats, deep: Deep, of: Ints, parent: Ints, on_device: Bools
) -> tuple[Ints, Floats]:
    """Return the thread of each row, and how much of its time is that of a clock.

    Pools of threads run operators while the row around waits for them, so that they are on its
    thread, whichever they ran on.

    Args:
        thread: The thread that each row ran on.
        part: How much of the time of each row of the log is that of a clock.
        deep: What was recorded in windows of operators.
        of: The row of each of `deep.rows`.
        parent: Index of the row around each row.
        on_device: Whether a row is on a device.
    """
    count = len(thread)
    start, end = deep.rows["start_ns"].to_numpy(), deep.rows["end_ns"].to_numpy()
    at = np.flatnonzero((deep.parent >= 0) & ~on_device[of])
    lasted = np.bincount(of[at], (end - start)[at], count)
    shared = np.bincount(of[at], _shared(deep.parent[at], start[at], end[at]), count)
    clock = np.where(shared < (1.0 - 1e-6) * lasted, shared / np.maximum(lasted, 1.0), 1.0)
    thread, part = thread.copy(), np.append(part, np.ones(count - len(part)))
    for row in np.unique(of[at[deep.item[at] < 0]]).tolist():  # parents before children
        around = int(parent[row])
        if around:  # the block waits for nothing
            thread[row], part[row] = thread[around], part[around] * clock[row]
    return thread, part


def _shared(group: Ints, start: Ints, end: Ints) -> Floats:
    """Return how long each interval took, where those of its group that overlap share the time.

    >>> _shared(np.array([0, 0, 1]), np.array([0, 2, 5]), np.array([4, 6, 7]))
    array([3., 3., 2.])
    """
    count = len(group)
    time = np.concatenate([start, end])
    begins = np.repeat([1, -1], count)
    order = np.lexsort((time, np.tile(group, 2)))
    open_ = np.cumsum(begins[order])  # none is, from one group to the next
    passed = np.diff(time[order], append=0) * (open_ > 0) / np.maximum(open_, 1)
    until = np.empty(2 * count)
    until[order] = np.cumsum(passed) - passed
    return until[count:] - until[:count]


def _column(frame: pl.DataFrame, name: str) -> list[Any]:
    full = f"attr.{name}"
    return frame[full].to_list() if full in frame.columns else [None] * frame.height


def _share_error(of: Ints, took: Floats, used: Bools, count: int) -> Floats:
    """Return the relative error of each row's share: 15 %, and how much occurrences differ."""
    n = np.bincount(of, used, count)
    mean = np.bincount(of, took * used, count) / np.maximum(n, 1)
    square = np.bincount(of, used * (took - mean[of]) ** 2, count) / np.maximum(n - 1, 1)
    relative = np.sqrt(square / np.maximum(n, 1)) / np.maximum(mean, 1.0)
    sampling = np.where(n >= 2, np.minimum(_NINETY_FIVE * relative, 1.0), 1.0)
    return np.minimum(np.hypot(DEEP_ERROR, sampling), 1.0)


def _device_sums(parent: Ints, total: Floats, on_device: Bools, old: int) -> Floats:
    """Return the device time below each row; NaN where there is none."""
    count = len(parent)
    sums = np.where(on_device, total, 0.0)
    some = on_device.copy()
    for row in range(count - 1, old - 1, -1):
        around = int(parent[row])
        if some[row] and around >= 0:
            sums[around] += sums[row]
            some[around] = True
    for row in range(old - 1, 0, -1):
        if some[row]:
            sums[parent[row]] += sums[row]
            some[parent[row]] = True
    return np.where(some, sums, np.nan)


def _found(frame: pl.DataFrame, of: Ints, old: int, count: int) -> list[dict[str, Any]]:
    """Take each attribute of a new row from the first occurrence that has it."""
    columns = [name for name in frame.columns if name.startswith("attr.") and name != "attr.item"]
    places = [name for name in ("device", "stream") if name in frame.columns]
    table = (
        frame.select(*columns, *places)
        .with_columns(row=pl.Series(of))
        .filter(pl.col("row") >= old)
        .group_by("row")
        .agg(pl.all().drop_nulls().first())
    )
    result: list[dict[str, Any]] = [{} for _ in range(count - old)]
    for entry in table.iter_rows(named=True):
        row = entry.pop("row") - old
        result[row] = {
            name.removeprefix("attr."): value for name, value in entry.items() if value is not None
        }
    return result
