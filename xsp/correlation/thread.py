"""Gives rows that know no thread, or no exact time, their place; before parents are found.

Some libraries tell what they did, and when, but not on which thread, and by a clock
that is coarser than ours. Two rules settle that for all such rows at once:

* A row of a library call, or deeper, with neither thread nor device is on the thread
  that has an operator open at its time. Where several threads have, it is taken to be
  on that of its evaluation, marked as doubtful and counted; where none has, on that too.
* A row whose times are uncertain (`uncertainty_ns`) lies in the innermost row that
  encloses it but for that uncertainty, and is cut to fit. Rows that are certain are
  never moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.correlation.interval import Integers, enclosing, sort_outside_in
from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, mark_doubtful, orders

_NOBODY = -(1 << 62)  # thread of rows in an evaluation that knows none itself


@dataclass(frozen=True, slots=True)
class _Asked:
    """Questions: which row lies around this one, if it was on that thread? n entries each.

    Attributes:
        row: Index of the row that is asked for.
        thread: Thread that it may be on.
        around: Index of the row around it there, -1 where there is none.
    """

    row: Integers
    thread: Integers
    around: Integers


def settle_places(roots: SpanRows, rows: SpanRows) -> tuple[SpanRows, int]:
    """Return rows with threads and times settled, and how many might be on several threads.

    Args:
        roots: Evaluations, sorted by time, none within another.
        rows: Everything that was seen meanwhile.

    >>> from xsp.provider.row import span_rows
    >>> roots = span_rows({"kind": ["pipeline"], "name": ["predict"], "thread": [1],
    ...                    "start_ns": [0], "end_ns": [90]})
    >>> rows = span_rows({"kind": ["op", "call"], "name": ["conv2d", "convolution"],
    ...                   "start_ns": [10, 9], "end_ns": [50, 30], "thread": [2, None],
    ...                   "uncertainty_ns": [None, 2]})
    >>> settle_places(roots, rows)[0].select("start_ns", "end_ns", "thread").rows()
    [(10, 50, 2), (10, 30, 2)]
    """
    order = orders(rows)
    on_host = rows["device"].is_null().to_numpy()
    loose = rows["thread"].is_null().to_numpy() & on_host & (order > Kind.OP.order)
    vague = (rows["uncertainty_ns"] > 0).fill_null(value=False).to_numpy() & on_host
    if not np.any(loose | vague):
        return rows, 0
    everything = concat_rows([rows, roots])
    own = _own_threads(roots, rows)
    certain = np.append(~(loose | vague) & on_host, np.full(roots.height, True))
    asked = _ask(everything, own, loose=loose, vague=vague, certain=certain)
    thread, several = _choose(asked, own, loose, np.append(order, orders(roots)))
    fitted = _fitted(rows, everything, asked, thread, loose, vague)
    return mark_doubtful(fitted, several), len(several)


def _own_threads(roots: SpanRows, rows: SpanRows) -> Integers:
    """Return the thread of each row, or of its evaluation; then those of the roots."""
    of_root = roots["thread"].fill_null(_NOBODY).to_numpy()
    middle = (rows["start_ns"] + (rows["end_ns"] - rows["start_ns"]) // 2).to_numpy()
    at = np.searchsorted(roots["start_ns"].to_numpy(), middle, side="right") - 1
    own = rows["thread"].to_numpy(allow_copy=True) if rows.height else np.empty(0)
    missing = rows["thread"].is_null().to_numpy()
    found = np.where(missing, of_root[np.maximum(at, 0)], np.where(missing, 0, own))
    return np.append(found, of_root).astype(np.int64)


def _ask(
    everything: SpanRows, own: Integers, *, loose: Integers, vague: Integers, certain: Integers
) -> _Asked:
    start, end = everything["start_ns"].to_numpy(), everything["end_ns"].to_numpy()
    order = orders(everything)
    row, thread = _questions(own, loose, vague, own[certain & (order == Kind.OP.order)])
    known = np.flatnonzero(certain)
    index = np.append(known, row)
    slack = everything["uncertainty_ns"].fill_null(0).to_numpy()[index]
    slack = np.minimum(slack, (end[index] - start[index]) // 2)
    slack[: len(known)] = 0
    begin, stop = start[index] + slack, end[index] - slack
    by_time = sort_outside_in(begin, stop, order[index])
    lane = np.unique(np.append(own[known], thread), return_inverse=True)[1]
    found = enclosing(lane[by_time], begin[by_time], stop[by_time], order[index][by_time])
    parent = np.full(len(index), -1, np.int64)
    parent[by_time] = np.where(found < 0, -1, by_time[found])
    parent = _skip(parent, len(known))[len(known) :]
    return _Asked(row, thread, np.where(parent < 0, -1, index[parent]))


def _questions(
    own: Integers, loose: Integers, vague: Integers, threads: Integers
) -> tuple[Integers, Integers]:
    """Return rows and threads to ask for: a loose row's own and all that run operators."""
    plain = np.flatnonzero(loose | vague)
    row, thread = [plain], [own[plain]]
    astray = np.flatnonzero(loose)
    for other in np.unique(threads):
        elsewhere = astray[own[astray] != other]
        row.append(elsewhere)
        thread.append(np.full(len(elsewhere), other))
    return np.concatenate(row), np.concatenate(thread)


def _skip(parent: Integers, known: int) -> Integers:
    """Return parents of which each is one of the first `known` rows: going up from others."""
    while np.any(asking := parent >= known):
        parent = np.where(asking, parent[parent], parent)
    return parent


def _choose(
    asked: _Asked, own: Integers, loose: Integers, order: Integers
) -> tuple[Integers, Integers]:
    """Return the thread of each row, and which rows might be on another as well."""
    in_op = (asked.around >= 0) & (order[asked.around] >= Kind.OP.order)
    count = np.bincount(asked.row[in_op], minlength=len(loose))
    thread = own[: len(loose)].copy()
    sole = in_op & (count[asked.row] == 1) & loose[asked.row]
    thread[asked.row[sole]] = asked.thread[sole]
    return thread, np.flatnonzero((count > 1) & loose)


def _fitted(
    rows: SpanRows,
    everything: SpanRows,
    asked: _Asked,
    thread: Integers,
    loose: Integers,
    vague: Integers,
) -> SpanRows:
    """Return the rows on their threads, the vague ones cut to what lies around them."""
    start, end = rows["start_ns"].to_numpy().copy(), rows["end_ns"].to_numpy().copy()
    fits = (asked.around >= 0) & (asked.thread == thread[asked.row]) & vague[asked.row]
    row, around = asked.row[fits], asked.around[fits]
    low, high = everything["start_ns"].to_numpy()[around], everything["end_ns"].to_numpy()[around]
    start[row] = np.clip(start[row], low, high)
    end[row] = np.clip(end[row], start[row], high)
    settled = pl.Series(thread).set(pl.Series(thread == _NOBODY), None)
    return rows.with_columns(
        start_ns=pl.Series(start),
        end_ns=pl.Series(end),
        thread=pl.when(pl.Series(loose)).then(settled).otherwise(pl.col("thread")),
    )
