"""Sums calls, times and work of each framework-neutral type of layer."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.operator_time import by_operators
from xsp.answer.analyses.owned_work import MEANINGS, work_by_owner
from xsp.answer.analyses.structure.sums import Bools, grouped, on_host, share_pct
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "layer_type": "What the layers do, in words that hold for all frameworks; null: not known.",
    "calls": "How many calls of layers, or of operators, are of the type.",
    "own_ns": "Latency less that of the layers inside: these sum to the layers' time.",
    "own_low_ns": "Lower end of its 95 % interval.",
    "own_high_ns": "Upper end of its 95 % interval.",
    "share_pct": "Self time as a share of the trace's latency.",
    "flops": MEANINGS["flops"],
    "flops_per_s": "These by the self time.",
    "read_bytes": MEANINGS["read_bytes"],
    "write_bytes": MEANINGS["write_bytes"],
    "unknown_operators": MEANINGS["unknown_operators"],
    "work_source": MEANINGS["work_source"],
    "classes": "Classes of these layers, or names of the operators, most frequent first.",
}


@analysis("What kind of layer takes the time, in any framework?", _COLUMNS)
def layer_type_work(trace: Trace) -> pl.DataFrame:
    """Return the self time and the work of each type of layer, most self time first.

    Where a trace has no layers, its operators stand for them. A layer of a graph, between whose
    operators others run, counts as long as its own operators do.

    Args:
        trace: Any trace; one without layers and operators gives a table without rows.
    """
    tree = by_operators(on_host(Tree.of(trace)))
    among = typed(tree)
    kinds = layer_types(tree)
    class_ = pl.select(pl.coalesce(tree.attribute("module_class"), tree.spans["name"])).to_series()
    table = grouped(tree, among, (kinds, class_.alias("class")))
    # The sums of self times; of their intervals where all of them are known.
    ends = [
        pl.when(pl.col(end).count() == pl.col("own_ns").count()).then(pl.sum(end)).alias(end)
        for end in ("own_low_ns", "own_high_ns")
    ]
    sums = [pl.sum("own_ns"), *ends]
    # The work of each type: of all spans of which the innermost typed span is of it.
    number = kinds.rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
    typed_row = np.where(among, np.arange(len(among)), tree.nearest(among))
    owner = np.where(typed_row >= 0, number[typed_row], -1)
    names = pl.DataFrame({"owner": number, "layer_type": kinds}).unique()
    work = names.join(work_by_owner(tree, owner), on="owner").drop("owner")
    return (
        table.group_by("layer_type", maintain_order=True)
        .agg(
            pl.col("class")
            .sort_by("calls", descending=True, maintain_order=True)
            .str.join(", ")
            .alias("classes"),
            pl.sum("calls"),
            *sums,
        )
        .join(work, on="layer_type", how="left", nulls_equal=True)
        .with_columns(
            share_pct=share_pct("own_ns", tree.latency_ns()[0]),
            flops_per_s=pl.when(pl.col("flops") > 0).then(1e9 * pl.col("flops") / pl.col("own_ns")),
        )
        .sort("own_ns", "layer_type", descending=[True, False], nulls_last=True)
        .select(*_COLUMNS)
    )


def typed(tree: Tree) -> Bools:
    """Return the spans that have types: the layers; the operators where there are no layers."""
    layers = tree.is_of(Kind.LAYER)
    return layers if layers.any() else tree.is_of(Kind.OP)
