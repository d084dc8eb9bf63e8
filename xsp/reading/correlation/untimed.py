"""Gives a start and an end to rows of which only an order and a duration are known.

An untimed row has no `start_ns` and no `end_ns`, but a `duration_ns`, and in `inside` a pattern
of the names of the operators that can enclose it. The row is put into the first of these
operators, in the order of time, that has enough time left. Where there are as many untimed rows
as operators, each operator gets one row.

    op "relu" 0-8, op "mm" 10-20, call "SGEMM" of 6 ns inside "^mm$": the call is put at 13-19
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.provider import SpanRows

_NOWHERE = -(1 << 61)  # stands for a thread without operators, whose rows become orphans


@dataclass(frozen=True, slots=True)
class Slot:
    """An operator that can enclose untimed rows.

    Attributes:
        start_ns: The operator's start.
        end_ns: The operator's end.
        thread: The operator's thread.
    """

    start_ns: int
    end_ns: int
    thread: int


def place_by_order(rows: SpanRows) -> SpanRows:
    """Return all rows with a start and an end.

    Args:
        rows: Rows; the untimed ones in the order in which they happened.

    >>> from xsp.provider import concat_rows, span_rows
    >>> ops = span_rows({"kind": "op", "name": ["relu", "mm"], "start_ns": [0, 10],
    ...                  "end_ns": [8, 20], "thread": 1})
    >>> call = span_rows({"kind": ["call"], "name": ["SGEMM"], "start_ns": [None],
    ...                   "end_ns": [None], "duration_ns": [6], "inside": ["^mm$"]})
    >>> place_by_order(concat_rows([ops, call])).select("name", "start_ns", "end_ns").rows()
    [('relu', 0, 8), ('mm', 10, 20), ('SGEMM', 13, 19)]
    """
    untimed = rows["start_ns"].is_null()
    if not untimed.any():
        return rows
    known, unknown = rows.filter(~untimed), rows.filter(untimed)
    parts = [
        _put(part, _slots(known, str(pattern)))
        for (pattern,), part in unknown.group_by("inside", maintain_order=True)
    ]
    return pl.concat([known, *parts])


def _slots(known: SpanRows, pattern: str) -> list[Slot]:
    """Return, by time, the innermost operators whose names fit a pattern."""
    fitting = known.filter(
        pl.col("name").str.contains(pattern) & pl.col("thread").is_not_null()
    ).sort(["start_ns", "end_ns"], descending=[False, True], maintain_order=True)
    innermost = pl.col("start_ns").shift(-1).over("thread").fill_null(pl.col("end_ns")) >= pl.col(
        "end_ns"
    )
    found = fitting.filter(innermost).select("start_ns", "end_ns", "thread")
    return [Slot(*row) for row in found.iter_rows()]


def _put(part: SpanRows, slots: Sequence[Slot]) -> SpanRows:
    duration = part["duration_ns"].fill_null(0).to_numpy()
    start = np.full(part.height, slots[-1].end_ns if slots else 0, np.int64)
    thread = np.full(part.height, _NOWHERE, np.int64)
    for slot, first, last in _filled(duration.tolist(), slots):
        before = np.cumsum(duration[first:last]) - duration[first:last]
        # At the end of the operator, which first prepares arguments by other operators.
        start[first:last] = slot.end_ns - 1 - int(duration[first:last].sum()) + before
        thread[first:last] = slot.thread
    return part.with_columns(
        start_ns=pl.Series(start), end_ns=pl.Series(start + duration), thread=pl.Series(thread)
    )


def _filled(durations: Sequence[int], slots: Sequence[Slot]) -> Iterator[tuple[Slot, int, int]]:
    """Yield each slot that gets rows, with the first of these rows and the one after the last."""
    at = 0
    one_each = len(durations) == len(slots) and all(
        duration < slot.end_ns - slot.start_ns
        for duration, slot in zip(durations, slots, strict=True)
    )
    for slot in slots:
        first, free = at, slot.end_ns - slot.start_ns - 1
        while at < len(durations) and durations[at] <= free and not (one_each and at > first):
            free -= durations[at]
            at += 1
        if at > first:
            yield slot, first, at
