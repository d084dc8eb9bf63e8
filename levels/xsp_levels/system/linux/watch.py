"""Watches threads by the kernel's performance events, into one ring a thread.

The events of a thread form a group that is switched on and off by one call. They stay open between
visits, because closing the last event of a tracepoint takes the kernel 40 ms.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from xsp.provider import Watched
from xsp.text import counted
from xsp_levels.arming import undone_on_failure
from xsp_levels.native import event_ring, forked_child, thread
from xsp_levels.native.event_ring import Ring
from xsp_levels.system.linux import process
from xsp_levels.system.linux.access import Access
from xsp_levels.system.linux.moment import samples, wakers
from xsp_levels.system.linux.record import SystemRecords, ThreadRecords, What

MOST_THREADS = 256
_OWN_PAGES = 2048  # of the calling thread's ring: 8 MiB, some 100,000 records
_OTHER_PAGES = 8192  # of the rings of all other threads together, and of those of all processors
_MOST_PAGES = 256  # of each of them
_LONGEST = 96  # bytes of a record of a system call's begin
_LEAST_SHARE = 0.02  # of the processor time, that is worth a word
_BEGUN = 7  # PERF_RECORD_FORK: a watched thread began a thread or a process
_BEGUN_SIZE = 56

_LEADING = (
    event_ring.DISABLED | event_ring.SWITCHES | event_ring.TASK | event_ring.TIMES_IN_ALL_RECORDS
)

_FULL = (
    "this user may not lock as much memory as watching {} takes; raise the limit (ulimit -l, or "
    "kernel.perf_event_mlock_kb)"
)


@dataclass(slots=True)
class _Group:
    """The events of one thread, or of one processor.

    Attributes:
        descriptors: The events, the one that leads first, which has the ring.
        ring: Their ring.
        process: Name and number of the thread's process; empty: the program's own.
        roomy: Whether the ring is as large as that of the calling thread should be.
        ran_ns: Time that the thread has run, while the events were on, before this visit.
        lost: How many records were lost, before this visit.
        counted: How often the events have counted, before this visit.
    """

    descriptors: list[int]
    ring: Ring
    process: str = ""
    roomy: bool = False
    ran_ns: int = 0
    lost: int = 0
    counted: int = 0

    def close(self) -> None:
        self.ring.close()
        self.let_go()

    def let_go(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Watch:
    """A watch of this process's threads and of those of the processes it has started.

    Args:
        access: What may be watched.

    Attributes:
        warnings: What could not be watched in the visit that `stop` ended last, and why.
        dropped: How many records were lost in that visit.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._read_format = event_ring.GROUP | event_ring.ID | event_ring.TIME_RUNNING
        self._read_format |= event_ring.LOST if access.lost_counted else 0
        self._threads: dict[int, _Group] = {}
        self._wakings: list[_Group] = []
        self._filtered = range(0)  # numbers of the threads whose wake-ups are recorded
        self._events: dict[int, What] = {}
        self._own = 0
        self._begin_ns = 0
        self._cpu_ns = 0
        self._unwatched = ""
        self._known: frozenset[int] = frozenset()  # threads and processes at the begin
        self.warnings: tuple[str, ...] = ()
        self.dropped = 0
        forked_child.register(self)

    @property
    def watched(self) -> tuple[Watched, ...]:
        """What is watched."""
        known = [Watched.SWITCHES, Watched.FAULTS]
        known += [Watched.WAKERS] if self._wakings else []
        known += [Watched.CALLS] if self._access.calls else []
        return tuple(known)

    def start(self) -> None:
        """Begin a visit.

        Raises:
            OSError: The calling thread cannot be watched; nothing is.
        """
        self._own = threading.get_native_id()
        with undone_on_failure(self.close):
            self._open(self._wanted())
            if self._access.waking is not None:
                self._open_wakings(self._access.waking)
            self._cpu_ns = time.process_time_ns()
            groups = [group for number, group in self._threads.items() if number != self._own]
            # The calling thread last, which makes the calls that switch the others.
            for group in (*self._wakings, *groups, self._threads[self._own]):
                event_ring.enable(group.descriptors[0])
        self._begin_ns = time.monotonic_ns()

    def stop(self) -> SystemRecords:
        """End the visit, and return what was recorded."""
        end_ns = time.monotonic_ns()
        own = self._threads.get(self._own)
        if own is None:  # in a forked child
            return SystemRecords()
        event_ring.disable(own.descriptors[0])
        for number, group in self._threads.items():
            if number != self._own:
                event_ring.disable(group.descriptors[0])
        for group in self._wakings:
            event_ring.disable(group.descriptors[0])
        cpu_ns = time.process_time_ns() - self._cpu_ns
        self.dropped = 0
        rings, threads = [], []
        for number, group in self._threads.items():
            data, ran_ns = self._taken(group)
            rings.append(data)
            threads.append(ThreadRecords(number, group.process, len(data), ran_ns))
        wakings = b"".join(self._taken(group)[0] for group in self._wakings)
        joined = b"".join(rings)
        self.warnings = tuple(
            filter(None, (self._unwatched, *self._begun(joined, threads, cpu_ns)))
        )
        return SystemRecords(
            self._begin_ns,
            end_ns,
            platform.machine(),
            self.watched,
            tuple(threads),
            joined,
            dict(self._events),
            wakings,
            self._names(threads, wakings),
            thread.names(),
        )

    def close(self) -> None:
        """Close all events; a later `start` opens them again."""
        for group in (*self._threads.values(), *self._wakings):
            group.close()
        self._forget()

    def abandon(self) -> None:
        """Close the descriptors in a forked child; the parent's watch goes on."""
        for group in (*self._threads.values(), *self._wakings):
            group.let_go()
        self._forget()

    def _forget(self) -> None:
        self._threads, self._wakings, self._filtered = {}, [], range(0)
        self._events = {}

    def _wanted(self) -> dict[int, str]:
        """Return the threads to watch, the calling one first, each with its process's name."""
        own = process.threads()
        wanted = {self._own: "", **dict.fromkeys(own, "")}
        for child in process.descendants():
            if numbers := process.threads(child):
                named = f"{process.name_of(child)} {child}"
                wanted |= dict.fromkeys(numbers, named)
        self._known = frozenset(wanted)
        most = min(MOST_THREADS, self._affordable())
        self._unwatched = ""
        if len(wanted) > most:
            kept = {self._own, *process.busiest(wanted.keys() - {self._own}, most - 1)}
            self._unwatched = (
                f"{len(wanted) - most} of {len(wanted)} threads were not watched, those that have "
                "run least so far"
            )
            if most < MOST_THREADS:
                self._unwatched += "; raise the limit of open files (ulimit -n)"
            wanted = {number: named for number, named in wanted.items() if number in kept}
        return wanted

    def _affordable(self) -> int:
        """Return for how many threads events may be open: they take half the files left."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        each = len(self._kinds()) + 1
        mine = sum(len(group.descriptors) for group in self._threads.values())
        used = len(os.listdir("/proc/self/fd")) - mine
        return max((most - used) // 2 // each, 1)

    def _open(self, wanted: dict[int, str]) -> None:
        """Open the events of threads that are new, and close those of threads that have ended.

        Raises:
            OSError: Those of the calling thread are refused.
        """
        own = self._threads.get(self._own)
        for number in [*(self._threads.keys() - wanted.keys()), *self._narrow(own)]:
            self._threads.pop(number).close()
        others = max(len(wanted) - 1, 1)
        pages = max(min(_OTHER_PAGES // others, _MOST_PAGES), 1)
        pages = 1 << pages.bit_length() - 1
        refused = 0
        for number, named in wanted.items():
            if number in self._threads:
                continue
            is_own = number == self._own
            try:
                group = self._group(number, _OWN_PAGES if is_own else pages)
            except ProcessLookupError:  # it has ended meanwhile
                continue
            except OSError as error:
                if is_own or error.errno not in (errno.ENOMEM, errno.EACCES, errno.EPERM):
                    raise
                refused += 1
                continue
            group.process, group.roomy = named, is_own
            self._threads[number] = group
        if refused:
            self._unwatched = _FULL.format(f"{refused} of {len(wanted)} threads")

    def _narrow(self, own: _Group | None) -> list[int]:
        """Return the calling thread if its ring was made for a thread that does not call."""
        return [self._own] if own is not None and not own.roomy else []

    def _kinds(self) -> list[tuple[int, int, int, What]]:
        """Return the events below the leading one: type, what is watched, what is sampled."""
        kinds = [
            (event_ring.SOFTWARE, event_ring.PAGE_FAULTS, 0, What.FAULT),
            (event_ring.SOFTWARE, event_ring.MAJOR_FAULTS, 0, What.MAJOR_FAULT),
        ]
        if self._access.calls:
            enter, leave = self._access.calls
            kinds += [
                (event_ring.TRACEPOINT, enter, event_ring.RAW, What.ENTER),
                (event_ring.TRACEPOINT, leave, event_ring.RAW, What.EXIT),
            ]
        return kinds

    def _group(self, number: int, pages: int) -> _Group:
        """Open the events of a thread, disabled.

        Raises:
            OSError: The kernel refuses, or the thread has ended.
        """
        common = event_ring.IDENTIFIER | event_ring.TIME
        flags = 0 if self._access.kernel else event_ring.EXCLUDE_KERNEL
        leading = event_ring.attributes(
            event_ring.SOFTWARE,
            event_ring.DUMMY,
            common | event_ring.CPU,
            flags | _LEADING,
            read_format=self._read_format,
        )
        group = _opened(leading, number, -1, pages)
        with undone_on_failure(group.close):
            for kind, config, sampled, _ in self._kinds():
                made = event_ring.attributes(
                    kind, config, common | sampled, flags, read_format=self._read_format
                )
                descriptor = event_ring.open_event(made, number, leader=group.descriptors[0])
                group.descriptors.append(descriptor)
                event_ring.write_into(descriptor, group.descriptors[0])
            _, _, identifiers, _ = self._read(group)
        says = (what for *_, what in self._kinds())
        self._events |= dict(zip(identifiers[1:], says, strict=True))
        return group

    def _open_wakings(self, tracepoint: int) -> None:
        """Open events of wake-ups of the watched threads, on each processor.

        The kernel takes a condition once, so new events take the place of those whose condition
        leaves threads out. They are opened before the others are closed, which then is quick.
        """
        numbers = self._threads.keys()
        if min(numbers) in self._filtered and max(numbers) in self._filtered:
            return
        previous = self._wakings
        self._wakings, self._filtered = [], range(min(numbers), max(numbers) + 1)
        made = event_ring.attributes(
            event_ring.TRACEPOINT,
            tracepoint,
            event_ring.TIME | event_ring.RAW,
            event_ring.DISABLED,
            read_format=self._read_format,
        )
        processors = _processors()
        pages = 1 << max(min(_OTHER_PAGES // len(processors), _MOST_PAGES), 1).bit_length() - 1
        condition = f"pid >= {self._filtered.start} && pid < {self._filtered.stop}"
        try:
            for processor in processors:
                group = _opened(made, -1, processor, pages)
                self._wakings.append(group)
                event_ring.set_filter(group.descriptors[0], condition)
        except OSError:  # wake-ups of some processors are no use
            for group in self._wakings:
                group.close()
            self._wakings, self._filtered = [], range(0)
        for group in previous:
            group.close()

    def _taken(self, group: _Group) -> tuple[bytes, int]:
        """Return a group's records of this visit, and how long its thread ran, in ns."""
        data = group.ring.take()
        ran_ns, total, _, lost = self._read(group)
        if self._access.lost_counted:
            self.dropped += lost - group.lost
        elif len(data) + _LONGEST > group.ring.capacity:
            # Lost switches do not count; so at least one record is lost.
            self.dropped += max(total - group.counted - samples(data), 1)
        before, group.ran_ns = group.ran_ns, ran_ns
        group.lost, group.counted = lost, total
        return data, ran_ns - before

    def _read(self, group: _Group) -> tuple[int, int, list[int], int]:
        """Read the counters of a group.

        Returns:
            How long its thread has run while it was on, in ns; how often its events have counted;
            the events' identifiers; and how many records were lost, 0 where that is not counted.
        """
        data = os.read(group.descriptors[0], 16 + 24 * len(group.descriptors))
        words = struct.unpack(f"={len(data) // 8}q", data)
        lost_counted = self._access.lost_counted
        each = 3 if lost_counted else 2  # value, identifier, lost records
        lost = sum(words[4::each]) if lost_counted else 0
        return words[1], sum(words[2::each]), list(words[3::each]), lost

    def _begun(
        self, rings: bytes, threads: Iterable[ThreadRecords], cpu_ns: int
    ) -> tuple[str, ...]:
        """Return sentences on the threads and processes that began in the visit."""
        words = np.frombuffer(rings, np.int64)
        at = np.flatnonzero((words & ~(0xFFFF << 32)) == _BEGUN | _BEGUN_SIZE << 48)
        halves = words.view(np.int32)
        new_threads: set[int] = set()
        new_processes: set[int] = set()
        # Process, its parent, thread: a thread's process is that of its parent.
        for each, parent, number in halves[2 * at[:, None] + [2, 3, 4]].tolist():
            (new_threads if each == parent else new_processes).add(number)
        own = process.threads()
        new_threads |= set(own) - self._known
        new_processes |= set(process.descendants()) - self._known
        ran_ns = sum(each.ran_ns for each in threads if not each.process)
        missing = 1 - ran_ns / max(cpu_ns, 1)
        said = []
        if new_threads and missing >= _LEAST_SHARE:
            said.append(
                f"{counted(len(new_threads), 'thread')} began while threads were watched"
                f"{self._called(new_threads)} and took part in {missing:.0%} of the processor "
                "time that is not accounted for; begin threads before the measurement"
            )
        if new_processes:
            said.append(
                f"{counted(len(new_processes), 'process')} began while threads were watched"
                f"{self._called(new_processes)}; what they did is not accounted for"
            )
        return tuple(said)

    def _names(self, threads: Iterable[ThreadRecords], wakings: bytes) -> dict[int, str]:
        """Return the names of watched threads and of those that woke them."""
        names = {each.number: each.process for each in threads if each.process}
        names |= {
            each.native_id or 0: process.printable(each.name) for each in threading.enumerate()
        }
        others = (each.number for each in threads if not each.process)
        for number in (*others, *wakers(wakings)):
            if number not in names and (name := process.name_of(number)):
                names[number] = name
        return names

    def _called(self, numbers: Iterable[int]) -> str:
        """Return, in parentheses, the names of those among some threads that still live."""
        names = sorted({name for number in numbers if (name := process.name_of(number))})
        return f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""


def _opened(made: bytes, number: int, processor: int, pages: int) -> _Group:
    """Open an event that leads others, with a ring of at most `pages`.

    Near the limit of locked memory, the ring is smaller.

    Raises:
        OSError: The kernel refuses, or not even one page may be locked.
    """
    descriptor = event_ring.open_event(made, number, cpu=processor)
    with undone_on_failure(partial(os.close, descriptor)):
        while True:
            try:
                return _Group([descriptor], Ring(descriptor, pages))
            except OSError as error:
                if error.errno != errno.ENOMEM or pages == 1:
                    raise
            pages //= 2


def _processors() -> list[int]:
    """Return the numbers of the processors that are switched on."""
    with open("/sys/devices/system/cpu/online", encoding="ascii") as online:
        parts = [part.partition("-") for part in online.read().strip().split(",")]
    return [
        number for first, _, last in parts for number in range(int(first), int(last or first) + 1)
    ]
