"""Schedules the operators of a graph on a number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def longest_path(latency_ns: Sequence[float], inputs: Sequence[Sequence[int]]) -> float:
    """Return the time that no number of threads goes below: the longest way along the data.

    >>> longest_path([3.0, 5.0, 2.0], [[], [], [0]])
    5.0
    """
    ends: list[float] = []
    for own, sources in zip(latency_ns, inputs, strict=True):
        ends.append(own + max((ends[at] for at in sources), default=0.0))
    return max(ends, default=0.0)


class ListScheduling:
    """List scheduling: a free thread takes, of the operators whose inputs are there, the first.

    It takes less than twice the time of the best schedule (Graham 1966).

    Args:
        latency_ns: Latency of each operator, in the order in which they are preferred.
        inputs: Places of the operators whose outputs each takes, which come before it.
    """

    def __init__(self, latency_ns: Sequence[float], inputs: Sequence[Sequence[int]]) -> None:
        self._latency_ns = latency_ns
        self._missing = [len(sources) for sources in inputs]
        self._users: list[list[int]] = [[] for _ in inputs]
        for at, sources in enumerate(inputs):
            for source in sources:
                self._users[source].append(at)

    def makespan_ns(self, threads: int) -> float:
        """Return the time that a number of threads takes.

        >>> ListScheduling([3.0, 5.0, 2.0], [[], [], [0]]).makespan_ns(2)
        5.0
        """
        latency, users, missing = self._latency_ns, self._users, self._missing.copy()
        ready = [at for at, count in enumerate(missing) if not count]
        heapify(ready)
        running: list[tuple[float, int]] = []
        now = 0.0
        while ready or running:
            while ready and len(running) < threads:
                at = heappop(ready)
                heappush(running, (now + latency[at], at))
            now, done = heappop(running)
            for user in users[done]:
                missing[user] -= 1
                if not missing[user]:
                    heappush(ready, user)
        return now
