"""Finds the operator around each operator.

A `while` operator holds the operators of the loop's body, the call of a compiled function those of
the function. What lies inside of an operator is a world of its own: layers of its operators lie in
it, and the operators around do not tell them apart.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.provider import SpanRows

Integers = NDArray[np.int64]


def homes(ops: SpanRows) -> Integers:
    """Return the index of the operator that each operator lies in, -1 where it lies in none.

    That is the operator whose `id` the operator states as `parent_id`; without a statement, the
    operator on the same thread that began last of those that enclose it in time.
    """
    found = _by_time(ops)
    stated = ops["parent_id"]
    if stated.null_count() == ops.height:
        return found
    known = ops.select("id", home=pl.int_range(pl.len())).drop_nulls("id").unique("id")
    by_id = stated.to_frame().join(
        known, left_on="parent_id", right_on="id", how="left", maintain_order="left"
    )
    told = by_id["home"].fill_null(-1).to_numpy()
    return np.where(stated.is_null().to_numpy(), found, told)


def _by_time(ops: SpanRows) -> Integers:
    """Return the operator that encloses each operator on its thread, or -1."""
    order = ops.select(
        pl.arg_sort_by(
            "thread", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True
        ).cast(pl.Int64)
    ).to_series()
    sequence = order.to_numpy()
    start, end = (ops[name].to_numpy()[sequence] for name in ("start_ns", "end_ns"))
    thread = ops["thread"].fill_null(0).to_numpy()[sequence]
    home = np.full(len(sequence), -1, np.int64)
    one_after_another = bool(np.all((thread[1:] != thread[:-1]) | (start[1:] >= end[:-1])))
    if one_after_another:
        return home
    # The row around each row; rows are sorted by thread and start, the longer first.
    enclosing: list[int] = []
    open_rows: list[int] = []
    begins, ends, threads = start.tolist(), end.tolist(), thread.tolist()
    for row, (begin, finish, own) in enumerate(zip(begins, ends, threads, strict=True)):
        while open_rows and (threads[open_rows[-1]] != own or ends[open_rows[-1]] <= begin):
            open_rows.pop()
        enclosing.append(next((at for at in reversed(open_rows) if ends[at] >= finish), -1))
        open_rows.append(row)
    home[sequence] = [-1 if at < 0 else sequence[at] for at in enclosing]
    return home
