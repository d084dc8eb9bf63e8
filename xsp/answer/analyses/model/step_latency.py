"""Lists the steps of a recording with their latencies."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.trace import Trace

_COLUMNS = {
    "step": "Name of the step, or its number where steps have no names.",
    "latency_ns": "How long it took.",
    "median_pct": "Latency as a share of the median of all steps.",
    "device_ns": "Time in which a device worked for it; null where no device worked.",
    "device_pct": "That time as a share of the latency; above 100 where work outlasts the step.",
}


@analysis("How long did each step take?", _COLUMNS)
def step_latency(trace: Trace) -> pl.DataFrame:
    """Return the latency of each step, in their order.

    Args:
        trace: A recording of several steps. Of all other traces it is one row, of their root.
    """
    kept = trace.metadata.get("steps") or {}
    root = trace.root
    latency = list(kept.get("latency_ns", [root.latency_ns]))
    device = list(kept.get("device_ns", [root.device_ns if not kept else None] * len(latency)))
    names = list((trace.metadata.get("imported") or {}).get("steps") or ())
    if len(names) != len(latency):
        names = [trace.name] if len(latency) == 1 else [str(n) for n in range(1, len(latency) + 1)]
    table = pl.DataFrame(
        {
            "step": pl.Series(names, dtype=pl.String),
            "latency_ns": pl.Series(latency, dtype=pl.Float64, strict=False),
            "device_ns": pl.Series(device, dtype=pl.Float64, strict=False),
        }
    )
    return table.with_columns(
        median_pct=100 * pl.col("latency_ns") / pl.col("latency_ns").median(),
        device_pct=100 * pl.col("device_ns") / pl.col("latency_ns"),
    ).select(*_COLUMNS)
