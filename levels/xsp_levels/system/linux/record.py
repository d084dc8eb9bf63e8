"""Holds what one visit recorded, as it was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from xsp.provider import Watched
from xsp_levels.system.linux.process import Counts

Integers = npt.NDArray[np.int64]


class What(IntEnum):
    """What a record of a thread's ring says."""

    OUT = 0  # left its processor, to wait for something
    PREEMPTED = 1  # had to leave its processor
    IN = 2  # runs on
    ENTER = 3  # a system call begins
    EXIT = 4  # a system call ends
    FAULT = 5  # a page fault
    MAJOR_FAULT = 6  # a page fault that waited for a disk
    ENDED = 7  # the thread has ended
    CYCLES = 8  # its processor has worked for another `PERIODS` cycles
    INSTRUCTIONS = 9
    CACHE_MISSES = 10  # of the last level


# After how many of these the kernel takes a sample: some 3,000 samples a second of a busy thread.
PERIODS = {What.CYCLES: 1_000_000, What.INSTRUCTIONS: 1_000_000, What.CACHE_MISSES: 10_000}


@dataclass(frozen=True, slots=True)
class ThreadRecords:
    """One thread.

    Attributes:
        number: The kernel's number of the thread.
        process: Name and number of its process; empty: the program's own.
        size: How many words of `SystemRecords.rings` are of this thread.
        ran_ns: Time on a processor.
        lost: How many records of the thread were lost, those after the last one kept.
        counts: What the counters of /proc say, where there are no rings.
    """

    number: int
    process: str = ""
    size: int = 0
    ran_ns: int = 0
    lost: int = 0
    counts: Counts | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SystemRecords:
    """The records of one visit.

    Attributes:
        begin_ns: When all threads were watched, by CLOCK_MONOTONIC.
        end_ns: When they were watched no longer.
        machine: The architecture, as `platform.machine()` names it.
        watched: What was watched.
        threads: The threads.
        rings: What the kernel wrote into the rings of the threads, one after the other, in words
            of eight bytes.
        events: What records of the kernel's events say, by identifier of the event.
        wakings: What the kernel wrote of wake-ups, alike.
        names: Names of threads, of those that woke others too, by the kernel's numbers.
        pythons: Identifiers of Python's threads, by the kernel's numbers.
    """

    begin_ns: int = 0
    end_ns: int = 0
    machine: str = ""
    watched: tuple[Watched, ...] = ()
    threads: tuple[ThreadRecords, ...] = ()
    rings: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    events: dict[int, What] = field(default_factory=dict)
    wakings: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    names: dict[int, str] = field(default_factory=dict)
    pythons: dict[int, int] = field(default_factory=dict)
