"""Recorded work: a tree in, what devices counted, and what library calls and copies say, out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.analyses.tree import Tree
from xsp.analyses.work.call_work import call_bytes
from xsp.evaluation import Ints
from xsp.level import Kind

NUMBERS = ("flops", "read_bytes", "write_bytes")
Mask = NDArray[np.bool_]


def counted(tree: Tree) -> pl.DataFrame:
    """Return what a device counted: of kernels, or of their launches where these alone have it.

    Returns:
        A row per span with the columns `NUMBERS`, null where nothing was counted.
    """
    names = ("flops", "dram_read_bytes", "dram_write_bytes")
    columns = [tree.attribute(name, pl.Int64) for name in names]
    seen = np.logical_or.reduce([column.is_not_null().to_numpy() for column in columns])
    kernels, launches = seen & tree.is_of(Kind.KERNEL), seen & tree.is_of(Kind.LAUNCH)
    ties = tree.spans["correlation_id"]
    twice = ties.is_in(ties.filter(pl.Series(kernels)).drop_nulls().implode())
    return _where(columns, kernels | (launches & ~twice.fill_null(value=False).to_numpy()))


def stated(tree: Tree) -> pl.DataFrame:
    """Return what the sizes of library calls and of copies imply, columns as of `counted`."""
    flops = tree.attribute("flops", pl.Int64)
    moved = spread(len(flops), tree.rows(Kind.CALL), _moved(tree))
    size = tree.attribute("transfer_bytes", pl.Int64)
    ways = tree.attribute("direction")
    copied, set_ = tree.is_of(Kind.MEMCPY), tree.is_of(Kind.MEMSET)
    transfers = (copied | set_) & size.is_not_null().to_numpy()
    # A device reads its memory unless the host sends, and writes there unless the host receives.
    reads = copied & ~ways.str.starts_with("Hto").fill_null(value=False).to_numpy()
    writes = ~ways.str.ends_with("toH").fill_null(value=False).to_numpy()
    nothing = pl.Series([0]).new_from_index(0, len(flops))
    on = pl.Series(transfers)
    columns = [
        nothing.zip_with(on, flops),
        size.zip_with(pl.Series(reads), nothing).zip_with(on, moved["read_bytes"]),
        size.zip_with(pl.Series(writes), nothing).zip_with(on, moved["write_bytes"]),
    ]
    return _where(columns, tree.is_of(Kind.CALL) | transfers)


def each(asked: pl.DataFrame, work: Callable[..., Sequence[int | None]]) -> pl.DataFrame:
    """Return the work of each row, computed once for equal rows.

    Args:
        asked: What the function takes, a column for each argument of that name.
        work: Returns operations, bytes read and bytes written.
    """
    alike = asked.with_row_index("row").group_by(asked.columns, maintain_order=True).agg("row")
    found = [work(**row) for row in alike.drop("row").iter_rows(named=True)]
    numbers = pl.DataFrame(found, schema=dict.fromkeys(NUMBERS, pl.Int64), orient="row")
    return alike.select("row").hstack(numbers).explode("row").sort("row").drop("row")


def spread(height: int, rows: Ints, found: pl.DataFrame) -> pl.DataFrame:
    """Return a table of a height with what was found in some rows, null in all others."""
    empty = pl.Series([None], dtype=pl.Int64).new_from_index(0, height)
    return pl.DataFrame({name: empty.clone().scatter(rows, found[name]) for name in NUMBERS})


def _moved(tree: Tree) -> pl.DataFrame:
    rows = tree.rows(Kind.CALL)
    columns: dict[str, Any] = {"name": tree.spans["name"][rows]}
    for name in ("problem", "formats", "propagation"):
        columns[name] = tree.attribute(name)[rows]
    columns["tensor_bytes"] = tree.attribute("tensor_bytes", pl.Int64)[rows]
    return each(pl.DataFrame(columns), _call_work)


def _call_work(**call: Any) -> tuple[int | None, ...]:
    return None, *call_bytes(**call)


def _where(columns: Sequence[pl.Series], known: Mask) -> pl.DataFrame:
    mask = pl.Series(known)
    frame = pl.DataFrame(
        [column.alias(name) for name, column in zip(NUMBERS, columns, strict=True)]
    )
    return frame.select(pl.when(mask).then(pl.col(name)).alias(name) for name in NUMBERS)
