"""Opens groups of the kernel's events: all those of one thread, or the wake-ups on one processor.

A group writes into one ring, and is switched and read by its first event, which leads it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from xsp_levels.arming import undone_on_failure
from xsp_levels.native import event_ring
from xsp_levels.native.event_ring import Ring
from xsp_levels.native.own_file import File, close_own, file_of
from xsp_levels.system.linux.access import Access
from xsp_levels.system.linux.moment import samples
from xsp_levels.system.linux.record import PERIODS, Integers, What

_LEADING = (
    event_ring.DISABLED | event_ring.SWITCHES | event_ring.TASK | event_ring.TIMES_IN_ALL_RECORDS
)
_READ = event_ring.GROUP | event_ring.ID | event_ring.TIME_RUNNING
_LONGEST = 96  # bytes of a record of a system call's begin

_OWN_PAGES = 2048  # of the calling thread's ring: 8 MiB, some 100,000 records
_ALL_PAGES = 8192  # of all other rings together
_MOST_PAGES = 256  # of each of them
_MAY_LOCK = 1 << 14  # CAP_IPC_LOCK
_MLOCK_KB = Path("/proc/sys/kernel/perf_event_mlock_kb")  # for each processor


@dataclass(slots=True)
class Group:
    """The events of one thread, or of one processor.

    Attributes:
        descriptors: The events, the one that leads first.
        ring: Their ring.
        lost_counted: Whether the kernel counts lost records.
        says: What records of the events say, by identifier.
        count: How many samples were to be recorded when records were taken last.
        counters: Events of the processor's counters, which nothing leads: if the processor has no
            counter left, the kernel stops these and not the others.
    """

    descriptors: list[int]
    ring: Ring
    lost_counted: bool
    says: dict[int, What] = field(default_factory=dict)
    count: int = 0
    counters: list[int] = field(default_factory=list)
    _before: tuple[int, int, int] = (0, 0, 0)
    _file: File | None = None

    def __post_init__(self) -> None:
        self._file = file_of(self.descriptors[0])

    def enable(self) -> None:
        """Let the events record."""
        for descriptor in (*self.counters, self.descriptors[0]):
            event_ring.enable(descriptor)

    def disable(self) -> None:
        """Let the events record no longer."""
        for descriptor in (self.descriptors[0], *self.counters):
            event_ring.disable(descriptor)

    @property
    def counted(self) -> bool:
        """Whether the processor has counted all the time; a counter that it lacks reads nothing."""
        return bool(self.counters) and all(os.read(each, 8) for each in self.counters)

    def take(self, words: Integers) -> tuple[int, int]:
        """Copy the records since the last time, while the events are disabled.

        Args:
            words: Memory for the bytes that are pending in the ring.

        Returns:
            For how long the thread ran meanwhile, in ns, and how many records were lost.
        """
        full = self.ring.pending + _LONGEST > self.ring.capacity
        self.ring.take_into((ctypes.c_char * words.nbytes).from_address(words.ctypes.data))
        counters, each = self._read()
        lost = sum(counters[4::each]) if self.lost_counted else 0
        now = counters[1], sum(counters[2::each]), lost
        ran_ns, self.count, lost = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        if full and not self.lost_counted:
            lost = max(self.count - samples(words), 1)  # and switches, which do not count
        return ran_ns, lost

    def identifiers(self) -> list[int]:
        """Return the kernel's identifiers of the events."""
        words, each = self._read()
        return list(words[3::each])

    def close(self) -> None:
        """Close the events."""
        self.ring.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy."""
        descriptors = [*self.descriptors, *self.counters]
        self.descriptors, self.counters = [], []
        for descriptor in descriptors:
            close_own(descriptor, self._file)

    def _read(self) -> tuple[tuple[int, ...], int]:
        """Return the counters: how many, time running, and so many of each event."""
        data = os.read(self.descriptors[0], 16 + 24 * len(self.descriptors))
        words = struct.unpack(f"={len(data) // 8}q", data)
        return words, 3 if self.lost_counted else 2  # value, identifier, lost records


# The processor's counters that are sampled: type, what is counted, what a sample says.
COUNTERS = (
    (event_ring.HARDWARE, event_ring.CYCLES, What.CYCLES),
    (event_ring.HARDWARE, event_ring.INSTRUCTIONS, What.INSTRUCTIONS),
    (event_ring.HARDWARE, event_ring.CACHE_MISSES, What.CACHE_MISSES),
)


def thread_events(access: Access) -> list[tuple[int, int, int, What]]:
    """Return the events that are led in a thread: type, what is watched, sampled besides, said."""
    events = [
        (event_ring.SOFTWARE, event_ring.PAGE_FAULTS, 0, What.FAULT),
        (event_ring.SOFTWARE, event_ring.MAJOR_FAULTS, 0, What.MAJOR_FAULT),
    ]
    if access.calls:
        for number, what in zip(access.calls, (What.ENTER, What.EXIT), strict=True):
            events.append((event_ring.TRACEPOINT, number, event_ring.RAW, what))
    return events


def open_thread(access: Access, number: int, pages: int) -> Group:
    """Open the events of a thread, disabled.

    Args:
        access: What may be watched.
        number: The kernel's number of the thread.
        pages: Size of the ring, a power of two; smaller where a limit of locked memory is near.

    Raises:
        OSError: The kernel refuses, or the thread has ended.
    """
    common = event_ring.IDENTIFIER | event_ring.TIME
    flags = 0 if access.kernel else event_ring.EXCLUDE_KERNEL
    made = partial(event_ring.attributes, read_format=_read_format(access))
    leading = made(event_ring.SOFTWARE, event_ring.DUMMY, common | event_ring.CPU, flags | _LEADING)
    group = _opened(access, leading, number, -1, pages)
    events = thread_events(access)
    with undone_on_failure(group.close):
        for kind, config, sampled, _ in events:
            descriptor = event_ring.open_event(
                made(kind, config, common | sampled, flags), number, leader=group.descriptors[0]
            )
            group.descriptors.append(descriptor)
            event_ring.write_into(descriptor, group.descriptors[0])
        group.says = dict(zip(group.identifiers()[1:], (each[-1] for each in events), strict=True))
        if access.counters:
            for kind, config, what in COUNTERS:
                pinned = flags | event_ring.DISABLED | event_ring.PINNED
                descriptor = event_ring.open_event(
                    made(kind, config, common, pinned, period=PERIODS[what], read_format=0), number
                )
                group.counters.append(descriptor)
                event_ring.write_into(descriptor, group.descriptors[0])
                group.says[event_ring.identifier(descriptor)] = what
    return group


def open_wakings(access: Access, numbers: range, pages: int) -> list[Group]:
    """Open events of the wake-ups of some threads, disabled, a group for each processor.

    Args:
        access: What may be watched.
        numbers: The kernel's numbers of the threads.
        pages: Size of each ring, as in `open_thread`.

    Returns:
        The groups; none where the kernel refuses, for the wake-ups of some processors are no use.
    """
    made = event_ring.attributes(
        event_ring.TRACEPOINT,
        access.waking or 0,
        event_ring.TIME | event_ring.RAW,
        event_ring.DISABLED,
        read_format=_read_format(access),
    )
    groups: list[Group] = []
    try:
        for processor in processors():
            groups.append(_opened(access, made, -1, processor, pages))
            event_ring.set_filter(
                groups[-1].descriptors[0], f"pid >= {numbers.start} && pid < {numbers.stop}"
            )
    except OSError:
        for group in groups:
            group.close()
        return []
    return groups


def ring_pages(others: int) -> tuple[int, int]:
    """Return how large the calling thread's ring may be, and each of the others, in pages.

    The kernel limits what a user without privileges may lock: so much for each processor, and
    RLIMIT_MEMLOCK. The calling thread gets up to half of that.
    """
    room = _OWN_PAGES + _ALL_PAGES
    with suppress(OSError, ValueError):
        status = dict(
            line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        if not int(status["CapEff"], 16) & _MAY_LOCK:
            limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            limit = _OWN_PAGES * resource.getpagesize() if limit < 0 else limit
            limit += int(_MLOCK_KB.read_text()) * 1024 * len(processors())
            room = min(room, limit // resource.getpagesize() - others - 1)  # each has one more
    own = max(min(_OWN_PAGES, room // 2), 1)
    other = max(min((room - own) // max(others, 1), _MOST_PAGES), 1)
    return 1 << own.bit_length() - 1, 1 << other.bit_length() - 1


def affordable(access: Access, open_already: Collection[Group]) -> int:
    """Return for how many threads events may be open: they take half of the files that are left."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most if most >= 0 else 1 << 20  # no limit
    used = len(os.listdir("/proc/self/fd")) - sum(
        len(each.descriptors) + len(each.counters) for each in open_already
    )
    each = 1 + len(thread_events(access)) + len(COUNTERS) * access.counters
    return max((most - used) // 2 // each, 1)


def processors() -> list[int]:
    """Return the numbers of the processors that are switched on."""
    parts = Path("/sys/devices/system/cpu/online").read_text().strip().split(",")
    return [
        number
        for first, _, last in (part.partition("-") for part in parts)
        for number in range(int(first), int(last or first) + 1)
    ]


def _read_format(access: Access) -> int:
    return _READ | (event_ring.LOST if access.lost_counted else 0)


def _opened(access: Access, made: bytes, number: int, processor: int, pages: int) -> Group:
    descriptor = event_ring.open_event(made, number, cpu=processor)
    with undone_on_failure(partial(os.close, descriptor)):
        while True:
            try:
                return Group([descriptor], Ring(descriptor, pages), access.lost_counted)
            except OSError as error:
                if error.errno != errno.ENOMEM or pages == 1:
                    raise
            pages //= 2
