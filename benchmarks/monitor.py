"""Measures what the monitor's helper costs, and how its sources behave on this machine.

Prints the helper's CPU time and memory, how late its samples are, how often each value moves, and
how much slower a program is with the helper beside it, by turns in one process.

    python benchmarks/monitor.py [SECONDS]
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import polars as pl
import psutil

from xsp.clock import SystemClock
from xsp.provider import Request
from xsp_levels.monitor.provider import Monitor

TURNS, TURN_S = 30, 0.4


def started() -> Monitor:
    """Start a helper, and wait for its first sample."""
    monitor = Monitor()
    monitor.start(SystemClock(), Request(frozenset(), monitored=True))
    return monitor


def cost(seconds: float) -> None:
    """Print the helper's own cost between two moments, so that its start does not count."""
    monitor = started()
    assert monitor._helper is not None
    process = psutil.Process(monitor._helper.pid)
    time.sleep(0.5)
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    used = sum(process.cpu_times()[:2]) - before
    rss = process.memory_info().rss
    records = monitor.stop()
    data = records.data
    print(f"helper: {100 * used / seconds:.2f} % of a core, {rss / 1e6:.1f} MB", end=", ")
    print(f"{data.samples} samples, {100 * data.late / data.samples:.1f} % more than 1 ms late")
    readings = monitor.readings(records)
    for (device, metric), rows in readings.group_by("device", "metric", maintain_order=True):
        moved = np.diff(rows.filter(pl.col("value").diff() != 0)["time_ns"].to_numpy())
        if len(moved) and metric in ("energy_j", "power_w", "gpu_busy_pct", "sm_active_pct"):
            print(f"  device {device} {metric}: moves every {np.median(moved) / 1e6:.1f} ms")


def work() -> float:
    """Multiply small matrices for a turn, and count the products per second."""
    matrix = np.ones((96, 96))
    begin, number = time.perf_counter(), 0
    while time.perf_counter() - begin < TURN_S:
        matrix @ matrix
        number += 1
    return number / (time.perf_counter() - begin)


def slowdown() -> None:
    """Print how much slower the work is beside the helper: the median ratio of pairs of turns."""
    ratios = []
    for turn in range(TURNS):
        found = {}
        for beside in (True, False) if turn % 2 else (False, True):
            monitor = started() if beside else None
            time.sleep(0.1)
            found[beside] = work()
            if monitor is not None:
                monitor.stop()
        ratios.append(found[False] / found[True] - 1)
    middle, spread = statistics.median(ratios), statistics.stdev(ratios) / TURNS**0.5
    print(f"beside the helper: {100 * middle:+.2f} % slower (± {196 * spread:.2f} %)")


if __name__ == "__main__":
    cost(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
    slowdown()
