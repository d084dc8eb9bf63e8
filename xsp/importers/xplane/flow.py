"""Host rows of several threads in; the range that asked for each row of another thread out.

A thread that hands work to a pool records a mark with a number (`_pt`, `_p`: the kind of the
number, and the number), and the thread that takes the work a mark or a range with the same number
(`_ct`, `_c`). So the file itself says what asked for the work:

    thread 1   step 0-90, call 10-20 holds the mark (15, 7) at 12
    thread 2   region of (15, 7) 30-60 holds op 35-50

The op belongs to what holds the mark and still runs when the op ends: the step.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt
import polars as pl

_START, STOP = "ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion"
_MARK = pl.col("start_ns") == pl.col("end_ns")
_KEY = ["type", "number"]


def askers(rows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the index of the row that asked for each row, -1 where none is known.

    Only rows that lie in no range of their own thread have one.

    Args:
        rows: `thread`, `start_ns`, `end_ns`, `name`, `_pt`, `_p`, `_ct`, `_c` of n events.
    """
    found = np.full(rows.height, -1, np.int64)
    rows = rows.select("thread", "start_ns", "end_ns", "name", "_pt", "_p", "_ct", "_c")
    numbered = rows.with_columns(row=pl.int_range(pl.len()))
    asking = _answered(_outermost(numbered), _regions(numbered)).join(
        _producers(numbered), on=_KEY, how="inner"
    )
    for (thread,), queries in asking.group_by("asker_thread"):
        lane = numbered.filter((pl.col("thread") == thread) & ~_MARK)
        at, answer = _holding(lane, queries)
        found[at] = answer
    found[found == np.arange(rows.height)] = -1
    return found


def _producers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return thread and time of what hands work over, by its number; the first of several."""
    made = rows.filter(pl.col("_p").is_not_null())
    return made.select(
        pl.col("_pt").fill_null(0).alias("type"),
        pl.col("_p").alias("number"),
        pl.col("thread").alias("asker_thread"),
        pl.col("start_ns").alias("asked_ns"),
    ).unique(_KEY, keep="first", maintain_order=True)


def _regions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return thread, start, end and number of all work that was taken over."""
    taken = rows.filter(pl.col("_c").is_not_null())
    stops = rows.filter(pl.col("name") == STOP).select("thread", stop="start_ns").sort("stop")
    starts = taken.filter(pl.col("name") == _START).sort("start_ns")
    regions = starts.join_asof(
        stops,
        left_on="start_ns",
        right_on="stop",
        by="thread",
        strategy="forward",
        check_sortedness=False,
    ).filter(pl.col("stop").is_not_null())
    ranges = taken.filter(~_MARK).with_columns(stop="end_ns")
    return pl.concat([regions, ranges.select(regions.columns)]).select(
        "thread",
        region_ns="start_ns",
        stop="stop",
        type=pl.col("_ct").fill_null(0),
        number=pl.col("_c"),
    )


def _outermost(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that lie in no other range of their thread."""
    ranges = rows.filter(~_MARK).select("row", "thread", "start_ns", "end_ns")
    ranges = ranges.sort("thread", "start_ns", -pl.col("end_ns"), maintain_order=True)
    before = pl.col("end_ns").cum_max().shift(1).over("thread")
    return ranges.filter(before.is_null() | (pl.col("end_ns") > before))


def _answered(rows: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the number of the region that each lies in; the others are left out."""
    return (
        rows.sort("start_ns")
        .join_asof(
            regions.sort("region_ns"),
            left_on="start_ns",
            right_on="region_ns",
            by="thread",
            check_sortedness=False,
        )
        .filter(pl.col("end_ns") <= pl.col("stop"))
    )


def _holding(lane: pl.DataFrame, queries: pl.DataFrame) -> tuple[array[int], array[int]]:
    """Return rows that were asked for, and the innermost row of a thread that holds each.

    A row holds what was asked for in its time and ended in its time.
    """
    ranges = lane.select("start_ns", "end_ns", "row").sort("start_ns", -pl.col("end_ns"))
    asked = queries.select("asked_ns", "end_ns", "row").sort("asked_ns")
    rows, answers, open_ranges = array("q"), array("q"), list[tuple[int, int]]()
    coming = ranges.iter_rows()  # not a list of all: there may be a million
    following = next(coming, None)
    for time, need, row in asked.iter_rows():
        while following is not None and following[0] <= time:
            start, end, number = following
            while open_ranges and open_ranges[-1][0] < start:
                open_ranges.pop()
            open_ranges.append((end, number))
            following = next(coming, None)
        holder = next((number for end, number in reversed(open_ranges) if end >= need), -1)
        rows.append(row)
        answers.append(holder)
    return rows, answers
