"""Tells what the program, and the whole machine, used of CPUs, memory, disks and networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.trace import Trace

# For each column the metric of the machine and that of the program; rates are of counters.
_RATES_PCT = {
    "cpu_pct": (("user_s", "system_s"), ("process_s",)),
    "io_wait_pct": (("io_wait_s",), ()),
    "stolen_pct": (("steal_s",), ()),
    "waiting_for_cpu_pct": (("cpu_pressure_s",), ()),
    "waiting_for_memory_pct": (("memory_pressure_s",), ()),
    "waiting_for_io_pct": (("io_pressure_s",), ()),
}
_STATES = ("user_s", "system_s", "idle_s", "io_wait_s", "steal_s")  # of all CPUs
_RATES = {
    "read_bytes_per_s": ("disk_read_bytes", "process_read_bytes"),
    "written_bytes_per_s": ("disk_written_bytes", "process_written_bytes"),
    "received_bytes_per_s": ("net_received_bytes", ""),
    "sent_bytes_per_s": ("net_sent_bytes", ""),
}
_AROUND_NS = 150_000_000  # before the steps: the first sample
_COLUMNS = {
    "of": "`machine`, or `program`: its process and all that it started.",
    "cpu_pct": "CPU time; 100 is one CPU.",
    "io_wait_pct": "Time in which CPUs had nothing to do but wait for disks; 100 is one CPU.",
    "stolen_pct": "Time that a hypervisor gave to other machines; 100 is one CPU.",
    "waiting_for_cpu_pct": "Share of time in which some thread waited for a CPU (pressure).",
    "waiting_for_memory_pct": "Share of time in which some thread waited for memory.",
    "waiting_for_io_pct": "Share of time in which some thread waited for a disk.",
    "memory_bytes": "Of the program, most memory held; of the machine, least memory available.",
    "swap_bytes": "Most memory swapped out.",
    "threads": "Most threads at one time.",
    "read_bytes_per_s": "Read from disks.",
    "written_bytes_per_s": "Written to disks.",
    "received_bytes_per_s": "Received over networks.",
    "sent_bytes_per_s": "Sent over networks.",
}


@analysis("What did the program use of the host?", _COLUMNS, needs=(Need.HOST,))
def host_use(trace: Trace) -> pl.DataFrame:
    """Return a row for the program and one for the machine, over the steps that were monitored.

    Args:
        trace: A trace measured with `monitor=True`, or where xsp can read a GPU.

    Raises:
        AnalysisError: The trace has no readings of the host.
    """
    readings = trace.readings.filter(pl.col("device") < 0, pl.col("time_ns") >= -_AROUND_NS)
    series = {
        str(name): (rows["time_ns"].to_numpy(), rows["value"].to_numpy())
        for (name,), rows in readings.sort("time_ns").group_by("metric")
    }

    def rate(*metrics: str) -> float | None:
        if not metrics or any(name not in series or len(series[name][0]) < 2 for name in metrics):
            return None
        spans = (series[name] for name in metrics)
        parts = [max(v[-1] - v[0], 0.0) / (t[-1] - t[0]) for t, v in spans]
        return 1e9 * float(sum(parts))

    def most(name: str, *, least: bool = False) -> int | None:
        values = series[name][1] if name in series else np.zeros(0)
        return int(values.min() if least else values.max()) if len(values) else None

    # All CPUs together do or await something all the time; ticks of 10 ms are too many or too few.
    cpus = round(rate(*_STATES) or 0.0)
    rows = []
    for at, of in enumerate(("machine", "program")):
        row: dict[str, Any] = {"of": of}
        for column, pair in _RATES_PCT.items():
            seconds = rate(*pair[at])
            if column == "cpu_pct" and seconds is not None and cpus:
                seconds = min(seconds, cpus)
            row[column] = None if seconds is None else 100 * seconds
        row |= {column: rate(*filter(None, (pair[at],))) for column, pair in _RATES.items()}
        rows.append(row)
    rows[0] |= {
        "memory_bytes": most("available_bytes", least=True),
        "swap_bytes": most("swap_used_bytes"),
    }
    rows[1] |= {"memory_bytes": most("process_rss_bytes"), "threads": most("process_threads")}
    whole = ("memory_bytes", "swap_bytes", "threads")
    schema = {n: pl.Int64 if n in whole else pl.Float64 for n in _COLUMNS} | {"of": pl.String}
    return pl.DataFrame(rows[::-1], schema=schema)
