"""Reads in /proc which threads there are, what they are called, and what is counted of them.

The counters serve where performance events are refused, as in most containers: they say how long
and how often, not when.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NATIVE = "native thread"
_PROC = Path("/proc")
_CPU_CLOCK_OF_THREAD = 6  # CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED, beside the number's complement


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of a thread.

    Attributes:
        running_ns: Time on a processor.
        runnable_ns: Time in which it waited for a processor.
        page_faults: Page faults, those that waited for a disk among them.
        major_faults: Page faults that waited for a disk.
        preempted: How often it had to give way.
    """

    running_ns: int
    runnable_ns: int
    page_faults: int
    major_faults: int
    preempted: int

    def since(self, earlier: Counts) -> Counts:
        """Return by how much the counters grew."""
        return Counts(
            self.running_ns - earlier.running_ns,
            self.runnable_ns - earlier.runnable_ns,
            self.page_faults - earlier.page_faults,
            self.major_faults - earlier.major_faults,
            self.preempted - earlier.preempted,
        )


def threads(process: int | str = "self") -> list[int]:
    """Return the kernel's numbers of a process's threads; none if it has ended."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(_PROC / str(process) / "task")]
    return []


def all_threads(own: int) -> dict[int, str]:
    """Return the threads of this process and of those that it has started.

    Args:
        own: The kernel's number of the calling thread, which comes first.

    Returns:
        Name and number of each thread's process, empty for this one, by the kernel's number.
    """
    found = {own: "", **dict.fromkeys(threads(), "")}
    for child in descendants():
        if numbers := threads(child):
            found |= dict.fromkeys(numbers, f"{name_of(child)} {child}")
    return found


def descendants(process: int | str = "self") -> list[int]:
    """Return the numbers of the processes that a process has started, and that these have."""
    found: list[int] = []
    for thread in threads(process):
        with suppress(OSError):
            path = f"/proc/{process}/task/{thread}/children"
            found += map(int, _read(path).split())
    return found + [each for child in found for each in descendants(child)]


def python_names() -> dict[int, str]:
    """Return the names of Python's threads, by the kernel's numbers."""
    return {each.native_id or 0: printable(each.name) for each in threading.enumerate()}


def names(
    processes: Mapping[int, str], pythons: Mapping[int, str], others: Iterable[int] = ()
) -> dict[int, str]:
    """Return the names of threads, by the kernel's numbers.

    Args:
        processes: Threads, each with its process, as `all_threads` returns them.
        pythons: Names of Python's threads that may have ended meanwhile.
        others: Numbers of further threads, of any process.
    """
    found = {**pythons, **python_names()}
    found |= {number: process for number, process in processes.items() if process}
    unnamed = {*processes, *others} - found.keys()
    found |= {number: name for number in unnamed if (name := name_of(number))}
    # Threads that a library made have the name of the thread that made them.
    whole = name_of(os.getpid())
    native = {number for number in unnamed & processes.keys() if found.get(number) == whole}
    return found | dict.fromkeys(native, _NATIVE)


def name_of(thread: int) -> str:
    """Return the name that the kernel knows a thread by; empty if the thread has ended."""
    with suppress(OSError):
        return printable(_read(f"/proc/{thread}/comm").removesuffix(b"\n").decode(errors="replace"))
    return ""


def printable(name: str) -> str:
    """Return a name with question marks for what cannot be printed: a program may choose any."""
    return "".join(each if each.isprintable() else "?" for each in name)


def busiest(numbers: Iterable[int], most: int) -> list[int]:
    """Return the `most` threads that have run longest so far."""
    return sorted(numbers, key=_ran_ns, reverse=True)[:most]


def counts(thread: int, *, own: bool) -> Counts | None:
    """Return the counters of a thread; None if it has ended.

    Args:
        thread: The kernel's number of the thread.
        own: Whether it is a thread of this process.
    """
    folder = f"/proc/{thread}/task/{thread}"
    try:
        running, runnable, _ = map(int, _read(f"{folder}/schedstat").split())
        fields = _read(f"{folder}/stat").rpartition(b")")[2].split()  # from the third on
        status = dict(line.split(b":", 1) for line in _read(f"{folder}/status").splitlines())
    except (OSError, ValueError):
        return None
    if own:
        # What schedstat says of a thread that runs now is up to a tick old.
        with suppress(OSError):
            running = time.clock_gettime_ns((~thread << 3) | _CPU_CLOCK_OF_THREAD)
    minor, major = int(fields[7]), int(fields[9])
    preempted = int(status.get(b"nonvoluntary_ctxt_switches", b"0"))
    return Counts(running, runnable, minor + major, major, preempted)


def _ran_ns(thread: int) -> int:
    with suppress(OSError, ValueError):
        return int(_read(f"/proc/{thread}/schedstat").split()[0])
    return 0


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
