"""Records calls of functions, with start and end, with uprobes.

The kernel puts a trap at the begin of a function and, while the function runs, at its
return address. Part of the time that the two traps take lies between the recorded start and
end. The part depends on the function's first instruction: the kernel emulates some
instructions (a push), and steps the processor through all others, which takes several times
as long in a virtual machine. So calls that do nothing, of a function that begins with the
same instruction, are timed as well, and their duration (the `Tare`) is subtracted.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from xsp_levels.native.perf_event import Event, Hit, open_all, uprobe_at
from xsp_levels.native.symbol import Place

_PAGES = 16  # of each ring: some 500 calls with arguments
_TARES = 32  # calls that do nothing, by function
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


@dataclass(frozen=True, slots=True)
class Tare:
    """The measured duration of a call that does nothing: the time that the traps take.

    Attributes:
        median_ns: The median over several such calls.
        spread_ns: Three times their median absolute deviation: a call that is longer than
            the median by less cannot be told from a call that does nothing.
    """

    median_ns: int = 0
    spread_ns: int = 0


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


def weigh(places: Mapping[str, Place], idle: Callable[[str], object]) -> dict[str, Tare]:
    """Return the tare of each function; nobody else may call the functions meanwhile.

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
            for _ in range(_TARES):
                idle(name)
    finally:
        calls, _ = probes.close()
    taken: dict[str, list[int]] = {name: [] for name in places}
    for call in calls:
        taken[call.function].append(call.end_ns - call.start_ns)
    return {name: tare_of(each) for name, each in taken.items()}


def tare_of(taken_ns: Sequence[int]) -> Tare:
    """Return the tare, given durations of calls that do nothing. Pure.

    >>> tare_of([100, 110, 120, 900])
    Tare(median_ns=115, spread_ns=30)
    """
    if not taken_ns:
        return Tare()
    median = statistics.median(taken_ns)
    spread = statistics.median(abs(each - median) for each in taken_ns)
    return Tare(round(median), round(3 * spread))


def weighed(
    calls: Sequence[TimedCall], tares: Mapping[str, Tare], alike: Callable[[TimedCall], Hashable]
) -> list[tuple[int, int | None]]:
    """Return start and end of each call, without the time of the traps. Pure.

    The end is None if equal calls, taken together, cannot be told from calls that do
    nothing: the duration of such a call is unknown, which is not zero.

    Args:
        calls: The calls, in any order.
        tares: Tare of each function; a missing tare is taken to be zero.
        alike: Returns a key that is equal for calls that do the same: function and sizes.
    """
    kinds = [alike(call) for call in calls]
    excess: dict[Hashable, list[int]] = {kind: [] for kind in kinds}
    for call, kind in zip(calls, kinds, strict=True):
        tare = tares.get(call.function, Tare())
        excess[kind].append(call.end_ns - call.start_ns - tare.median_ns - tare.spread_ns)
    known = {kind: statistics.median(each) > 0 for kind, each in excess.items()}
    return [
        _without_traps(call, tares.get(call.function, Tare()), known[kind])
        for call, kind in zip(calls, kinds, strict=True)
    ]


def _without_traps(call: TimedCall, tare: Tare, known: bool) -> tuple[int, int | None]:
    lasted = call.end_ns - call.start_ns
    traps = min(tare.median_ns, lasted)
    start = call.start_ns + traps // 2
    if not known or lasted <= tare.median_ns:
        return start, None
    return start, call.end_ns - (traps - traps // 2)


def _open(place: Place, threads: Sequence[int], returning: bool) -> list[Event]:
    path = ctypes.c_char_p(os.fsencode(place.path))
    return open_all(uprobe_at(place, path, returning=returning), threads, _PAGES)
