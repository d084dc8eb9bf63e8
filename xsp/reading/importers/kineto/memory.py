"""Adds to rows of the host what PyTorch's allocators gave and took back within each.

torch.profiler (`profile_memory=True`) notes each allocation and release with its address. So the
peak is the file's own, and so is what is alive at the peak: what was allocated in the step, and
not yet released.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import nearest
from xsp.provider import SpanRows
from xsp.reading.importers.kineto.nesting import Integers

_ALLOCATING = [Kind.LAYER.value, Kind.OP.value]
_NEVER = np.iinfo(np.int64).max
_KEY = ("address", "device_type", "device_id")


def with_memory(
    rows: pl.DataFrame, around: Integers, changes: pl.DataFrame, steps: SpanRows
) -> tuple[pl.DataFrame, SpanRows, int | None]:
    """Return rows and steps with their memory, and the most held at one time in the recording.

    Args:
        rows: Rows of the host of one process.
        around: Index of the row around each row, -1 for none.
        changes: Columns `start_ns`, `tid`, `memory_bytes`, which is negative for a release, and
            where known `address`, `device_type` and `device_id`. If there are none, memory was
            not recorded, and there are no columns.
        steps: The steps; none: the whole recording is one.
    """
    if not changes.height:
        return rows, steps, None
    changes = changes.with_columns(pl.col("tid", "memory_bytes").fill_null(0))
    changes = changes.sort("start_ns", maintain_order=True)
    memory = _Memory(changes, rows, around)
    size = changes["memory_bytes"].to_numpy()
    columns: dict[str, NDArray[Any]] = {
        "attr.allocated_bytes": memory.within(np.maximum(size, 0)),
        "attr.freed_bytes": memory.within(np.maximum(-size, 0)),
        "attr.peak_bytes": _peaks(changes, rows),
    }
    times = steps if steps.height else pl.DataFrame({"start_ns": [-_NEVER], "end_ns": [_NEVER]})
    if "address" in changes.columns and changes["address"].null_count() == 0:
        alive, reaching, peaks = _alive(changes, times)
        columns["attr.alive_at_peak_bytes"] = memory.own(alive)
        columns["attr.reaches_peak"] = memory.own(reaching) > 0
    else:
        peaks = _peaks(changes, times)
    elsewhere = ~rows["kind"].is_in(_ALLOCATING)
    rows = rows.with_columns(
        pl.Series(name, column).set(elsewhere, None) for name, column in columns.items()
    )
    if steps.height:
        steps = steps.with_columns(pl.Series("attr.peak_bytes", peaks))
    return rows, steps, None if steps.height else int(peaks[0])


class _Memory:
    """Sums of numbers that stand beside the changes of memory, for each row."""

    def __init__(self, changes: pl.DataFrame, rows: pl.DataFrame, around: Integers) -> None:
        allocating = rows["kind"].is_in(_ALLOCATING).to_numpy()
        self._above = nearest(around, around, allocating)
        self._allocating = allocating
        time, threads = changes["start_ns"].to_numpy(), changes["tid"].to_numpy()
        start, end, thread = (rows[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
        self._lanes = []
        for each in np.unique(threads):
            members, own = np.flatnonzero(thread == each), np.flatnonzero(threads == each)
            first = np.searchsorted(time[own], start[members], "left")
            last = np.maximum(np.searchsorted(time[own], end[members], "right"), first)
            self._lanes.append((members, own, first, last))

    def within(self, numbers: Integers) -> Integers:
        """Return the sum over the changes on each row's thread in its time."""
        total = np.zeros(len(self._above), np.int64)
        for members, own, first, last in self._lanes:
            sums = np.concatenate([[0], np.cumsum(numbers[own])])
            total[members] = sums[last] - sums[first]
        return total

    def own(self, numbers: Integers) -> Integers:
        """Return that sum without the changes in layers and operators inside."""
        total = np.where(self._allocating, self.within(numbers), 0)
        result = total.copy()
        inside = self._allocating & (self._above >= 0)
        np.subtract.at(result, self._above[inside], total[inside])
        return result


def _peaks(changes: pl.DataFrame, rows: pl.DataFrame) -> Integers:
    """Return the most held within each row, by all threads, above what was held at its start."""
    time = changes["start_ns"].to_numpy()
    level = np.concatenate([[0], np.cumsum(changes["memory_bytes"].to_numpy()), [0]])
    first = np.searchsorted(time, rows["start_ns"].to_numpy(), "left")
    last = np.maximum(np.searchsorted(time, rows["end_ns"].to_numpy(), "right"), first)
    # Each second value is the maximum from a pair's first place up to its second.
    bounds = np.stack([first, last + 1], axis=1).ravel()
    if not len(bounds):
        return np.zeros(0, np.int64)
    return np.asarray(np.maximum.reduceat(level, bounds)[::2] - level[first], np.int64)


def _alive(changes: pl.DataFrame, steps: pl.DataFrame) -> tuple[Integers, Integers, Integers]:
    """Return what is alive at the peak of each step, of what was allocated in the step.

    Returns:
        Bytes of each change that are alive; 1 for each change that reaches a peak, else 0; and
        the peak of each step.
    """
    key = [name for name in _KEY if name in changes.columns]
    size = changes["memory_bytes"].to_numpy()
    following = pl.DataFrame(
        {"place": np.arange(changes.height), "size": size, **{n: changes[n] for n in key}}
    ).select(
        pl.when(pl.col("size").shift(-1).over(key) < 0).then(pl.col("place").shift(-1).over(key))
    )
    released = following.to_series().fill_null(changes.height).to_numpy()
    alive, reaching = np.zeros(changes.height, np.int64), np.zeros(changes.height, np.int64)
    peaks = np.zeros(steps.height, np.int64)
    time = changes["start_ns"].to_numpy()
    bounds = steps.select("start_ns", "end_ns").iter_rows()
    for number, (start, end) in enumerate(bounds):
        first, last = np.searchsorted(time, [start, end], "left")
        made = first + np.flatnonzero(size[first:last] > 0)
        if not len(made):
            continue
        level = np.zeros(last - first + 1, np.int64)
        level[made - first] = size[made]
        np.subtract.at(level, np.minimum(released[made], last) - first, size[made])
        at = first + int(np.argmax(np.cumsum(level[:-1])))
        held = made[(made <= at) & (released[made] > at)]
        alive[held], reaching[at], peaks[number] = size[held], 1, size[held].sum()
    return alive, reaching, peaks
