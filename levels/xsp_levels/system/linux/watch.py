"""Watches the threads of the program by the kernel's events, visit by visit.

The events stay open between visits, switched off: to close the last one of a tracepoint takes the
kernel 40 ms.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Collection, Iterable

import numpy as np

from xsp.provider import Records, Watched
from xsp.text import counted
from xsp_levels.arming import undone_on_failure
from xsp_levels.native import forked_child, thread
from xsp_levels.native.perf_event import explain
from xsp_levels.system.linux import process
from xsp_levels.system.linux.access import Access
from xsp_levels.system.linux.group import (
    Group,
    affordable,
    open_thread,
    open_wakings,
    processors,
    ring_pages,
)
from xsp_levels.system.linux.moment import recorded_wakings, wakers
from xsp_levels.system.linux.record import Integers, SystemRecords, ThreadRecords, What

MOST_THREADS = 256
_NO_CALLS = "system calls are missing, and what threads waited in; {}."
_NO_WAKERS = (
    "who wakes threads is not known, so the wait for a processor that follows another one counts "
    "as blocked; {}."
)
_FEWER_WAKERS = (
    "the kernel counted more wake-ups than it recorded; where one is missing, the wait for a "
    "processor that follows counts as blocked."
)
_NO_COUNTER_LEFT = (
    "cycles, instructions and cache misses are missing, because the processor had no counter left. "
    "Stop other profilers, or the kernel's watchdog: sudo sysctl kernel.nmi_watchdog=0."
)
_LEAST_SHARE = 0.02  # of the program's processor time, that is worth a word
# Header of the record that a watched thread began a thread or a process: PERF_RECORD_FORK, 56 bytes
_BEGUN, _FLAGS = 7 | 56 << 48, 0xFFFF << 32


class Watch:
    """A watch of this process's threads and of those of the processes it has started.

    Args:
        access: What may be watched.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._groups: dict[int, Group] = {}  # by the kernel's number of the thread
        self._processes: dict[int, str] = {}  # of each thread, as in `ThreadRecords`
        self._wakings: list[Group] = []
        self._woken = range(0)  # threads whose wake-ups are recorded
        self._own = 0  # the calling thread
        self._roomy: set[int] = set()  # threads that have called, whose rings are the largest
        self._begin_ns = self._cpu_ns = 0
        self._pythons: dict[int, int] = {}  # threads that end in the visit among them
        self._names: dict[int, str] = {}
        self._warnings: list[str] = []
        forked_child.register(self)

    def start(self) -> None:
        """Begin a visit.

        Raises:
            OSError: The calling thread cannot be watched; nothing is.
        """
        self._own = threading.get_native_id()
        missing = _NO_CALLS.format(self._access.no_calls)
        self._warnings = [] if self._access.calls else [missing]
        with undone_on_failure(self.close):
            self._open()
            self._pythons, self._names = thread.names(), process.python_names()
            self._cpu_ns = time.process_time_ns()
            # The calling thread last: it makes the calls that switch the others.
            others = (group for number, group in self._groups.items() if number != self._own)
            for group in (*self._wakings, *others, self._groups[self._own]):
                group.enable()
        self._begin_ns = time.monotonic_ns()

    def stop(self) -> Records:
        """End the visit, and return what was recorded; nothing in a forked child."""
        end_ns = time.monotonic_ns()
        if self._own not in self._groups:
            return Records(SystemRecords())
        with undone_on_failure(self.close):  # which could leave records in the rings
            self._groups[self._own].disable()
            for group in (*self._groups.values(), *self._wakings):
                group.disable()
            return self._records(end_ns, time.process_time_ns() - self._cpu_ns)

    def _records(self, end_ns: int, cpu_ns: int) -> Records:
        rings, taken = _taken(self._groups.values())
        woken, lost = _taken(self._wakings)
        threads = tuple(
            ThreadRecords(number, self._processes[number], size, ran_ns, lost_there)
            for number, (size, ran_ns, lost_there) in zip(self._groups, taken, strict=True)
        )
        says: dict[int, What] = {}
        for group in self._groups.values():
            says |= group.says
        counted_all = all(group.counted for group in self._groups.values())
        if self._access.counters and not counted_all:
            self._warnings.append(_NO_COUNTER_LEFT)
        known = (
            *(Watched.SWITCHES, Watched.FAULTS),
            *([Watched.WAKERS] if self._wakings else []),
            *([Watched.CALLS] if self._access.calls else []),
            *([Watched.COUNTERS] if counted_all else []),
        )
        data = SystemRecords(
            begin_ns=self._begin_ns,
            end_ns=end_ns,
            machine=platform.machine(),
            watched=known,
            threads=threads,
            rings=rings,
            events=says,
            wakings=woken,
            names=process.names(self._processes, self._names, wakers(woken)),
            pythons=self._pythons | thread.names(),
        )
        # Of wake-ups by timers of an idle processor, one in 70 was counted and not recorded.
        missing = sum(group.count for group in self._wakings) - recorded_wakings(woken)
        notes: tuple[str, ...] = (
            () if self._wakings else (_NO_WAKERS.format(self._access.no_waking),)
        )
        if missing > sum(each[-1] for each in lost):
            notes = (_FEWER_WAKERS,)
        return Records(
            data,
            dropped=sum(each[-1] for each in (*taken, *lost)),
            warnings=(*self._warnings, *self._newcomers(data, cpu_ns)),
            notes=notes,
        )

    def close(self) -> None:
        """Close all events; a later `start` opens them again."""
        groups = self._forgotten()
        for group in groups:
            group.close()

    def abandon(self) -> None:
        """Close the descriptors in a forked child; the parent's watch goes on."""
        for group in self._forgotten():
            group.abandon()

    def _forgotten(self) -> list[Group]:
        groups = [*self._groups.values(), *self._wakings]
        self._groups, self._wakings, self._woken, self._roomy = {}, [], range(0), set()
        return groups

    def _open(self) -> None:
        """Open the events of threads that are new, and close those of threads that have ended.

        Raises:
            OSError: Those of the calling thread are refused.
        """
        self._processes = process.all_threads(self._own)
        wanted = list(self._processes)
        most = min(MOST_THREADS, affordable(self._access, self._groups.values()))
        if len(wanted) > most:
            wanted = [self._own, *process.busiest(wanted[1:], most - 1)]
            remedy = " Raise the limit of open files (ulimit -n)." if most < MOST_THREADS else ""
            self._warnings.append(
                f"only the {most} of {len(self._processes)} threads that have run longest were "
                f"watched.{remedy}"
            )
        self._roomy &= set(wanted)
        ended, narrow = self._groups.keys() - set(wanted), {self._own} - self._roomy
        for number in self._groups.keys() & (ended | narrow):
            self._groups.pop(number).close()
        others = len(wanted) - 1 + (len(processors()) if self._access.waking else 0)
        own_pages, pages = ring_pages(others)
        refusals: list[OSError] = []
        for number in wanted:
            if number in self._groups:
                continue
            is_own = number == self._own
            try:
                size = own_pages if is_own else pages
                self._groups[number] = open_thread(self._access, number, size)
            except ProcessLookupError:  # it has ended meanwhile
                continue
            except OSError as error:
                if is_own:
                    raise
                refusals.append(error)
        self._roomy.add(self._own)
        if refusals:
            said = f"{len(refusals)} of {len(wanted)} threads were not watched"
            self._warnings.append(f"{said}: {explain(refusals[0])}.")
        low, high = min(self._groups), max(self._groups)
        if self._access.waking and not (low in self._woken and high in self._woken):
            # The kernel takes a condition once. While the others are open, to close these is quick.
            before, self._woken = self._wakings, range(low, high + 1)
            self._wakings = open_wakings(self._access, self._woken, pages)
            for group in before:
                group.close()

    def _newcomers(self, data: SystemRecords, cpu_ns: int) -> tuple[str, ...]:
        """Return sentences on the threads and processes that began in the visit."""
        at = np.flatnonzero((data.rings & ~_FLAGS) == _BEGUN)
        # Process, its parent, thread: a thread's process is that of its parent.
        begun = data.rings.view(np.int32)[2 * at[:, None] + [2, 3, 4]].tolist()
        now = process.all_threads(self._own)
        known = {_number(named) for named in self._processes.values()}
        threads = {number for each, parent, number in begun if each == parent}
        children = {number for each, parent, number in begun if each != parent}
        for number in now.keys() - self._processes.keys():
            child = _number(now[number])
            (threads if child in known else children).add(number if child in known else child)
        ran_ns = sum(each.ran_ns for each in data.threads if not each.process)
        share = 1 - ran_ns / max(cpu_ns, 1)
        said = []
        if threads and share >= _LEAST_SHARE:
            said.append(
                f"{counted(len(threads), 'thread')}{_named(threads)} began while xsp watched the "
                "others, and what they did is missing. Threads that were not watched took "
                f"{100 * share:.0f} % of the program's processor time. Begin threads before the "
                "measurement."
            )
        if children:
            said.append(
                f"{counted(len(children), 'process')}{_named(children)} began while xsp watched "
                "the others, and what they did is missing. Begin them before the measurement."
            )
        return tuple(said)


def _taken(groups: Collection[Group]) -> tuple[Integers, list[tuple[int, int, int]]]:
    """Return the records in the rings of some groups, one after the other.

    Returns:
        The words, and of each group how many there are, how long its thread ran, in ns, and how
        many records were lost.
    """
    sizes = [group.ring.pending // 8 for group in groups]
    words = np.empty(sum(sizes), np.int64)
    parts = np.split(words, np.cumsum(sizes)[:-1])
    return words, [
        (size, *group.take(part)) for group, size, part in zip(groups, sizes, parts, strict=False)
    ]


def _number(named: str) -> int:
    """Return the number of a process that has such a name; 0: the program's own."""
    return int(named.rpartition(" ")[2] or 0)


def _named(numbers: Iterable[int]) -> str:
    """Return, in parentheses, the names of those among some threads that still live."""
    names = sorted({name for number in numbers if (name := process.name_of(number))})
    return f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""
