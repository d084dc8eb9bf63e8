"""Layer latency (A3 of the paper): a trace in, the latency of each layer in their order out."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.analyses.contract import Need, analysis
from xsp.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "index": "Position of the layer among all, in the order they began, from 1.",
    "path": "Path of the span in the trace.",
    "layer": "Dotted path of the module, or the layer's name where it has none.",
    "type": "Class of the module.",
    "latency_ns": "Latency without the profiler, with that of the layers inside.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "own_ns": "Latency less that of the layers inside: these sum to the layers' time.",
    "share_pct": "Own time as a share of the trace's latency.",
}


@analysis("Which layers take the time?", _COLUMNS, needs=(Need.LAYERS,), paper="A3")
def layer_latency(trace: Trace) -> pl.DataFrame:
    """Return the latency of each layer, in the order the layers began.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    tree = Tree.of(trace)
    layers = tree.is_of(Kind.LAYER)
    rows = np.flatnonzero(layers)
    own = tree.own_ns(layers)[rows]
    whole = tree.latency_ns()[0]
    return (
        tree.spans[rows]
        .with_columns(
            index=pl.int_range(1, len(rows) + 1, dtype=pl.Int64),
            layer=pl.coalesce(tree.attribute("module_path")[rows], "name"),
            type=tree.attribute("module_class")[rows],
            own_ns=pl.Series(own).fill_nan(None),
            share_pct=pl.Series(100 * own / whole).fill_nan(None),
        )
        .select(*_COLUMNS)
    )
