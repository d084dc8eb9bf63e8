"""Drift: how fast the machine was from round to round.

Frequency and temperature change slowly and hit every rung alike, since rounds are
interleaved. What all rungs have in common says how fast each round was.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST_ROUNDS = 10
_LEAST = 0.01  # a machine does not get a hundred times faster: such a clock is broken
_WINDOW = 16  # latencies that speed at one time is estimated from


def speeds(latency_ns: Floats, rounds: Ints, group: Ints) -> Floats:
    """Return how much slower than usual the machine was at each run; 1 where it is unknown.

    The running median over neighbouring rounds of latencies, each divided by its
    group's: wide enough that the jitter of single runs averages out.

    Args:
        latency_ns: Latency of each run.
        rounds: Round of each run; numbers rise with time.
        group: Runs of one number did the same (rung and process).
    """
    relative = np.empty(len(latency_ns))
    for number in np.unique(group):
        chosen = group == number
        relative[chosen] = latency_ns[chosen] / max(float(np.median(latency_ns[chosen])), 1.0)
    times = np.unique(rounds)
    if len(times) < _FEWEST_ROUNDS:
        return np.ones(len(latency_ns))
    reach = max(2, round(_WINDOW * len(times) / len(rounds) / 2))
    order = np.argsort(rounds, kind="stable")
    begin = np.searchsorted(rounds[order], times, "left")
    end = np.searchsorted(rounds[order], times, "right")
    levels = np.empty(len(times))
    relative = relative[order]
    for i in range(len(times)):
        first, last = max(i - reach, 0), min(i + reach, len(times) - 1)
        levels[i] = np.median(relative[begin[first] : end[last]])
    slower: Floats = np.maximum(levels, _LEAST)[np.searchsorted(times, rounds)]
    return slower
