"""Counts the layers of each type (A5 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.answer.analyses.layer.share import by_type
from xsp.trace import Trace

_COLUMNS = columns(
    "group", "phase", "type", "layer_type",
    count="How many calls of layers are of the type.",
    share_pct="These as a share of all calls of layers.",
)  # fmt: skip


@analysis("Of what types are the layers?", _COLUMNS, needs=(Need.LAYERS,), paper="A5")
def layer_type_distribution(trace: Trace) -> pl.DataFrame:
    """Return how many layers of each type there are, most first.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    return by_type(layer_rows(trace), "count").select(*_COLUMNS)
