"""Gives a place in time to rows of which only their order and duration are known.

Such a row has no `start_ns` and no `end_ns`, but a `duration_ns` and in `inside` a
pattern of the names of the operators that can enclose it. It is put into the first of
these operators, in the order of time, that still has room for it: where there are as
many of both, one into each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.provider import SpanRows

_NOWHERE = -(1 << 61)  # a thread that no row is on: what lies there finds no parent, and is counted


@dataclass(frozen=True, slots=True)
class Room:
    """An operator that can enclose rows without a time.

    Attributes:
        start_ns: Its start.
        end_ns: Its end.
        thread: Its thread.
    """

    start_ns: int
    end_ns: int
    thread: int


def place_by_order(rows: SpanRows) -> SpanRows:
    """Return all rows with a place in time.

    Args:
        rows: Those without one are in the order in which they happened.

    >>> from xsp.provider.row import concat_rows, span_rows
    >>> ops = span_rows({"kind": "op", "name": ["relu", "mm"], "start_ns": [0, 10],
    ...                  "end_ns": [8, 20], "thread": 1})
    >>> call = span_rows({"kind": ["call"], "name": ["SGEMM"], "start_ns": [None],
    ...                   "end_ns": [None], "duration_ns": [6], "inside": ["^mm$"]})
    >>> place_by_order(concat_rows([ops, call])).select("name", "start_ns", "end_ns").rows()
    [('relu', 0, 8), ('mm', 10, 20), ('SGEMM', 13, 19)]
    """
    timeless = rows["start_ns"].is_null()
    if not timeless.any():
        return rows
    known, unknown = rows.filter(~timeless), rows.filter(timeless)
    parts = [
        _placed(part, _rooms(known, str(pattern)))
        for (pattern,), part in unknown.group_by("inside", maintain_order=True)
    ]
    return pl.concat([known, *parts])


def _rooms(known: SpanRows, pattern: str) -> list[Room]:
    """Return the rows that a pattern fits and that hold no other such, by time."""
    fitting = known.filter(
        pl.col("name").str.contains(pattern) & pl.col("thread").is_not_null()
    ).sort(["start_ns", "end_ns"], descending=[False, True], maintain_order=True)
    innermost = pl.col("start_ns").shift(-1).over("thread").fill_null(pl.col("end_ns")) >= pl.col(
        "end_ns"
    )
    found = fitting.filter(innermost).select("start_ns", "end_ns", "thread")
    return [Room(*row) for row in found.iter_rows()]


def _placed(part: SpanRows, rooms: Sequence[Room]) -> SpanRows:
    duration = part["duration_ns"].fill_null(0).to_numpy()
    start = np.full(part.height, rooms[-1].end_ns if rooms else 0, np.int64)
    thread = np.full(part.height, _NOWHERE, np.int64)
    for room, first, last in _guests(duration.tolist(), rooms):
        before = np.cumsum(duration[first:last]) - duration[first:last]
        # At its end: before that, operators prepare their arguments, by other operators.
        start[first:last] = room.end_ns - 1 - int(duration[first:last].sum()) + before
        thread[first:last] = room.thread
    return part.with_columns(
        start_ns=pl.Series(start), end_ns=pl.Series(start + duration), thread=pl.Series(thread)
    )


def _guests(durations: Sequence[int], rooms: Sequence[Room]) -> Iterator[tuple[Room, int, int]]:
    """Yield each room that gets rows, with the first of them and the one after the last."""
    at = 0
    one_each = len(durations) == len(rooms) and all(
        duration < room.end_ns - room.start_ns
        for duration, room in zip(durations, rooms, strict=True)
    )
    for room in rooms:
        first, free = at, room.end_ns - room.start_ns - 1
        while at < len(durations) and durations[at] <= free and not (one_each and at > first):
            free -= durations[at]
            at += 1
        if at > first:
            yield room, first, at
