"""Sums the memory that the layers of each type allocate (A7 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.answer.analyses.layer.share import by_type
from xsp.answer.analyses.total import total
from xsp.trace import Trace

_COLUMNS = columns(
    "group", "phase", "type", "layer_type",
    count="How many calls of layers are of the type.",
    own_allocated_bytes="What they allocated less what the layers inside did, summed.",
    share_pct="This as a share of what all layers allocated.",
)  # fmt: skip


@analysis(
    "Which types of layer allocate memory?",
    _COLUMNS,
    needs=(Need.LAYERS, Need.MEMORY),
    paper="A7",
)
def layer_memory_by_type(trace: Trace) -> pl.DataFrame:
    """Return the memory that the layers of each type allocate, most first.

    Args:
        trace: A trace with layers and allocations.

    Raises:
        AnalysisError: The trace has no layers, or no allocations.
    """
    own = "own_allocated_bytes"
    return by_type(layer_rows(trace), own, total(own)).select(*_COLUMNS)
