"""Ends calls of which only the start is known; before `xsp.correlation.parent` sweeps.

Some libraries tell when a call begins, but not when it ends. What such a call does is
to launch work on a device: it lasts until the last launch that its thread makes after
its start, before it begins anything else that is no launch, and within what encloses
the call. A call that launches nothing stays an instant: how long it takes is not known.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.correlation.interval import Integers, enclosing, sort_outside_in
from xsp.level import Kind
from xsp.provider import KIND, SpanRows, concat_rows, orders

Bools = NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


def end_with_launches(roots: SpanRows, rows: SpanRows) -> SpanRows:
    """Return rows that all have an end; those that had none bear the rung of launches.

    Args:
        roots: Evaluations, sorted by time, none within another.
        rows: Everything that was seen meanwhile. One with a start, but a null `end_ns`,
            must have a thread to be ended.

    >>> from xsp.provider.row import span_rows
    >>> roots = span_rows({"kind": ["pipeline"], "name": ["predict"], "start_ns": [0],
    ...                    "end_ns": [90], "thread": 1})
    >>> rows = span_rows({"kind": ["op", "call", "launch", "launch"],
    ...                   "name": ["mm", "gemm", "go", "later"], "start_ns": [10, 12, 20, 70],
    ...                   "end_ns": [50, None, 30, 80], "thread": 1})
    >>> end_with_launches(roots, rows).select("end_ns", "rung").row(1)
    (30, 'launch')
    """
    endless = rows["end_ns"].is_null() & rows["start_ns"].is_not_null()
    endless &= pl.Series(orders(rows) < Kind.LAUNCH.order)
    if not endless.any():
        return rows
    marked = rows.with_columns(
        end_ns=pl.coalesce("end_ns", "start_ns"),
        rung=pl.when(endless).then(pl.lit(Kind.LAUNCH.value, dtype=KIND)).otherwise("rung"),
    )
    return marked.with_columns(end_ns=pl.Series(_ends(roots, marked, endless.to_numpy())))


def _ends(roots: SpanRows, rows: SpanRows, endless: Bools) -> Integers:
    """Return when each row ends."""
    everything = concat_rows([rows, roots])
    order = orders(everything)
    on_thread = everything["thread"].is_not_null().to_numpy()
    outer = np.flatnonzero(on_thread & (order < Kind.LAUNCH.order))
    launches = np.flatnonzero((everything["kind"] == Kind.LAUNCH.value).to_numpy() & on_thread)
    open_row = np.append(endless, np.full(roots.height, False))
    limit = _limits(everything, outer, open_row, roots)
    at = _last_begun(everything, outer, launches)
    end = everything["end_ns"].to_numpy(writable=True)
    inside = (at >= 0) & open_row[at] & (end[launches] <= limit[at])
    np.maximum.at(end, at[inside], end[launches[inside]])
    return end[: rows.height]


def _limits(everything: SpanRows, outer: Integers, open_row: Bools, roots: SpanRows) -> Integers:
    """Return up to when each row can last: the end of its evaluation, and what it lies in."""
    order = orders(everything)
    start = everything["start_ns"].to_numpy()
    # An instant would lie in what ends as it begins.
    end = everything["end_ns"].to_numpy() + open_row
    at = np.searchsorted(roots["start_ns"].to_numpy(), start, side="right") - 1
    limit = np.where(at < 0, _NEVER, roots["end_ns"].to_numpy()[np.maximum(at, 0)])
    lane = np.unique(everything["thread"].gather(outer).to_numpy(), return_inverse=True)[1]
    by_time = sort_outside_in(start[outer], end[outer], order[outer])
    rows = outer[by_time]
    around = enclosing(lane[by_time], start[rows], end[rows], order[rows])
    lies = around >= 0
    limit[rows[lies]] = np.minimum(limit[rows[lies]], end[rows[around[lies]]])
    return limit


def _last_begun(everything: SpanRows, outer: Integers, launches: Integers) -> Integers:
    """Return for each launch which of the `outer` rows its thread began last, or -1."""
    index = np.append(outer, launches)
    asking = np.arange(len(index)) >= len(outer)
    thread = everything["thread"].gather(index).to_numpy()
    start = everything["start_ns"].gather(index).to_numpy()
    order = np.lexsort((asking, start, thread))
    last = np.maximum.accumulate(np.where(asking[order], -1, np.arange(len(order))))
    same = (last >= 0) & (thread[order][last] == thread[order])
    found = np.empty_like(index)
    found[order] = np.where(same, index[order[last]], -1)
    return found[len(outer) :]
