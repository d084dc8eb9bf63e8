"""Layer latency (A3 of the paper): a trace in, the latency of each layer in their order out."""

from __future__ import annotations

import polars as pl

from xsp.analyses.contract import Need, analysis
from xsp.analyses.layer.row import columns, layer_rows
from xsp.trace import Trace

_COLUMNS = columns(
    "index", "group", "phase", "layer", "type", "layer_type", "calls",
    "latency_ns", "latency_low_ns", "latency_high_ns", "own_ns", "own_low_ns", "own_high_ns",
    share_pct="Own time as a share of the trace's latency.",
) | columns(
    "device_ns", "serialised_ns", "path"
)  # fmt: skip


@analysis("Which layers take the time?", _COLUMNS, needs=(Need.LAYERS,), paper="A3")
def layer_latency(trace: Trace) -> pl.DataFrame:
    """Return the latency of each layer, in the order the layers began.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    whole = pl.lit(trace.root.latency_ns, dtype=pl.Float64)
    share = (100 * pl.col("own_ns") / whole).fill_nan(None)
    return layer_rows(trace).with_columns(share_pct=share).select(*_COLUMNS)
