"""Ways of doing the same, in turns: what each takes beyond the bare one.

This module imports no framework, and serves the benchmarks of all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from xsp.matching.summary import trimmed_mean

BARE = "bare"
UNTIMED_NS = 3_000_000  # as long as xsp takes before a visit


def statistic(values: Sequence[float]) -> float:
    """Return the 20 % trimmed mean, which xsp itself takes."""
    return float(trimmed_mean(np.asarray(values, dtype=np.float64)[:, None])[0])


def time_bare(evaluate: Callable[[], Any], evaluations: int) -> list[float]:
    """Return latencies of the whole model in ns, nothing recorded."""
    latencies = []
    for _ in range(evaluations):
        begin = monotonic_ns()
        evaluate()
        latencies.append(float(monotonic_ns() - begin))
    return latencies


def settle(evaluate: Callable[[], Any]) -> None:
    """Evaluate, untimed, until what ran before has left the caches, as xsp's visits do."""
    until = monotonic_ns() + UNTIMED_NS
    evaluate()
    while monotonic_ns() < until:
        evaluate()


def take_turns(ways: Mapping[str, Callable[[], Sequence[float]]], rounds: int) -> dict[str, float]:
    """Return the latency of `BARE` in ns, and by how much every other way exceeds it.

    Args:
        ways: What evaluates a few times and returns the latencies, in ns; by name.
        rounds: How often each has its turn, in an order that turns as well, after one
            round that does not count: a profiler's first use in a process is not its
            usual one.
    """
    every, found = list(ways.items()), defaultdict(list)
    for number in range(rounds + 1):
        turn = number % len(every)
        for name, way in every[turn:] + every[:turn]:
            latencies = way()
            if number:
                found[name].append(statistic(latencies))
    added = {
        name: statistic([a - b for a, b in zip(values, found[BARE], strict=True)])
        for name, values in found.items()
    }
    return added | {BARE: statistic(found[BARE])}
