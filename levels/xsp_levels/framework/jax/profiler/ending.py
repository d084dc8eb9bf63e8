"""Operators as XLA recorded them in; when each of them really ended, and on which thread, out.

XLA hands some operators (convolutions, large products) to a pool of threads and goes on: what it
records is how long that took. It records `end: NAME` when such an operator has ended, but only
after whatever could begin thereupon has run. So an operator that had not ended when its own record
did lasted until the first operator that takes its result began, which XLA begins at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

END = "end: "

Integers = npt.NDArray[np.int64]


def ends(ops: pl.DataFrame, marks: pl.DataFrame, users: Sequence[Sequence[str]]) -> Integers:
    """Return the end of each operator, in the profiler's nanoseconds.

    Args:
        ops: Operators: `hlo_op`, `run_id`, `start_ns`, `end_ns`, and `_p`, the number by which
            their end is marked.
        marks: The marks of ends: `_c`, the number, and `start_ns`.
        users: Names of the operators that take the result of each operator.
    """
    marked = dict(marks.select("_c", "start_ns").drop_nulls().rows())
    begins: Mapping[tuple[int | None, str], list[int]] = defaultdict(list)
    rows = ops.select("run_id", "hlo_op", "start_ns", "end_ns", "_p").rows()
    for run, name, start, _, _ in rows:
        begins[run, name].append(start)
    for starts in begins.values():
        starts.sort()
    found = []
    for (run, _, _, end, number), taken in zip(rows, users, strict=True):
        told = marked.get(number)
        if number is None or (told is not None and told <= end):
            found.append(end)
            continue
        next_ones = [after for user in taken for after in _first(begins.get((run, user), ()), end)]
        found.append(min(next_ones, default=end if told is None else told))
    return np.array(found, np.int64)


def lanes(ops: pl.DataFrame, thread: pl.Series, end_ns: Integers) -> pl.Series:
    """Return the thread of each operator; a number below 0 for those that the pool ran.

    Only operators that overlap what their thread did meanwhile are moved: nothing tells which
    threads of the pool ran them.

    Args:
        ops: Operators with `start_ns` and `end_ns`, as they were recorded.
        thread: The thread that recorded each operator.
        end_ns: When it really ended.
    """
    found, starts = thread.to_list(), ops["start_ns"].to_list()
    begins: dict[int, list[int]] = defaultdict(list)
    for own, start in sorted(zip(found, starts, strict=True)):
        begins[own].append(start)
    recorded = ops["end_ns"].to_list()
    moved = [
        at
        for at, end in enumerate(end_ns.tolist())
        if any(recorded[at] <= each < end for each in _first(begins[found[at]], recorded[at]))
    ]
    free: list[int] = []  # when each lane is free again
    for at in sorted(moved, key=starts.__getitem__):
        lane = next((n for n, until in enumerate(free) if until <= starts[at]), len(free))
        free[lane : lane + 1] = [int(end_ns[at])]
        found[at] = -1 - lane
    return pl.Series(found, dtype=pl.Int64)


def _first(starts: Sequence[int], since: int) -> Sequence[int]:
    """Return the first of sorted times that is not before another; none if there is none."""
    at = bisect_left(starts, since)
    return starts[at : at + 1]
