"""Lists the memory that each layer allocates (A4 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.answer.analyses.layer.share import share_pct
from xsp.trace import Trace

_COLUMNS = columns(
    "index", "group", "phase", "layer", "type", "layer_type", "calls", "allocated_bytes",
    "own_allocated_bytes",
    share_pct="Its own allocations as a share of those of all layers.",
    kept_bytes="Allocated less freed: what is still held when the layer ends.",
    peak_bytes="Most held at one time in a call, above what was held when the call began.",
    path="Path of the span in the trace.",
)  # fmt: skip


@analysis("Which layers allocate memory?", _COLUMNS, needs=(Need.LAYERS, Need.MEMORY), paper="A4")
def layer_memory_allocation(trace: Trace) -> pl.DataFrame:
    """Return the memory that each layer allocates, in the order the layers began.

    Args:
        trace: A trace with layers and allocations.

    Raises:
        AnalysisError: The trace has no layers, or no allocations.
    """
    return (
        layer_rows(trace)
        .with_columns(
            share_pct=share_pct("own_allocated_bytes"),
            kept_bytes=pl.col("allocated_bytes") - pl.col("freed_bytes"),
        )
        .select(*_COLUMNS)
    )
