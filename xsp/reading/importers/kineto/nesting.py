"""Sorts host rows from outside in, mends the rows' ends, and finds the row around each.

Older versions of Kineto cut times down to whole µs, starts and durations each for themselves, so
that an event may seem to end after the event that it lies in, or to begin with it and last longer.
Of two rows that begin at once, the outer kind is the outer one; of one kind, that with the lower
number, as operators and Python's calls are numbered in the order in which they begin.
A call of the runtime, whose times are those of another clock, lies in what is open where it begins
if at least half of it does. The mark of a collective operation, which the call of the operation
makes, may last until the operation is done, long after the call; it ends with the call here.

    in µs      op 1: 100-124, op 2: 100-125, op 3: 120-121
    result     op 1: 100-124 > op 2: 100-124 > op 3: 120-121
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind

Integers = npt.NDArray[np.int64]

_INSIDE_NS = 1000  # of a mark in a call, for it to be the call's: times of the two may be rounded
_ORDER = {kind.value: kind.order for kind in Kind}


def nested(rows: pl.DataFrame) -> tuple[pl.DataFrame, Integers]:
    """Return rows sorted by thread and from outside in, and the index of the row around each.

    Args:
        rows: Columns `kind`, `start_ns`, `end_ns`, `thread`, `ordinal` (null: not numbered),
            `collective` (whether it is the mark of a collective operation), and any others.

    Returns:
        The rows, with ends moved to where they fit; and for each row the index of the row around
        it on its thread, -1 where there is none.
    """
    order = rows["kind"].replace_strict(_ORDER, return_dtype=pl.Int64).to_numpy()
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    thread, ordinal = rows["thread"].to_numpy(), rows["ordinal"].fill_null(0).to_numpy()
    sequence = np.lexsort((-end, ordinal, order, start, thread))
    slack = np.full(rows.height, 2 * resolution(start))
    marks = rows["collective"].fill_null(value=False).to_numpy()
    slack[marks] = np.maximum(slack, end - start - np.maximum(slack, _INSIDE_NS))[marks]
    calls = order == Kind.LAUNCH.order
    slack[calls] = np.maximum(slack[calls], (end - start)[calls] // 2)
    around, ends = _around(*(each[sequence] for each in (start, end, thread, slack)))
    return rows[sequence].with_columns(end_ns=pl.Series(ends, dtype=pl.Int64)), around


def resolution(times: Integers) -> int:
    """Return in what steps the times of a file are told, in ns: 1000 or 1."""
    return 1 if np.any(times % 1000) else 1000


def _around(
    starts: Integers, ends: Integers, threads: Integers, slacks: Integers
) -> tuple[Integers, list[int]]:
    """Return the index of the row around each row, and each row's end, cut where it is too late.

    Args:
        starts: Starts of rows, sorted by thread and from outside in.
        ends: Ends of the rows.
        threads: Threads of the rows.
        slacks: By how much each row may end too late.
    """
    mended, slack = ends.tolist(), slacks.tolist()
    around = []
    open_: list[int] = []
    before = None
    for row, (start, thread) in enumerate(zip(starts.tolist(), threads.tolist(), strict=True)):
        if thread != before:
            open_, before = [], thread
        while open_ and mended[open_[-1]] <= start:
            open_.pop()
        if open_ and mended[open_[-1]] < mended[row] <= mended[open_[-1]] + slack[row]:
            mended[row] = mended[open_[-1]]
        while open_ and mended[open_[-1]] < mended[row]:  # neither is around the other
            open_.pop()
        around.append(open_[-1] if open_ else -1)
        open_.append(row)
    return np.array(around, np.int64), mended
