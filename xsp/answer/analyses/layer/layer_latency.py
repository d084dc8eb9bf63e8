"""Lists the latency of each layer, in the order of the layers (A3 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.answer.analyses.structure.sums import share_pct
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = columns(
    "index", "group", "phase", "layer", "type", "layer_type", "calls",
    "latency_ns", "latency_low_ns", "latency_high_ns", "own_ns", "own_low_ns", "own_high_ns",
    share_pct="Self time as a share of the trace's latency.",
) | columns(
    "device_ns", "synchronous_ns", "path"
)  # fmt: skip


@analysis("Which layers take the time?", _COLUMNS, needs=(Need.LAYERS,), paper="A3")
def layer_latency(trace: Trace) -> pl.DataFrame:
    """Return the latency of each layer, in the order the layers began.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    share = share_pct("own_ns", Tree.of(trace).latency_ns()[0])
    return layer_rows(trace).with_columns(share_pct=share).select(*_COLUMNS)
