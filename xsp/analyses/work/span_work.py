"""Work of spans: a tree in, what each span itself computes and moves out, every piece once.

Counters are believed first, then the sizes of library calls and copies, then the operators'
shapes. What a span below has done is not done again by the span above: an operator that calls
another, or a library call whose sizes are known, has no work of its own (0).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.analyses.tree import Floats, Tree
from xsp.analyses.work.operator_work import IDLE, operator_work
from xsp.evaluation import Ints
from xsp.level import Kind

_SHAPES, _TEXTS = pl.List(pl.List(pl.Int64)), pl.List(pl.String)
_NUMBERS = ("flops", "read_bytes", "write_bytes")
Mask = NDArray[np.bool_]


def work_of(tree: Tree) -> pl.DataFrame:
    """Return what each span of a tree does itself, apart from what the spans inside do.

    So the work of a layer is the sum over its subtree (`subtree_sum`). Rows that stand for several
    `calls` have the work of all of them.

    Returns:
        A row per span with `flops`, `read_bytes` and `write_bytes` (Int64, null where not known),
        and `work_source`: `counted` by the device, `library` (from the sizes of a library call
        or a copy), `analytical` (from an operator's shapes), null where nothing is known.
    """
    counted, library = _counted(tree), _library(tree)
    work = _operators(tree)
    for better, source in ((library, "library"), (counted, "counted")):
        work = _instead(tree, work, better, source)
    calls = tree.attribute("calls", pl.Int64).fill_null(1)
    return work.with_columns(pl.col(name) * calls for name in _NUMBERS)


def subtree_sum(tree: Tree, values: Floats) -> Floats:
    """Return of each span the sum of its own value and of those of all spans inside.

    >>> subtree_sum(Tree(pl.DataFrame(), np.array([-1, 0, 1, 0])), np.array([0.0, 1, 2, 4]))
    array([7., 3., 2., 4.])
    """
    total = values.copy()
    for rows in reversed(_generations(tree.parent)):
        np.add.at(total, tree.parent[rows], total[rows])
    return total


def _generations(parent: Ints) -> list[Ints]:
    """Return the rows below the root, those of each depth together, from the outermost."""
    depth = np.zeros(len(parent), np.int64)
    at = parent.copy()
    while (on := at >= 0).any():
        depth[on] += 1
        at[on] = parent[at[on]]
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[1:]


def _below(tree: Tree, which: Mask) -> Mask:
    """Return which spans have one of some spans inside, not counting themselves."""
    return subtree_sum(tree, which.astype(np.float64)) - which > 0


def _table(columns: Sequence[pl.Series], known: Mask, source: str) -> pl.DataFrame:
    """Return the table of work of some spans, null for all others."""
    frame = pl.DataFrame(
        [column.cast(pl.Int64).alias(name) for name, column in zip(_NUMBERS, columns, strict=True)]
    )
    mask = pl.Series(known)
    return frame.with_columns(
        pl.when(mask).then(pl.col(name)).alias(name) for name in _NUMBERS
    ).with_columns(work_source=pl.when(mask).then(pl.lit(source)))


def _counted(tree: Tree) -> pl.DataFrame:
    """Return what a device counted: of kernels, or of their launches where these alone have it."""
    names = ("flops", "dram_read_bytes", "dram_write_bytes")
    columns = [tree.attribute(name, pl.Int64) for name in names]
    seen = np.logical_or.reduce([column.is_not_null().to_numpy() for column in columns])
    kernels, launches = seen & tree.is_of(Kind.KERNEL), seen & tree.is_of(Kind.LAUNCH)
    ties = tree.spans["correlation_id"]
    twice = ties.is_in(ties.filter(pl.Series(kernels)).drop_nulls().implode()).fill_null(
        value=False
    )
    return _table(columns, kernels | (launches & ~twice.to_numpy()), "counted")


def _library(tree: Tree) -> pl.DataFrame:
    flops = tree.attribute("flops", pl.Int64)
    size = tree.attribute("tensor_bytes", pl.Int64)
    known = tree.is_of(Kind.CALL) & (flops.is_not_null() | size.is_not_null()).to_numpy()
    nothing = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(known))
    return _table([flops, size, nothing], known, "library")


def _operators(tree: Tree) -> pl.DataFrame:
    """Return the work that the shapes of operators imply, the innermost's alone."""
    rows = tree.rows(Kind.OP)
    found = _formulas(tree, rows)
    flops = np.full(len(tree.parent), np.nan)
    flops[rows] = found["flops"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    acting = np.zeros(len(flops), np.bool_)
    acting[rows] = ~tree.spans["name"][rows].is_in(IDLE).to_numpy()
    above = acting & _below(tree, acting) & ~(flops > 0)  # calls those that act
    above |= (flops > 0) & _below(tree, flops > 0)
    columns = [
        pl.Series([None], dtype=pl.Int64).new_from_index(0, len(flops)).scatter(rows, found[name])
        for name in _NUMBERS
    ]
    known = np.logical_or.reduce([column.is_not_null().to_numpy() for column in columns])
    zero = pl.Series([0], dtype=pl.Int64).new_from_index(0, len(flops))
    mask = pl.Series(above)
    columns = [zero.zip_with(mask, column) for column in columns]
    return _table(columns, known | above, "analytical")


def _formulas(tree: Tree, rows: Ints) -> pl.DataFrame:
    """Return the work of operators, computed once for those of one name and of equal tensors."""
    shapes = tree.attribute("output_shapes", _SHAPES)
    layers = tree.nearest(tree.is_of(Kind.LAYER))[rows]
    kept = tree.attribute("allocated_bytes", pl.Int64) - tree.attribute("freed_bytes", pl.Int64)
    asked = pl.DataFrame(
        {
            "name": tree.spans["name"][rows],
            "shapes": tree.attribute("input_shapes", _SHAPES)[rows],
            "types": tree.attribute("input_dtypes", _TEXTS)[rows],
            "kept": kept[rows],
            "around": shapes.list.first()[layers],
        }
    )
    alike = asked.with_row_index("row").group_by(asked.columns, maintain_order=True).agg("row")
    work = [
        operator_work(name, shapes, types, kept_bytes=kept, around=around)
        for name, shapes, types, kept, around, _ in alike.iter_rows()
    ]
    numbers = pl.DataFrame(work, schema=dict.fromkeys(_NUMBERS, pl.Int64), orient="row")
    return alike.select("row").hstack(numbers).explode("row").sort("row").drop("row")


def _instead(tree: Tree, work: pl.DataFrame, better: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the work with better numbers in it, and nothing in the spans around these.

    A span around keeps its operations where those below have none: a reorder is not the product.
    """
    known = better["work_source"].is_not_null().to_numpy()
    computing = known & (better["flops"].fill_null(0) > 0).to_numpy()
    sized = better["read_bytes"].is_not_null() | better["write_bytes"].is_not_null()
    around = {
        "flops": _below(tree, computing),
        "read_bytes": _below(tree, known & sized.to_numpy()),
    }
    around["write_bytes"] = around["read_bytes"]
    mask = pl.Series(known)
    return work.with_columns(
        pl.when(mask)
        .then(better[name])
        .when(pl.Series(around[name]) & pl.col(name).is_not_null())
        .then(0)
        .otherwise(pl.col(name))
        .alias(name)
        for name in _NUMBERS
    ).with_columns(work_source=pl.when(mask).then(pl.lit(source)).otherwise(pl.col("work_source")))
