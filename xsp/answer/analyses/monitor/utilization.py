"""Tells how busy each GPU was, and how much of it had work."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.reading.monitor import MEANS, SETTLE_NS
from xsp.trace import Trace

_COLUMNS = {
    "device": "Number of the GPU, as CUDA or HIP counts.",
    "gpu_busy_pct": "Share of time in which some kernel ran, however small.",
    "sm_active_pct": "Share of multiprocessors that had work, on average over time.",
    "sm_occupancy_pct": "Share of warps that were active, of those that all of these can hold.",
    "tensor_active_pct": "Share of cycles in which tensor cores worked.",
    "dram_active_pct": "Share of the bandwidth of the device's memory that was used.",
    "sm_clock_mhz": "Mean clock of the multiprocessors.",
    "memory_bytes": "Most memory of the device in use, of all programs.",
    "temperature_c": "Highest temperature.",
    "summary": "What that means, in a sentence.",
}


@analysis("How busy were the GPUs, and how much of them?", _COLUMNS, needs=(Need.UTILIZATION,))
def utilization(trace: Trace) -> pl.DataFrame:
    """Return a row for each GPU, with means over the steps that were monitored, or the program.

    Args:
        trace: A trace measured where xsp can read a GPU.

    Raises:
        AnalysisError: The trace has no readings of a GPU.
    """
    # NVML's utilization is late: its first second may tell of what ran before.
    last = pl.col("time_ns").max()
    late = pl.when(pl.col("metric") == "gpu_busy_pct").then(pl.min_horizontal(SETTLE_NS, last // 2))
    begin = pl.coalesce("since_ns", "time_ns")
    readings = trace.readings.filter(pl.col("device") >= 0, begin >= late.otherwise(0))
    value = pl.col("value")
    aggregates = [
        *(value.filter(pl.col("metric") == name).mean().alias(name) for name in MEANS),
        value.filter(pl.col("metric") == "memory_used_bytes").max().alias("memory_bytes"),
        value.filter(pl.col("metric") == "temperature_c").max().alias("temperature_c"),
    ]
    table = readings.group_by("device").agg(aggregates).sort("device")
    summary = pl.struct("gpu_busy_pct", "sm_active_pct").map_elements(_summary, pl.String)
    return table.with_columns(summary=summary).select(
        pl.col(name).cast(pl.Int64) if name in ("device", "memory_bytes") else name
        for name in _COLUMNS
    )


def _summary(shares: dict[str, Any]) -> str | None:
    """Say in how much of the time a kernel ran, and on how much of the GPU.

    >>> _summary({"gpu_busy_pct": 98.0, "sm_active_pct": 10.0})
    'Some kernel ran 98 % of the time, on 10 % of the SMs.'
    """
    busy, active = shares["gpu_busy_pct"], shares["sm_active_pct"]
    if busy is None:
        return None
    if active is None:
        return f"Some kernel ran {busy:.0f} % of the time; on how many SMs is not known."
    return f"Some kernel ran {busy:.0f} % of the time, on {active:.0f} % of the SMs."
