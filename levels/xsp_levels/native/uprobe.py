"""Calls of exported functions: places of functions in, calls with both their ends out, by uprobes.

The kernel puts a trap where a function begins and, while the function runs, where it
returns to. Part of what the two traps take lies between the two moments. What that part
is depends on the function's first instruction: the kernel emulates some (a push), and
steps the processor through all others, which takes several times as long in a virtual
machine. So a function is weighed (`Tare`) by calls of one that begins alike, with nothing
to do, and that is taken off again.
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

_PAGES = 16  # of each ring: some 500 calls with their arguments; a sixteenth of that costs 64 KiB
_TARES = 32
_AT_ONCE = 32  # probes that are put in or taken out side by side: each waits for the kernel


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call.

    Attributes:
        function: Its name.
        start_ns: CLOCK_MONOTONIC.
        end_ns: The same.
        thread: The kernel's number of the thread.
        arguments: First six integer arguments.
    """

    function: str
    start_ns: int
    end_ns: int
    thread: int
    arguments: tuple[int, ...] = ()


class Probes:
    """Probes on functions from now until `close`.

    Args:
        places: Functions by name.
        threads: The kernel's numbers of the threads that are watched.

    Raises:
        OSError: The kernel does not let us.
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
        """Take the probes out, and return the calls and how many hits were lost."""
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
    """What a call that does nothing seems to take.

    Attributes:
        median_ns: The median over several such calls.
        spread_ns: A call that takes less than this longer cannot be told from one that
            does nothing: three times the median absolute deviation.
    """

    median_ns: int = 0
    spread_ns: int = 0


def pair(moments: Iterable[tuple[Hit, str, bool]]) -> list[TimedCall]:
    """Return the calls that beginnings and returns make, by their end. Pure.

    A beginning without a return, or a return without its beginning, is no call. Where a
    return and a beginning bear the same time, the return belongs to the call that was
    open before, if there is one.

    Args:
        moments: Each with the name of the function and whether it returned there.
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
        del stack[at:]  # what was left by an exception or a jump never returns
        calls.append(TimedCall(name, begin.time_ns, hit.time_ns, hit.thread, begin.arguments))
    return calls


def weigh(places: Mapping[str, Place], idle: Callable[[str], object]) -> dict[str, Tare]:
    """Return what each function seems to take when it does nothing; nobody else may call them.

    Args:
        places: Functions by name.
        idle: Calls the function of that name, on this thread, so that it does nothing.

    Raises:
        OSError: The kernel does not let us.
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
    """Return what calls that do nothing took. Pure.

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
    """Return start and end of each call without the traps. Pure.

    The end is None where calls alike, taken together, cannot be told from calls that do
    nothing: how long they take is then not known, which is not zero.

    Args:
        calls: In any order.
        tares: By function; one that is missing is taken to be nothing.
        alike: Returns what is equal for calls that do the same: function and sizes.
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
