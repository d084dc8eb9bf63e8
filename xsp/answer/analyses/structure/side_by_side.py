"""Sums the self time of each type of layer in each part of a trace."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.structure.part import is_part, part_names
from xsp.answer.analyses.structure.sums import grouped, on_host, share_pct
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "part": "The step or marked part, such as a model's decode, or `optimizer step`.",
    "phase": "`forward` or `backward`, of layers.",
    "type": "Class of the modules; null for what of the part lies in no layer.",
    "layer_type": "What they do, in words that hold for all frameworks.",
    "calls": "How often layers of the type were called in it; of the part, how often it ran.",
    "own_ns": "Self time of these layers: without that of layers and parts inside.",
    "own_low_ns": "Lower end of its 95 % interval.",
    "own_high_ns": "Upper end of its 95 % interval.",
    "call_ns": "Self time of one call, on average.",
    "share_pct": "Self time as a share of that of all rows of the part.",
    "trace_share_pct": "Self time as a share of the trace's latency.",
}


@analysis("How do prefill and decode, or forward, backward and optimizer, compare?", _COLUMNS)
def side_by_side(trace: Trace) -> pl.DataFrame:
    """Return the self time of each type of layer in each part of a trace, parts in their order.

    Rows of one type, across parts, stand side by side in `table.pivot("part", index="type",
    values="own_ns")`.

    Args:
        trace: Any trace; one of a program has several parts.
    """
    tree = on_host(Tree.of(trace))
    parts, layers = is_part(tree), tree.is_of(Kind.LAYER)
    by = (
        part_names(tree),
        tree.attribute("phase"),
        tree.attribute("module_class").alias("type"),
        layer_types(tree),
    )
    table = grouped(tree, parts | layers, by)
    of_part = pl.sum("own_ns").over("part")
    return (
        table.with_columns(
            call_ns=pl.col("own_ns") / pl.col("calls"),
            share_pct=pl.when(of_part > 0).then(100 * pl.col("own_ns") / of_part),
            trace_share_pct=share_pct("own_ns", tree.latency_ns()[0]),
        )
        .with_row_index("order")
        .with_columns(pl.min("order").over("part"))
        .sort("order", "own_ns", descending=[False, True], nulls_last=True, maintain_order=True)
        .select(*_COLUMNS)
    )
