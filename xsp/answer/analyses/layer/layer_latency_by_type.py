"""Sums the time of the layers of each type (A6 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.answer.analyses.layer.share import by_type, share_pct, totals
from xsp.answer.analyses.total import total
from xsp.trace import Trace

_COLUMNS = columns(
    "group", "phase", "type", "layer_type",
    count="How many calls of layers are of the type.",
    own_ns="Their latencies less those of the layers inside, summed.",
    own_low_ns="Lower end of its 95 % interval.",
    own_high_ns="Upper end of its 95 % interval.",
    share_pct="These as a share of the time of all layers, which is 100 %.",
    own_device_ns="Time in which devices worked on what they launched, without the layers inside.",
    device_pct="This time as a share of that of all layers.",
)  # fmt: skip


@analysis("Which types of layer take the time?", _COLUMNS, needs=(Need.LAYERS,), paper="A6")
def layer_latency_by_type(trace: Trace) -> pl.DataFrame:
    """Return the time that the layers of each type take, the longest first.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    sums = (*totals("own_ns"), total("own_device_ns"))
    table = by_type(layer_rows(trace), "own_ns", *sums)
    return table.with_columns(device_pct=share_pct("own_device_ns")).select(*_COLUMNS)
