"""Calls of exported functions with both their ends, by uprobes.

The kernel puts a trap where a function begins and, while it runs, where it returns
to. Each end costs the time of a trap, part of which lies between the two moments: what
a function that does nothing seems to take (`tare_ns`) is taken off again.
"""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from xsp_levels.native.perf_event import Event, Hit, open_all, uprobe_at
from xsp_levels.native.symbol import Place

_PAGES = 16  # of each ring: some 500 calls with their arguments; a sixteenth of that costs 64 KiB
_TARES = 32
_AT_ONCE = 32  # probes that are put in or taken out side by side: each waits for the kernel


@dataclass(frozen=True, slots=True)
class Seen:
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

    def close(self) -> tuple[list[Seen], int]:
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


def pair(moments: Iterable[tuple[Hit, str, bool]]) -> list[Seen]:
    """Return the calls that beginnings and returns make, by their end. Pure.

    A beginning without a return, or a return without its beginning, is no call.

    Args:
        moments: Each with the name of the function and whether it returned there.
    """
    opened: dict[int, list[tuple[str, Hit]]] = {}
    calls: list[Seen] = []
    for hit, name, returning in sorted(moments, key=lambda moment: moment[0].time_ns):
        stack = opened.setdefault(hit.thread, [])
        if not returning:
            stack.append((name, hit))
            continue
        at = next((i for i in reversed(range(len(stack))) if stack[i][0] == name), None)
        if at is None:
            continue
        begin = stack[at][1]
        del stack[at:]  # what was left by an exception or a jump never returns
        calls.append(Seen(name, begin.time_ns, hit.time_ns, hit.thread, begin.arguments))
    return calls


def tare_ns(place: Place, function: Callable[[], object], thread: int) -> int:
    """Return what a function that does nothing seems to take.

    Args:
        place: Where it begins.
        function: Calls it.
        thread: The kernel's number of the calling thread.

    Raises:
        OSError: The kernel does not let us.
    """
    probes = Probes({"tare": place}, [thread])
    for _ in range(_TARES):
        function()
    calls, _ = probes.close()
    return round(statistics.median(call.end_ns - call.start_ns for call in calls)) if calls else 0


def weighed(call: Seen, tare: int) -> tuple[int, int]:
    """Return start and end of a call without the traps; it never ends before it starts."""
    excess = min(tare, call.end_ns - call.start_ns)
    return call.start_ns + excess // 2, call.end_ns - (excess - excess // 2)


def _open(place: Place, threads: Sequence[int], returning: bool) -> list[Event]:
    path = ctypes.c_char_p(os.fsencode(place.path))
    return open_all(uprobe_at(place, path, returning=returning), threads, _PAGES)
