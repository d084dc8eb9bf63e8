"""Gives an end to calls of which only the start was recorded.

Some libraries tell when a call begins, but not when the call ends. Such a call launches work on
a device, so it ends with a launch: the last launch that its thread makes after the call's start,
before the thread begins any row that is no launch, and within the row that encloses the call.
A call that launches nothing stays an instant: its duration is not known.

    thread 1:  op "mm" 10-50, call "gemm" from 12, launches 20-30 and 70-80
               "gemm" ends at 30; the second launch is outside of "mm"
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import orders
from xsp.provider import PROVENANCE, Provenance, SpanRows, concat_rows
from xsp.reading.correlation.interval import Integers, begun, enclosing

Bools = NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


def end_with_launches(roots: SpanRows, rows: SpanRows) -> SpanRows:
    """Return rows that all have an end; `provenance` marks the rows that had none.

    Args:
        roots: Steps, sorted by time, none within another.
        rows: All other rows of the visit. A row with a start, but a null `end_ns`, must have
            a thread.

    >>> from xsp.provider import span_rows
    >>> roots = span_rows({"kind": ["region"], "name": ["predict"], "start_ns": [0],
    ...                    "end_ns": [90], "thread": 1})
    >>> rows = span_rows({"kind": ["op", "call", "launch", "launch"],
    ...                   "name": ["mm", "gemm", "go", "later"], "start_ns": [10, 12, 20, 70],
    ...                   "end_ns": [50, None, 30, 80], "thread": 1})
    >>> end_with_launches(roots, rows).select("end_ns", "provenance").row(1)
    (30, 'ended_by_launch')
    """
    endless = rows["end_ns"].is_null() & rows["start_ns"].is_not_null()
    endless &= pl.Series(orders(rows) < Kind.LAUNCH.order)
    if not endless.any():
        return rows
    ended = pl.lit(Provenance.ENDED_BY_LAUNCH.value, dtype=PROVENANCE)
    marked = rows.with_columns(
        end_ns=pl.coalesce("end_ns", "start_ns"),
        provenance=pl.when(endless).then(ended).otherwise("provenance"),
    )
    return marked.with_columns(end_ns=pl.Series(_ends(roots, marked, endless.to_numpy())))


def _ends(roots: SpanRows, rows: SpanRows, endless: Bools) -> Integers:
    everything = concat_rows([rows, roots])
    order = orders(everything)
    on_thread = everything["thread"].is_not_null().to_numpy()
    outer = np.flatnonzero(on_thread & (order < Kind.LAUNCH.order))
    launches = np.flatnonzero((everything["kind"] == Kind.LAUNCH.value).to_numpy() & on_thread)
    open_row = np.append(endless, np.full(roots.height, False))
    limit = _limits(everything, outer, open_row, roots)
    # The row that each launch's thread began last before the launch, or -1.
    (lane, start), moments = (
        [everything[name].gather(rows).to_numpy() for name in ("thread", "start_ns")]
        for rows in (outer, launches)
    )
    found = begun(lane, start, (moments[0], moments[1]))
    at = np.where(found < 0, -1, outer[found])
    end = everything["end_ns"].to_numpy(writable=True)
    inside = (at >= 0) & open_row[at] & (end[launches] <= limit[at])
    np.maximum.at(end, at[inside], end[launches[inside]])
    return end[: rows.height]


def _limits(everything: SpanRows, outer: Integers, open_row: Bools, roots: SpanRows) -> Integers:
    """Return the latest end of each row: the end of its step, or of its enclosing row."""
    start = everything["start_ns"].to_numpy()
    # An instant would lie in a row that ends as the instant begins.
    end = everything["end_ns"].to_numpy() + open_row
    at = np.searchsorted(roots["start_ns"].to_numpy(), start, side="right") - 1
    limit = np.where(at < 0, _NEVER, roots["end_ns"].to_numpy()[np.maximum(at, 0)])
    thread = everything["thread"].gather(outer).to_numpy()
    around = enclosing(thread, start[outer], end[outer], orders(everything)[outer])
    enclosed = around >= 0
    rows = outer[enclosed]
    limit[rows] = np.minimum(limit[rows], end[outer[around[enclosed]]])
    return limit
