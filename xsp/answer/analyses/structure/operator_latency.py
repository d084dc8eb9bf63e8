"""Sums calls, times and device work of operators by name."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.shape import shapes_text
from xsp.answer.analyses.structure.sums import (
    device_total_ns,
    grouped,
    launched,
    on_host,
    share_pct,
)
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "operator": "Name of the operator.",
    "shapes": "Shapes of the tensors put in, with `shapes=True`; null without.",
    "calls": "How often it was called, from wherever.",
    "own_ns": "Latency less that of the operators inside: these sum to the operators' time.",
    "own_low_ns": "Lower end of its 95 % interval.",
    "own_high_ns": "Upper end of its 95 % interval.",
    "share_pct": "Self time as a share of the trace's latency.",
    "latency_ns": "Latency with the operators inside; a call within a call counts once.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "kernels": "Kernels, copies and sets that it launched itself; null where no device worked.",
    "kernel_ns": "Their device time, added up.",
    "kernel_share_pct": "That time as a share of all device time, added up.",
}


@analysis("Which operators take the time?", _COLUMNS, needs=(Need.OPERATORS,))
def operator_latency(trace: Trace, *, shapes: bool = False) -> pl.DataFrame:
    """Return the operators by name, those with the most self time first.

    Operators that a CUDA graph replays have device work, and no time of the host.

    Args:
        trace: A trace with operators.
        shapes: Whether calls with inputs of different shapes are rows of their own.

    Raises:
        AnalysisError: The trace has no operators.
    """
    tree = on_host(Tree.of(trace))
    among, whole = tree.is_of(Kind.OP), device_total_ns(tree)
    by = (tree.spans["name"].alias("operator"), _shapes(tree, asked=shapes))
    time, count = launched(tree, among)
    if not whole:
        by_name = grouped(tree, among, by).with_columns(
            kernels=pl.lit(None, dtype=pl.Int64), kernel_ns=pl.lit(None, dtype=pl.Float64)
        )
    else:
        work = pl.Series("kernels", count), pl.Series("kernel_ns", time)
        by_name = grouped(tree, among, by, *work)
    return (
        by_name.with_columns(
            share_pct=share_pct("own_ns", tree.latency_ns()[0]),
            kernel_share_pct=share_pct("kernel_ns", whole),
        )
        .sort("own_ns", "kernel_ns", descending=True, nulls_last=True, maintain_order=True)
        .select(*_COLUMNS)
    )


def _shapes(tree: Tree, *, asked: bool) -> pl.Series:
    """Return the shapes put into each span as text, such as `1×3×224×224, 64×3×7×7`."""
    told = tree.attribute("input_shapes", pl.List(pl.List(pl.Int64)))
    if not asked:
        return pl.Series("shapes", [None], dtype=pl.String).new_from_index(0, len(told))
    return shapes_text(told).alias("shapes")
