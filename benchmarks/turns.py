"""Ways of doing the same, in turns: what each takes beyond the bare one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from truth import statistic

BARE = "bare"


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
