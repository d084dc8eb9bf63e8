"""Divides each layer's time into time in kernels and time outside of kernels (A13 of the paper).

The two are of each layer without the layers inside.
"""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.kernel.kernel import kernel_times
from xsp.answer.analyses.kernel.layer import LAYER_COLUMNS, layer_frame
from xsp.answer.analyses.total import total, whole_total
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    **LAYER_COLUMNS,
    "own_ns": "Latency of the layer less that of the layers inside.",
    "kernel_ns": "Time of the layer's kernels, without those of the layers inside.",
    "kernel_low_ns": "Lower end of its 95 % interval.",
    "kernel_high_ns": "Upper end of its 95 % interval.",
    "outside_ns": "Own latency less the kernels' time; null where the kernels took longer.",
    "kernel_pct": "Kernels' time as a share of the own latency; null where these took longer.",
    "outside_pct": "The rest of 100 %.",
}


@analysis(
    "How much of each layer's time is spent in kernels?",
    _COLUMNS,
    needs=(Need.LAYERS,),
    paper="A13",
)
def layer_device_time(trace: Trace) -> pl.DataFrame:
    """Return the time that each layer spends in kernels and outside of them.

    The difference means what the paper means by it where the host waits for each kernel: on a
    host, in library calls, and in a synchronous measurement, whose latencies are taken where the
    trace has them. Where kernels run while the host goes on, a layer's kernels may take longer
    than the layer, and what is outside is null.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    tree = _waiting(Tree.of(trace))
    layers = layer_frame(tree)
    times = kernel_times(tree).filter(pl.col("layer_row") >= 0)
    times = times.group_by(row="layer_row", maintain_order=True).agg(
        total("latency_ns").alias("kernel_ns"),
        whole_total("latency_low_ns").alias("kernel_low_ns"),
        whole_total("latency_high_ns").alias("kernel_high_ns"),
    )
    own = tree.own_ns(tree.is_of(Kind.LAYER))[layers["row"].to_numpy()]
    table = (
        layers.join(times, on="row", how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("row").is_in(times["row"].implode()))
            .then(pl.col(name))
            .otherwise(0.0)
            .alias(name)
            for name in times.columns[1:]
        )
        .with_columns(own_ns=pl.Series(own).fill_nan(None))
    )
    within = pl.col("kernel_ns") <= pl.col("own_ns")
    share = 100 * pl.col("kernel_ns") / pl.col("own_ns")
    return (
        table.with_columns(
            outside_ns=pl.when(within).then(pl.col("own_ns") - pl.col("kernel_ns")),
            kernel_pct=pl.when(within & (pl.col("own_ns") > 0)).then(share),
        )
        .with_columns(outside_pct=100 - pl.col("kernel_pct"))
        .select(*_COLUMNS)
    )


def _waiting(tree: Tree) -> Tree:
    """Return the tree with the latencies of a synchronous measurement where it has them."""
    waiting = tree.attribute("synchronous_ns", pl.Float64)
    if waiting.null_count() == len(waiting):
        return tree
    latency = pl.coalesce(waiting, tree.spans["latency_ns"])
    return Tree(tree.spans.with_columns(latency_ns=latency), tree.parent)
