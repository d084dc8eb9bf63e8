"""The system level: what recording a call, a switch and a page fault costs, and reading them.

Run it as `python benchmarks/system.py`, on a quiet machine where `xsp doctor` says that all may be
watched. Costs are processor time of the thread, the least of several rounds, recorded less bare;
the rounds take turns. `within` is what lies inside of a recorded call, by the median length of
`getppid` in the records less that of the call without recording.
"""

from __future__ import annotations

import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable

from table import print_header, print_row

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp_levels.system.linux.provider import LinuxSystem

ROUNDS, CALLS, FAULTS, SWITCHES = 9, 20_000, 4_000, 2_000
REQUEST = Request(frozenset({Kind.SYSCALL}))


def calls() -> int:
    """Make system calls; return how many."""
    for _ in range(CALLS):
        os.getppid()
    return CALLS


def faults() -> int:
    """Touch new pages; return how many."""
    size = FAULTS * mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
    return FAULTS


def switches() -> int:
    """Play ping-pong with another thread by pipes; return how often this one was off its CPU."""
    there, back = os.pipe(), os.pipe()

    def answer() -> None:
        for _ in range(SWITCHES):
            os.write(back[1], os.read(there[0], 1))

    other = threading.Thread(target=answer)
    other.start()
    for _ in range(SWITCHES):
        os.write(there[1], b"x")
        os.read(back[0], 1)
    other.join()
    for end in (*there, *back):
        os.close(end)
    return SWITCHES


def cost(work: Callable[[], int]) -> tuple[float, float, int]:
    """Return ns of processor time for each event, bare and recorded, and records lost."""
    provider, clock, lost = LinuxSystem(), SystemClock(), 0
    took: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * ROUNDS):
        recorded = turn % 2 == 1
        if recorded:
            provider.start(clock, REQUEST)
        begin = time.process_time_ns() if work is switches else time.thread_time_ns()
        count = work()
        end = time.process_time_ns() if work is switches else time.thread_time_ns()
        if recorded:
            lost += provider.stop().dropped
        took[recorded].append((end - begin) / count)
    return min(took[False]), min(took[True]), lost


def handling() -> tuple[float, float, float, float]:
    """Return ms to start first and later, ms to stop, and µs to read a record."""
    provider, clock = LinuxSystem(), SystemClock()
    starts, stops, read = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        provider.start(clock, REQUEST)
        starts.append(time.perf_counter() - begin)
        calls()
        begin = time.perf_counter()
        records = provider.stop()
        stops.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        rows = provider.spans(records).height
        provider.accounts(records)
        read.append((time.perf_counter() - begin) / (2 * rows))
    return (
        1e3 * starts[0],
        1e3 * statistics.median(starts[1:]),
        1e3 * statistics.median(stops[1:]),
        1e6 * statistics.median(read),
    )


def within() -> float:
    """Return ns that recording takes inside of a call."""
    provider, clock = LinuxSystem(), SystemClock()
    provider.start(clock, REQUEST)
    calls()
    rows = provider.spans(provider.stop())
    own = rows.filter(rows["name"] == "getppid")
    recorded = float((own["end_ns"] - own["start_ns"]).median() or 0.0)
    empty, bare = threading.get_ident, []
    for function in (os.getppid, empty):
        took = []
        for _ in range(ROUNDS):
            begin = time.thread_time_ns()
            for _ in range(CALLS):
                function()
            took.append((time.thread_time_ns() - begin) / CALLS)
        bare.append(min(took))
    return recorded - (bare[0] - bare[1])


def main() -> None:
    """Print both tables."""
    print_header("Recording the operating system", frameworks=())
    rows = []
    for work, bar in ((calls, 1100), (switches, 1000), (faults, 700)):
        bare, recorded, lost = cost(work)
        rows.append((work.__name__, f"{bare:.0f}", f"{recorded - bare:.0f}", f"{bar}", f"{lost}"))
    widths = (10, 8, 8, 8, 8)
    print_row(("events", "ns bare", "ns more", "bar", "lost"), widths)
    for row in rows:
        print_row(row, widths)
    first, later, stop, read = handling()
    print(f"start {first:.1f} ms, later {later:.2f} ms; stop {stop:.1f} ms; {read:.2f} µs a record")
    print(f"within a recorded call: {within():.0f} ns")


if __name__ == "__main__":
    main()
