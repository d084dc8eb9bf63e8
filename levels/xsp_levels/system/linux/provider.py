"""The provider of the system level records system calls, and what Linux does to threads."""

from __future__ import annotations

import os
import threading
import time
import weakref

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Accounts, EmptySpan, Records, Request, SpanRows, Watched
from xsp_levels.native import thread
from xsp_levels.native.perf_event import explain
from xsp_levels.system.linux import process, state
from xsp_levels.system.linux.access import access, keep_tracepoints, unwatchable
from xsp_levels.system.linux.call import call_rows, read_calls
from xsp_levels.system.linux.moment import read_moments, read_wakings
from xsp_levels.system.linux.record import SystemRecords, ThreadRecords
from xsp_levels.system.linux.watch import MOST_THREADS, Watch

_COUNTED = (
    "system calls are missing, and of waits and page faults only sums over many steps are known, "
    "not when and why: {}."
)


class LinuxSystem:
    """Observes the threads of this process, and those of the processes that it has started."""

    name = "linux"
    level = Level.SYSTEM
    kinds = frozenset({Kind.SYSCALL})
    record_type = SystemRecords

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._counters: _Counters | None = None
        self._end: weakref.finalize[[], Clock] | None = None
        self._armed = False

    def unavailable(self) -> str | None:
        """Return why threads cannot be watched on this system, or None if they can."""
        return unwatchable()

    def remark(self) -> str | None:
        """Return a line for each thing that may be watched: whether it is, and the remedy.

        For root, the kernel's numbers of events are left where other users find them.
        """
        keep_tracepoints()
        return "\n".join(access().lines())

    def start(self, clock: Clock, request: Request) -> None:
        """Watch the threads that there are now, and those of processes that this one has started.

        The kernel's events stay open between visits, switched off, until records are read or the
        measurement's clock is gone. Where the kernel refuses events, /proc's counters are read at
        both ends of the visit.
        """
        self.stop()
        if Kind.SYSCALL not in request.kinds:
            return
        allowed, refusal = access(), access().refusal
        self._armed = True
        if refusal is None:
            if self._watch is None:
                self._watch = Watch(allowed)
            self._last_until(clock)
            try:
                self._watch.start()
            except OSError as error:
                refusal = explain(error)
        if refusal is not None:
            self._counters = _Counters(refusal)

    def _last_until(self, clock: Clock) -> None:
        """Close the kernel's events as soon as the measurement that has this clock is over."""
        if self._end is not None:
            if (of := self._end.peek()) and of[0] is clock:
                return
            self._end.detach()
        assert self._watch is not None
        self._end = weakref.finalize(clock, self._watch.close)
        self._end.atexit = False  # the kernel closes them then

    def stop(self) -> Records:
        """Watch no longer, and return the records."""
        armed, self._armed = self._armed, False
        counters, self._counters = self._counters, None
        if counters is not None:
            return counters.stop()
        if not armed or self._watch is None:
            return Records(SystemRecords())
        return self._watch.stop()

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per system call. Pure."""
        self._rest()
        data: SystemRecords = records.data
        return call_rows(data, read_calls(data, read_moments(data)))

    def accounts(self, records: Records) -> Accounts:
        """Turn records into accounts of when and why threads waited, and of page faults. Pure."""
        self._rest()
        data: SystemRecords = records.data
        if any(each.counts for each in data.threads):
            return state.counted(data)
        moments = read_moments(data)
        return state.accounts(data, moments, read_calls(data, moments), read_wakings(data))

    def _rest(self) -> None:
        """Close the kernel's events: who reads records has recorded them."""
        if self._watch is not None and not self._armed:
            self._watch.close()

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return a system call that does next to nothing; None if none can be recorded."""
        if kind is not Kind.SYSCALL or access().calls is None:
            return None
        # What lies outside of the call is Python's way into a function that is as simple.
        return EmptySpan("getppid", os.getppid, bare=os.getppid, apart=threading.get_ident)


class _Counters:
    """The counters of /proc, from the making of this object until `stop`."""

    def __init__(self, why: str) -> None:
        self._why = why
        own = threading.get_native_id()
        threads = process.all_threads(own)
        busiest = process.busiest(threads.keys() - {own}, MOST_THREADS - 1)
        self._names = process.python_names()
        # The calling thread, which reads, is read last here and first in the end.
        self._before = {
            number: (threads[number], counts)
            for number in (*busiest, own)
            if (counts := process.counts(number, own=not threads[number]))
        }
        self._begin_ns = time.monotonic_ns()

    def stop(self) -> Records:
        """Return by how much the counters grew, of threads that still live."""
        end_ns = time.monotonic_ns()
        threads = tuple(
            ThreadRecords(number, named, counts=after.since(before))
            for number, (named, before) in reversed(self._before.items())
            if (after := process.counts(number, own=not named))
        )
        data = SystemRecords(
            self._begin_ns,
            end_ns,
            watched=(Watched.SWITCHES, Watched.FAULTS),
            threads=threads,
            names=process.names({each.number: each.process for each in threads}, self._names),
            pythons=thread.names(),
        )
        return Records(data, warnings=(_COUNTED.format(self._why),))
