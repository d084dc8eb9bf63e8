"""Compares the speeds of a measurement's processes by their bare latencies.

Two processes of one program differ by some per cent for as long as they live: where their memory
lies, which addresses collide in a cache. A measurement in several processes is brought to the
scale of their mean, and their differences say how far that mean may be from any other process's.

    bare latencies    process 0: 98 98 99    process 1: 102 102 103
    factors           1.02                   0.98
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xsp.matching.machine_speed import Series
from xsp.matching.summary import standard_error, student, trimmed_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST = 3  # bare rounds that a process needs to be compared


@dataclass(frozen=True, slots=True)
class ProcessSpeeds:
    """Speeds of the processes of a measurement, compared with their mean.

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
    """Return the speeds of processes, from the bare runs of each.

    Processes take turns, so what the machine does in one round of one process it does to all of
    them; in each such time every process is compared with the mean of all.

    Args:
        bare: The bare runs of each process.
    """
    bare = {p: series for p, series in bare.items() if len(np.unique(series.rounds)) >= _FEWEST}
    if len(bare) < 2:
        return ProcessSpeeds()
    times = _side_by_side(tuple(bare.values()))
    if len(times) < _FEWEST:
        return ProcessSpeeds()
    times = np.log(times)
    offsets = times - times.mean(axis=1, keepdims=True)
    offset, error = trimmed_mean(offsets), standard_error(offsets)
    # The offsets, drawn towards 0 as far as noise explains how much they differ.
    spread = max(float(offset.var(ddof=1) - (error**2).mean()), 0.0)
    believed = offset * spread / (spread + error**2 + 1e-18)
    factors = np.exp(-believed)
    half_width = student(len(offset) - 1) * float(offset.std(ddof=1)) / len(offset) ** 0.5
    return ProcessSpeeds(
        dict(zip(bare, factors.tolist(), strict=True)),
        half_width,
        float(np.abs(factors - 1).max()),
    )


def _side_by_side(bare: Sequence[Series]) -> Floats:
    """Return `[times, processes]`: median latencies in times in which every process ran.

    A time is a round of the process that has fewest. Where processes ran one after the other, no
    time is common, and rounds of one number stand side by side.
    """
    fewest = min(bare, key=lambda series: len(np.unique(series.rounds)))
    first = fewest.began_ns[np.unique(fewest.rounds, return_index=True)[1]]
    edges = np.append(np.sort(first), fewest.began_ns.max() + 1)
    places = [np.searchsorted(edges, series.began_ns, side="right") - 1 for series in bare]
    inside = [np.where(place < len(first), place, -1) for place in places]
    times = _medians([each.values for each in bare], inside)
    return (
        times
        if len(times) >= _FEWEST
        else _medians([each.values for each in bare], [each.rounds for each in bare])
    )


def _medians(values: Sequence[Floats], places: Sequence[Ints]) -> Floats:
    """Return `[places, processes]`: the medians of the values at each place that all have."""
    found = []
    for value, place in zip(values, places, strict=True):
        order = np.argsort(place, kind="stable")
        numbers, heads = np.unique(place[order], return_index=True)
        groups = np.split(np.maximum(value[order], 1.0), heads[1:])
        found.append({int(n): float(np.median(g)) for n, g in zip(numbers, groups, strict=True)})
    common = sorted(set.intersection(*map(set, found)) - {-1})
    return np.array([[each[number] for each in found] for number in common])
