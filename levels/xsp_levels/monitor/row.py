"""Defines the file through which the helper hands over readings.

The file is a block of `HEADER` bytes, with counts and notes, and one `ROW` for each reading.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

METRICS = (
    "energy_j", "power_w", "gpu_busy_pct", "sm_active_pct", "sm_occupancy_pct",
    "tensor_active_pct", "dram_active_pct", "sm_clock_mhz", "memory_clock_mhz", "temperature_c",
    "throttle_reasons", "memory_used_bytes", "processor_energy_j", "user_s", "system_s", "idle_s",
    "io_wait_s", "steal_s", "cpu_pressure_s", "memory_pressure_s", "io_pressure_s",
    "available_bytes", "swap_used_bytes", "disk_read_bytes", "disk_written_bytes",
    "net_received_bytes", "net_sent_bytes", "process_s", "process_rss_bytes", "process_threads",
    "process_read_bytes", "process_written_bytes",
)  # fmt: skip

HOST = -1  # the host among device numbers
UNKNOWN = -1  # no time: a counter, or a value of one moment

ROW = struct.Struct("=qqiid")  # time_ns, since_ns, device, place in METRICS, value
COUNTS = struct.Struct("=qqqqq")  # ready, rows, samples, late samples, own CPU time in ns
HEADER = 4096  # the rest of it holds notes, lines of UTF-8


class Reading(NamedTuple):
    """One value of one metric.

    Attributes:
        metric: One of `METRICS`.
        value: The value, in the unit that ends the metric's name.
        device: Number of the device as CUDA or HIP counts; `HOST` for the host.
        time_ns: CLOCK_MONOTONIC of the value; 0: of the sample.
        since_ns: Begin of the time that the value averages over; `UNKNOWN`: none.
    """

    metric: str
    value: float
    device: int = HOST
    time_ns: int = 0
    since_ns: int = UNKNOWN


Readings = Iterator[Reading]
