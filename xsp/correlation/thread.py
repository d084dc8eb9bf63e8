"""Gives rows that know no thread, or no exact time, their place: rows in, the same rows out.

Some libraries tell what they did, and when, but not on which thread, and by a clock
that is coarser than ours. Two rules place all such rows at once:

* A row of a library call, or deeper, with neither thread nor device is on the thread
  that has an operator open at its time. Where several threads have one, the row is taken to
  be on its evaluation's thread, is marked as ambiguous and counted; where no thread has one,
  the row is on its evaluation's thread too.
* A row whose times are uncertain (`uncertainty_ns`) lies in the innermost row that
  encloses it but for that uncertainty, and is cut to fit. Rows that are certain are
  never moved.

    thread 2:  op "conv2d" 10-50
    no thread: call "convolution" 9-30, uncertain by 2: on thread 2, from 10 to 30
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.correlation.interval import Integers, enclosing
from xsp.evaluation import nearest
from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, mark_ambiguous, on_device, orders

_NOBODY = -(1 << 62)  # thread of rows in an evaluation that knows none itself


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Threads that rows may be on, and which row would enclose them there; n entries each.

    Attributes:
        row: Index of the row.
        thread: Thread that the row may be on.
        around: Index of the innermost row around it on that thread, -1 where there is none.
    """

    row: Integers
    thread: Integers
    around: Integers


def locate(roots: SpanRows, rows: SpanRows) -> tuple[SpanRows, int]:
    """Return rows on their threads and at their times, and how many may be on several threads.

    Args:
        roots: Evaluations, sorted by time, none within another.
        rows: Everything that was seen meanwhile.

    >>> from xsp.provider.row import span_rows
    >>> roots = span_rows({"kind": ["pipeline"], "name": ["predict"], "thread": [1],
    ...                    "start_ns": [0], "end_ns": [90]})
    >>> rows = span_rows({"kind": ["op", "call"], "name": ["conv2d", "convolution"],
    ...                   "start_ns": [10, 9], "end_ns": [50, 30], "thread": [2, None],
    ...                   "uncertainty_ns": [None, 2]})
    >>> locate(roots, rows)[0].select("start_ns", "end_ns", "thread").rows()
    [(10, 50, 2), (10, 30, 2)]
    """
    order = orders(rows)
    on_host = ~on_device(rows)
    no_thread = rows["thread"].is_null().to_numpy() & on_host & (order > Kind.OP.order)
    uncertain = (rows["uncertainty_ns"] > 0).fill_null(value=False).to_numpy() & on_host
    if not np.any(no_thread | uncertain):
        return rows, 0
    everything = concat_rows([rows, roots])
    own = _own_threads(roots, rows)
    known = np.append(~(no_thread | uncertain) & on_host, np.full(roots.height, True))
    pairs = _questions(everything, own, no_thread, uncertain, known)
    candidates = _candidates(everything, own, pairs, np.flatnonzero(known))
    thread, several = _choose(candidates, own, no_thread, np.append(order, orders(roots)))
    fitted = _fitted(rows, everything, candidates, thread, no_thread, uncertain)
    return mark_ambiguous(fitted, several), len(several)


def _own_threads(roots: SpanRows, rows: SpanRows) -> Integers:
    """Return the thread of each row, or of its evaluation; then those of the roots."""
    of_root = roots["thread"].fill_null(_NOBODY).to_numpy()
    middle = (rows["start_ns"] + (rows["end_ns"] - rows["start_ns"]) // 2).to_numpy()
    at = np.searchsorted(roots["start_ns"].to_numpy(), middle, side="right") - 1
    own = rows["thread"].to_numpy(allow_copy=True) if rows.height else np.empty(0)
    missing = rows["thread"].is_null().to_numpy()
    found = np.where(missing, of_root[np.maximum(at, 0)], np.where(missing, 0, own))
    return np.append(found, of_root).astype(np.int64)


def _questions(
    everything: SpanRows, own: Integers, no_thread: Integers, uncertain: Integers, known: Integers
) -> tuple[Integers, Integers]:
    """Return pairs of a row and a thread: the row's own, and without one all with operators."""
    asking = np.flatnonzero(no_thread | uncertain)
    row, thread = [asking], [own[asking]]
    astray = np.flatnonzero(no_thread)
    for other in np.unique(own[known & (orders(everything) == Kind.OP.order)]):
        elsewhere = astray[own[astray] != other]
        row.append(elsewhere)
        thread.append(np.full(len(elsewhere), other))
    return np.concatenate(row), np.concatenate(thread)


def _candidates(
    everything: SpanRows, own: Integers, pairs: tuple[Integers, Integers], known: Integers
) -> _Candidates:
    """Return the pairs of a row and a thread with the known row around that row there."""
    row, thread = pairs
    index = np.append(known, row)
    start, end = (everything[name].to_numpy()[index] for name in ("start_ns", "end_ns"))
    slack = everything["uncertainty_ns"].fill_null(0).to_numpy()[index]
    slack = np.minimum(slack, (end - start) // 2)
    slack[: len(known)] = 0
    lane = np.append(own[known], thread)
    around = enclosing(lane, start + slack, end - slack, orders(everything)[index])
    is_known = np.arange(len(index)) < len(known)
    found = nearest(around, around[len(known) :], is_known)
    return _Candidates(row, thread, np.where(found < 0, -1, index[found]))


def _choose(
    candidates: _Candidates, own: Integers, no_thread: Integers, order: Integers
) -> tuple[Integers, Integers]:
    """Return the thread of each row, and which rows may be on another as well."""
    in_op = (candidates.around >= 0) & (order[candidates.around] >= Kind.OP.order)
    count = np.bincount(candidates.row[in_op], minlength=len(no_thread))
    thread = own[: len(no_thread)].copy()
    sole = in_op & (count[candidates.row] == 1) & no_thread[candidates.row]
    thread[candidates.row[sole]] = candidates.thread[sole]
    return thread, np.flatnonzero((count > 1) & no_thread)


def _fitted(
    rows: SpanRows,
    everything: SpanRows,
    candidates: _Candidates,
    thread: Integers,
    no_thread: Integers,
    uncertain: Integers,
) -> SpanRows:
    """Return the rows on their threads, those with uncertain times cut to fit."""
    start, end = rows["start_ns"].to_numpy().copy(), rows["end_ns"].to_numpy().copy()
    here = candidates.thread == thread[candidates.row]
    fits = (candidates.around >= 0) & here & uncertain[candidates.row]
    row, around = candidates.row[fits], candidates.around[fits]
    low, high = everything["start_ns"].to_numpy()[around], everything["end_ns"].to_numpy()[around]
    start[row] = np.clip(start[row], low, high)
    end[row] = np.clip(end[row], start[row], high)
    found = pl.Series(thread).set(pl.Series(thread == _NOBODY), None)
    return rows.with_columns(
        start_ns=pl.Series(start),
        end_ns=pl.Series(end),
        thread=pl.when(pl.Series(no_thread)).then(found).otherwise(pl.col("thread")),
    )
