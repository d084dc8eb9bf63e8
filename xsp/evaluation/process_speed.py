"""Process speeds: bare latencies of several processes in, how fast each process is out.

Two processes of one program differ by some per cent for as long as they live: where their memory
lies, which addresses collide in a cache. A measurement in several processes is brought to the
scale of their mean, and their differences say how far that mean may be from any other process's.

    bare latencies    process 0: 98 98 99    process 1: 102 102 103
    factors           1.02                   0.98
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation.machine_speed import Series
from xsp.evaluation.summary import standard_error, student, trimmed_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST = 3  # bare rounds that a process needs to be compared


@dataclass(frozen=True, slots=True)
class ProcessSpeeds:
    """How fast the processes of a measurement are, compared with their mean.

    Attributes:
        factors: By what the times in each process are multiplied to be on the scale of the mean.
        half_width: Half of the 95 % interval of that mean, as a fraction; 0 if the processes
            could not be compared.
        apart: Largest relative difference of a process from the mean, beyond noise.
    """

    factors: Mapping[int, float] = field(default_factory=dict)
    half_width: float = 0.0
    apart: float = 0.0


def process_speeds(bare: Mapping[int, Series]) -> ProcessSpeeds:
    """Return how fast each process is, from its bare runs.

    Processes take turns, so what the machine does to one round it does to that round of all
    processes alike; each round is compared with the mean of the processes in that round.

    Args:
        bare: The bare runs of each process.
    """
    rounds = {process: _by_round(series) for process, series in bare.items()}
    rounds = {process: found for process, found in rounds.items() if len(found) >= _FEWEST}
    common = sorted(set.intersection(*map(set, rounds.values()))) if rounds else []
    if len(rounds) < 2 or len(common) < _FEWEST:
        return ProcessSpeeds()
    times = np.log([[found[number] for found in rounds.values()] for number in common])
    offsets = times - times.mean(axis=1, keepdims=True)
    offset, error = trimmed_mean(offsets), standard_error(offsets)
    factors = np.exp(-_believed(offset, error))
    half_width = student(len(offset) - 1) * float(offset.std(ddof=1)) / len(offset) ** 0.5
    return ProcessSpeeds(
        dict(zip(rounds, factors.tolist(), strict=True)),
        half_width,
        float(np.abs(factors - 1).max()),
    )


def _by_round(series: Series) -> dict[int, float]:
    """Return the median latency of each round."""
    order = np.argsort(series.rounds, kind="stable")
    numbers, first = np.unique(series.rounds[order], return_index=True)
    groups = np.split(np.maximum(series.values[order], 1.0), first[1:])
    return {int(n): float(np.median(group)) for n, group in zip(numbers, groups, strict=True)}


def _believed(offset: Floats, error: Floats) -> Floats:
    """Return the offsets, drawn towards 0 as far as noise explains how much they differ."""
    spread = max(float(offset.var(ddof=1) - (error**2).mean()), 0.0)
    return offset * spread / (spread + error**2 + 1e-18)
