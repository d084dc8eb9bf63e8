"""Records calls of functions, with start and end, with uprobes.

The kernel puts a trap at the begin of a function and, while the function runs, at its
return address. Part of the time that the two traps take lies between the recorded start and
end. The part depends on the function's first instruction: the kernel emulates some
instructions (a push), and steps the processor through all others, which takes several times
as long in a virtual machine. So calls that do nothing, of a function that begins with the
same instruction, are timed as well (`weigh`), for their duration to be subtracted.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from xsp_levels.native.perf_event import Event, Hit, open_all, uprobe_at
from xsp_levels.native.symbol import Place

_PAGES = 16  # of each ring: some 500 calls with arguments
_IDLE_CALLS = 32  # calls that do nothing, by function
_AT_ONCE = 32  # probes put in or taken out in parallel, as each waits for the kernel


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call.

    Attributes:
        function: Name of the function.
        start_ns: Begin, by CLOCK_MONOTONIC.
        end_ns: End, by CLOCK_MONOTONIC.
        thread: The kernel's number of the thread.
        arguments: The first six integer arguments.
    """

    function: str
    start_ns: int
    end_ns: int
    thread: int
    arguments: tuple[int, ...] = ()


class Probes:
    """Probes on functions, from the making of this object until `close`.

    Args:
        places: Functions by name.
        threads: The kernel's numbers of the threads that are watched.

    Raises:
        OSError: The kernel does not let this process watch functions.
    """

    def __init__(self, places: Mapping[str, Place], threads: Sequence[int]) -> None:
        self._events: list[tuple[str, bool, Event]] = []
        wanted = [(name, returning) for name in places for returning in (False, True)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            opened = [
                (name, returning, pool.submit(_open, places[name], threads, returning))
                for name, returning in wanted
            ]
        failed = next((error for *_, one in opened if (error := one.exception())), None)
        for name, returning, one in opened:
            if one.exception() is None:
                self._events += [(name, returning, event) for event in one.result()]
        if failed is not None:
            self.close()
            raise failed
        for *_, event in self._events:
            event.enable()

    def close(self) -> tuple[list[TimedCall], int]:
        """Take the probes out, and return the calls and the count of lost hits."""
        events, self._events = self._events, []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = list(pool.map(lambda one: one[2].close(), events))
        moments = [
            (hit, name, returning)
            for (name, returning, _), (hits, _) in zip(events, results, strict=True)
            for hit in hits
        ]
        return pair(moments), sum(lost for _, lost in results)


def pair(moments: Iterable[tuple[Hit, str, bool]]) -> list[TimedCall]:
    """Return the calls that begins and returns of functions make, by end. Pure.

    A begin without a return, or a return without a begin, makes no call. If a return and a
    begin bear the same time, the return belongs to the call that was open before, if any.

    Args:
        moments: Each a hit, the name of the function, and whether the hit is a return.
    """
    opened: dict[int, list[tuple[str, Hit]]] = {}
    early: dict[tuple[int, str], int] = {}  # time of the last return that closed no call
    calls: list[TimedCall] = []
    for hit, name, returning in sorted(moments, key=lambda each: (each[0].time_ns, not each[2])):
        stack = opened.setdefault(hit.thread, [])
        if not returning:
            if early.pop((hit.thread, name), None) == hit.time_ns:
                calls.append(TimedCall(name, hit.time_ns, hit.time_ns, hit.thread, hit.arguments))
            else:
                stack.append((name, hit))
            continue
        at = next((i for i in reversed(range(len(stack))) if stack[i][0] == name), None)
        if at is None:
            early[hit.thread, name] = hit.time_ns
            continue
        begin = stack[at][1]
        del stack[at:]  # calls inside that an exception or a jump left never return
        calls.append(TimedCall(name, begin.time_ns, hit.time_ns, hit.thread, begin.arguments))
    return calls


def weigh(places: Mapping[str, Place], idle: Callable[[str], object]) -> dict[str, int]:
    """Measure the time in ns that the traps take in a call of each function.

    It is the median duration of calls that do nothing. Nobody else may call the functions
    meanwhile.

    Args:
        places: Functions by name.
        idle: Calls the function of a name on this thread, with arguments for which the
            function does nothing.

    Raises:
        OSError: The kernel does not let this process watch functions.
    """
    probes = Probes(places, [threading.get_native_id()])
    try:
        for name in places:
            for _ in range(_IDLE_CALLS):
                idle(name)
    finally:
        calls, _ = probes.close()
    taken: dict[str, list[int]] = {name: [] for name in places}
    for call in calls:
        taken[call.function].append(call.end_ns - call.start_ns)
    return {name: round(statistics.median(each)) for name, each in taken.items() if each}


def _open(place: Place, threads: Sequence[int], returning: bool) -> list[Event]:
    path = ctypes.c_char_p(os.fsencode(place.path))
    return open_all(uprobe_at(place, path, returning=returning), threads, _PAGES)
