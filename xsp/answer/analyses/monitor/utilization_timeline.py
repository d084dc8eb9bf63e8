"""Tells what GPUs and the host did over time, as monitors read them."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.trace import Trace

_LEAST_NS, _MOST_ROWS = 100_000_000, 600
_VALUES = {
    "power_w": "power_w", "gpu_busy_pct": "gpu_busy_pct", "sm_active_pct": "sm_active_pct",
    "dram_active_pct": "dram_active_pct", "sm_clock_mhz": "sm_clock_mhz",
    "memory_used_bytes": "memory_bytes", "process_rss_bytes": "memory_bytes",
}  # fmt: skip
# Counters, whose growth in a second makes a value, and the factor of that.
_COUNTERS = {
    "energy_j": ("power_w", 1.0), "processor_energy_j": ("power_w", 1.0),
    "process_s": ("cpu_pct", 100.0),
}  # fmt: skip
_COLUMNS = {
    "device": "`host`, or `GPU 0` and so on, as CUDA or HIP counts.",
    "start_ns": "Time from the begin of the steps that were monitored, or of the program.",
    "power_w": "Mean power; of the host, of its CPU packages.",
    "gpu_busy_pct": "Share of time in which some kernel ran.",
    "sm_active_pct": "Share of multiprocessors that had work.",
    "dram_active_pct": "Share of the bandwidth of the device's memory that was used.",
    "sm_clock_mhz": "Clock of the multiprocessors.",
    "cpu_pct": "CPU time of the program's processes; 100 is one CPU.",
    "memory_bytes": "Memory in use: of the device, or by the program's processes.",
}


@analysis("What did GPUs and the host do over time?", _COLUMNS, needs=(Need.HOST,))
def utilization_timeline(trace: Trace) -> pl.DataFrame:
    """Return a row for each device and tenth of a second, or longer where that makes many rows.

    The times of a measured step's trace are those of the steps that were monitored, which ran
    after the others.

    Args:
        trace: A trace measured with `monitor=True`, or where xsp can read a GPU.

    Raises:
        AnalysisError: The trace has no readings.
    """
    readings = trace.readings.filter(pl.col("time_ns") >= 0)
    last: Any = readings["time_ns"].max()
    width = max(_LEAST_NS, (last or 0) // _MOST_ROWS)
    keys = ["device", "start_ns", "metric"]
    means = (
        readings.with_columns(start_ns=pl.col("time_ns") // width * width)
        .group_by(keys)
        .agg(pl.mean("value"), pl.col("value").last().alias("last"), pl.last("time_ns"))
        .sort(keys)
    )
    grown = pl.col("last").diff() / pl.col("time_ns").diff() * 1e9
    rates = means.with_columns(value=grown.over("device", "metric").clip(lower_bound=0))
    parts = [
        means.filter(pl.col("metric") == metric).select(*keys[:2], what=pl.lit(name), value="value")
        for metric, name in _VALUES.items()
    ]
    known = {(row["device"]) for row in means.filter(pl.col("metric") == "power_w").to_dicts()}
    for metric, (name, factor) in _COUNTERS.items():
        rows = rates.filter(pl.col("metric") == metric, pl.col("value").is_not_null())
        if name == "power_w":
            rows = rows.filter(~pl.col("device").is_in(list(known)))
        parts.append(rows.select(*keys[:2], what=pl.lit(name), value=pl.col("value") * factor))
    wide = pl.concat(parts).pivot("what", index=keys[:2], values="value").sort(keys[:2])
    missing = [pl.lit(None, pl.Float64).alias(n) for n in _COLUMNS if n not in wide.columns]
    on_host = pl.when(pl.col("device") < 0).then(pl.lit("host"))
    called = on_host.otherwise(pl.format("GPU {}", "device"))
    whole = ("start_ns", "memory_bytes")
    return wide.with_columns(*missing, device=called).select(
        "device",
        *(
            pl.col(name).cast(pl.Int64 if name in whole else pl.Float64)
            for name in list(_COLUMNS)[1:]
        ),
    )
