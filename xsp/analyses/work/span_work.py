"""Work of spans: a tree in, what each span itself computes and moves out, every piece once.

Counters are believed first, then the sizes of library calls and copies, then the operators'
shapes. What a span below has done is not done again by the span above: an operator that calls
another, or a library call whose sizes are known, has no work of its own (0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.analyses.kept import once_per_trace
from xsp.analyses.tree import Floats, Tree
from xsp.analyses.work.formula import CONVOLUTIONS, Shape
from xsp.analyses.work.graph_work import graph_work
from xsp.analyses.work.operator_kind import IDLE
from xsp.analyses.work.operator_work import Work, operator_work
from xsp.analyses.work.recorded_work import NUMBERS, Mask, counted, each, spread, stated
from xsp.evaluation import Ints
from xsp.level import Kind

_SHAPES, _TEXTS = pl.List(pl.List(pl.Int64)), pl.List(pl.String)
_TRANSPOSED = "conv.*transpose"
_NEXT = 8  # operators in which the result of a convolution is looked for


@once_per_trace
def work_of(tree: Tree) -> pl.DataFrame:
    """Return what each span of a tree does itself, apart from what the spans inside do.

    So the work of a layer is the sum over its subtree (`subtree_sum`). Rows that stand for several
    `calls` have the work of all of them. Layers and the like do nothing themselves: null.

    Returns:
        A row per span with `flops`, `read_bytes` and `write_bytes` (Int64, null where not known),
        and `work_source`: `counted` by the device, `library` (from the sizes of a library call
        or a copy), `analytical` (from an operator's shapes), null where nothing is known.
    """
    work = _operators(tree)
    for better, source in ((stated(tree), "library"), (counted(tree), "counted")):
        work = _instead(tree, work, better, source)
    calls = tree.attribute("calls", pl.Int64).fill_null(1)
    return work.with_columns(pl.col(name) * calls for name in NUMBERS)


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


def around(tree: Tree, which: Mask) -> Mask:
    """Return which spans have one of some spans inside, not counting themselves."""
    found = np.zeros(len(which), np.bool_)
    at = tree.parent[which]
    while len(at := at[at >= 0]):
        now = np.zeros(len(which), np.bool_)
        now[at] = True
        now &= ~found
        found |= now
        at = tree.parent[now]
    return found


def dispatching(tree: Tree) -> Mask:
    """Return which operators do nothing themselves, so that their own time is the framework's.

    These look at tensors otherwise or make room (`aten::view`, `aten::empty`), or their work is
    in the operators and library calls that they call. An operator that computes and calls one of
    the former is none of them: `aten::mkldnn_convolution` calls `aten::empty`.
    """
    operators = tree.is_of(Kind.OP)
    work = work_of(tree).select(pl.sum_horizontal(*NUMBERS, ignore_nulls=False) == 0).to_series()
    nothing = work.fill_null(value=False).to_numpy() & around(tree, operators)
    idle = tree.spans["name"].is_in(list(IDLE)).to_numpy()
    found: Mask = operators & (nothing | idle | around(tree, tree.is_of(Kind.CALL)))
    return found


def _operators(tree: Tree) -> pl.DataFrame:
    """Return the work that the shapes of operators imply: of the innermost that has a formula.

    Operators without a formula that call such as act have no work of their own.
    """
    rows = tree.rows(Kind.OP)
    found = spread(tree.spans.height, rows, each(_asked(tree, rows), _operator_work))
    told = tree.attribute("flops", pl.Int64).set(pl.Series(~tree.is_of(Kind.OP)), None)
    found = found.with_columns(flops=pl.coalesce(told, found["flops"]))
    computing = (found["flops"].fill_null(0) > 0).to_numpy()
    acting = tree.is_of(Kind.OP) & ~tree.spans["name"].is_in(list(IDLE)).to_numpy()
    calling = acting & np.where(computing, around(tree, computing), around(tree, acting))
    work = found.with_columns(
        pl.when(pl.Series(calling)).then(0).otherwise(pl.col(name)).alias(name) for name in NUMBERS
    )
    known = pl.any_horizontal(pl.col(*NUMBERS).is_not_null())
    return work.with_columns(work_source=pl.when(known).then(pl.lit("analytical")))


def _operator_work(
    framework: str | None,
    made_shapes: Sequence[Shape | None] | None,
    made_types: Sequence[str | None] | None,
    sources: str | None,
    **torch: Any,
) -> Work:
    """Return the work of an operator, by the formulas of its framework."""
    if framework is None:
        return operator_work(**torch)
    given = torch["shapes"], torch["element_types"]
    return graph_work(torch["name"], framework, given, (made_shapes, made_types), sources)


def _asked(tree: Tree, rows: Ints) -> pl.DataFrame:
    """Return what tells the work of operators: a column for each argument of `_operator_work`."""
    operators = pl.Series(tree.is_of(Kind.OP))
    kept = tree.attribute("allocated_bytes", pl.Int64) - tree.attribute("freed_bytes", pl.Int64)
    transposed = tree.is_of(Kind.OP) & tree.spans["name"].str.contains(_TRANSPOSED).to_numpy()
    return pl.DataFrame(
        {
            "name": tree.spans["name"][rows],
            "shapes": tree.attribute("input_shapes", _SHAPES).filter(operators),
            "element_types": tree.attribute("input_dtypes", _TEXTS).filter(operators),
            "kept_bytes": kept[rows],
            "seen": _seen(tree, rows),
            "framework": tree.attribute("framework")[rows],
            "made_shapes": tree.attribute("output_shapes", _SHAPES).filter(operators),
            "made_types": tree.attribute("output_dtypes", _TEXTS).filter(operators),
            "sources": tree.attribute("source_ops")[rows],
            "transposed": (tree.nearest(transposed) >= 0)[rows],
        }
    )


def _seen(tree: Tree, rows: Ints) -> pl.Series:
    """Return the shape that came out of each convolution, as the trace shows it elsewhere.

    It is what came out of the layer around, else what one of the next operators was given first:
    the first shape of as many axes that has the batch of the input and the channels of the weights.
    Null of convolutions that call another, for that is one of the next.
    """
    convolving = tree.spans["name"].is_in(list(CONVOLUTIONS)).to_numpy()
    at = np.flatnonzero((convolving & ~around(tree, convolving))[rows])
    given = tree.attribute("input_shapes", _SHAPES)
    own = given[rows[at]]
    first, weights = (own.list.get(place, null_on_oob=True) for place in (0, 1))
    layers = tree.nearest(tree.is_of(Kind.LAYER))[rows[at]]
    out = tree.attribute("output_shapes", _SHAPES)[layers].list.get(0, null_on_oob=True)
    found = pl.Series([None], dtype=first.dtype).new_from_index(0, len(at))
    for step in range(_NEXT + 1):
        following = given[rows[np.minimum(at + step, len(rows) - 1)]]
        shape = following.list.get(0, null_on_oob=True) if step else out
        fits = shape.list.len() == first.list.len()
        fits &= _size(shape, 0) == _size(first, 0)
        fits &= _size(shape, 1) == _size(weights, 0)
        fits &= pl.Series(at + step < len(rows))
        found = shape.zip_with(fits.fill_null(value=False) & found.is_null(), found)
    places = np.full(len(rows), len(at), np.int64)
    places[at] = np.arange(len(at))
    return pl.concat([found, pl.Series([None], dtype=first.dtype)])[places]


def _size(shapes: pl.Series, axis: int) -> pl.Series:
    return shapes.list.get(axis, null_on_oob=True)


def _instead(tree: Tree, work: pl.DataFrame, better: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the work with better numbers in it, and nothing in the spans around these.

    A span around keeps its operations where those below have none: a reorder is not the product.
    """
    computing = (better["flops"].fill_null(0) > 0).to_numpy()
    moving = better.select(pl.any_horizontal("read_bytes", "write_bytes").is_not_null())
    known = better.select(pl.any_horizontal(pl.col(*NUMBERS).is_not_null())).to_series()
    within = around(tree, computing), around(tree, moving.to_series().to_numpy())
    done = dict(zip(NUMBERS, (within[0], within[1], within[1]), strict=True))
    return work.with_columns(
        pl.when(known)
        .then(better[name])
        .when(pl.Series(done[name]) & pl.col(name).is_not_null())
        .then(0)
        .otherwise(pl.col(name))
        .alias(name)
        for name in NUMBERS
    ).with_columns(work_source=pl.when(known).then(pl.lit(source)).otherwise(pl.col("work_source")))
