"""Finds the thread and the exact times of rows that were recorded without these.

Some libraries tell the names and times of their calls, but not the thread, and by a clock coarser
than ours. Two rules give all such rows a thread and exact times at once:

* A row of a library call, or of a deeper kind, with neither thread nor device is on the thread
  that has an operator open at the row's time. An operator that waits for one of another thread,
  which states it as its parent, is not the one. Where several threads have an operator open, the
  row is taken to be on its step's thread, marked as ambiguous and counted; where no thread
  has, the row is on its step's thread too.
* A row with uncertain times (`uncertainty_ns`) is cut to lie in the innermost row that, but for
  that uncertainty, encloses it. Rows with exact times are never moved.

    thread 2:  op "conv2d" 10-50
    no thread: call "convolution" 9-30, uncertain by 2: on thread 2, from 10 to 30
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.matching import mark_ambiguous, nearest, nearest_outer, on_device, orders
from xsp.provider import SpanRows, concat_rows
from xsp.reading.correlation.interval import Integers, enclosing

Bools = npt.NDArray[np.bool_]

_DEEPEST = 64  # statements that are followed: a circle of them has no end
_NOBODY = -(1 << 62)  # stands for the thread of a step without one


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Pairs of a row and a thread that the row may be on; n entries each.

    Attributes:
        row: Index of the row.
        thread: The thread.
        around: Index of the innermost row on that thread that encloses the row, or -1.
    """

    row: Integers
    thread: Integers
    around: Integers


def locate(roots: SpanRows, rows: SpanRows) -> tuple[SpanRows, int]:
    """Return rows with thread and exact times, and how many rows may be on several threads.

    Args:
        roots: Steps, sorted by time, none within another.
        rows: All other rows of the visit.

    >>> from xsp.provider import span_rows
    >>> roots = span_rows({"kind": ["region"], "name": ["predict"], "thread": [1],
    ...                    "start_ns": [0], "end_ns": [90]})
    >>> rows = span_rows({"kind": ["op", "call"], "name": ["conv2d", "convolution"],
    ...                   "start_ns": [10, 9], "end_ns": [50, 30], "thread": [2, None],
    ...                   "uncertainty_ns": [None, 2]})
    >>> locate(roots, rows)[0].select("start_ns", "end_ns", "thread").rows()
    [(10, 50, 2), (10, 30, 2)]
    """
    order = orders(rows)
    on_host = ~on_device(rows)
    without_thread = rows["thread"].is_null().to_numpy() & on_host & (order > Kind.OP.order)
    uncertain = (rows["uncertainty_ns"] > 0).fill_null(value=False).to_numpy() & on_host
    if not np.any(without_thread | uncertain):
        return rows, 0
    everything = concat_rows([rows, roots])
    own = _own_threads(roots, rows)
    known = np.append(~(without_thread | uncertain) & on_host, np.full(roots.height, True))
    pairs = _questions(everything, own, without_thread, uncertain, known)
    candidates = _candidates(everything, own, pairs, np.flatnonzero(known))
    order = np.append(order, orders(roots))
    in_op = (candidates.around >= 0) & (order[candidates.around] >= Kind.OP.order)
    in_op &= ~_waiting(candidates, everything)
    thread, several = _choose(candidates, own, without_thread, in_op)
    fitted = _fitted(rows, everything, candidates, thread, without_thread, uncertain)
    return mark_ambiguous(fitted, several), len(several)


def _own_threads(roots: SpanRows, rows: SpanRows) -> Integers:
    """Return the thread of each row, else of its step; then the threads of the roots."""
    of_root = roots["thread"].fill_null(_NOBODY).to_numpy()
    middle = (rows["start_ns"] + (rows["end_ns"] - rows["start_ns"]) // 2).to_numpy()
    at = np.searchsorted(roots["start_ns"].to_numpy(), middle, side="right") - 1
    # Never as floating-point numbers, which nulls would make of them: some threads' numbers are
    # hashes of 64 bits.
    own = rows["thread"].fill_null(_NOBODY).to_numpy()
    missing = rows["thread"].is_null().to_numpy()
    return np.append(np.where(missing, of_root[np.maximum(at, 0)], own), of_root)


def _questions(
    everything: SpanRows,
    own: Integers,
    without_thread: Bools,
    uncertain: Bools,
    known: Integers,
) -> tuple[Integers, Integers]:
    """Return pairs of a row and its own thread; for a row without, each thread with operators."""
    asking = np.flatnonzero(without_thread | uncertain)
    row, thread = [asking], [own[asking]]
    astray = np.flatnonzero(without_thread)
    for other in np.unique(own[known & (orders(everything) == Kind.OP.order)]):
        elsewhere = astray[own[astray] != other]
        row.append(elsewhere)
        thread.append(np.full(len(elsewhere), other))
    return np.concatenate(row), np.concatenate(thread)


def _candidates(
    everything: SpanRows, own: Integers, pairs: tuple[Integers, Integers], known: Integers
) -> _Candidates:
    """Return the pairs of a row and a thread, each with the known row of that thread around it."""
    row, thread = pairs
    index = np.append(known, row)
    start, end = (everything[name].to_numpy()[index] for name in ("start_ns", "end_ns"))
    slack = everything["uncertainty_ns"].fill_null(0).to_numpy()[index]
    slack = np.minimum(slack, (end - start) // 2)
    slack[: len(known)] = 0
    lane = np.append(own[known], thread)
    order = orders(everything)[index]
    # Less its uncertainty a call may seem to lie in a launch of its own.
    around = nearest_outer(enclosing(lane, start + slack, end - slack, order), order)
    is_known = np.arange(len(index)) < len(known)
    found = nearest(around, around[len(known) :], is_known)
    return _Candidates(row, thread, np.where(found < 0, -1, index[found]))


def _waiting(candidates: _Candidates, everything: SpanRows) -> Bools:
    """Tell which candidates only wait: by statements, the row around them holds another one's.

    A function whose operators run on threads of a pool is open on its own thread meanwhile.
    """
    known = everything.select("id", holder=pl.int_range(pl.len())).drop_nulls("id")
    stated = everything.select("parent_id").join(
        known.unique("id", keep="first"),
        left_on="parent_id",
        right_on="id",
        how="left",
        maintain_order="left",
    )
    holder = stated["holder"].fill_null(-1).to_numpy()  # the row that each row states as its parent
    pairs = candidates.row * len(holder)
    at, waiting = candidates.around, np.zeros(len(pairs), bool)
    for _ in range(_DEEPEST):
        at = np.where(at >= 0, holder[at], -1)
        if np.all(at < 0):
            break
        held = (pairs + at)[at >= 0]
        waiting |= (candidates.around >= 0) & np.isin(pairs + candidates.around, held)
    return waiting


def _choose(
    candidates: _Candidates, own: Integers, without_thread: Bools, in_op: Bools
) -> tuple[Integers, Integers]:
    """Return the thread of each row, and which rows may be on several threads.

    Args:
        candidates: Rows, and threads that they may be on.
        own: Thread of each row, or of its step.
        without_thread: Which rows have none.
        in_op: Which candidates lie in an operator that may have made the call.
    """
    count = np.bincount(candidates.row[in_op], minlength=len(without_thread))
    thread = own[: len(without_thread)].copy()
    sole = in_op & (count[candidates.row] == 1) & without_thread[candidates.row]
    thread[candidates.row[sole]] = candidates.thread[sole]
    return thread, np.flatnonzero((count > 1) & without_thread)


def _fitted(
    rows: SpanRows,
    everything: SpanRows,
    candidates: _Candidates,
    thread: Integers,
    without_thread: Bools,
    uncertain: Bools,
) -> SpanRows:
    """Return the rows with their threads, and with uncertain times cut to the row around."""
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
        thread=pl.when(pl.Series(without_thread)).then(found).otherwise(pl.col("thread")),
    )
