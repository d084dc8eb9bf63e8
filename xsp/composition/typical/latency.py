"""Latencies of a group: what its evaluations took in the program in, latencies by these alone out.

The tree of a program has the sum of what its evaluations take. The trace of a group has the latency
of one: a trimmed mean, of repetitions after the block as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from xsp.composition.group import Size
from xsp.composition.journal import Journal
from xsp.composition.nested.part import Part
from xsp.composition.timeline import Timeline
from xsp.composition.usual import FEWEST
from xsp.evaluation import half_width, trimmed_mean

Floats = NDArray[np.float64]

_ENOUGH = 10  # evaluations of the program that say more of it than repetitions


def evaluation_times(
    lasting_ns: Floats, groups: Sequence[int], parts: Sequence[Part], first: Mapping[int, float]
) -> dict[int, Floats]:
    """Return how long the evaluations of each group take as the tree has them, by its number.

    Args:
        lasting_ns: How long each evaluation of the journal takes without xsp.
        groups: The number of the group of each.
        parts: All parts of the program.
        first: What first calls take more than the others (ns), which the tree has apart, by their
            parts (`first_calls`).
    """
    usual_ns = lasting_ns.copy()
    for number, more_ns in first.items():
        usual_ns[parts[number].evaluation] -= more_ns
    result: defaultdict[int, list[float]] = defaultdict(list)
    for group, ns in zip(groups, usual_ns.tolist(), strict=True):
        result[group].append(ns)
    return {group: np.array(ns) for group, ns in result.items()}


def times_by_size(
    journal: Journal, timeline: Timeline, final: Callable[[int], int]
) -> dict[int, dict[Size, list[float]]]:
    """Return how long evaluations take without xsp (ns), by the number of the group and the size.

    Args:
        journal: What the program did.
        timeline: How long evaluations take without xsp.
        final: Returns the number of the group that a group is part of in the end.
    """
    result: defaultdict[int, defaultdict[Size, list[float]]]
    result = defaultdict(lambda: defaultdict(list))
    for each, lasts_ns in zip(journal.evaluations, timeline.evaluations_ns.tolist(), strict=True):
        result[final(each.group)][each.size].append(lasts_ns)
    return {number: dict(sizes) for number, sizes in result.items()}


def own_latencies(timeline: Timeline, apart: Collection[int]) -> dict[int, dict[str, float]]:
    """Return the latency of one evaluation by those of the program alone, with its interval.

    Args:
        timeline: How long evaluations take without xsp.
        apart: The numbers of the groups whose repetitions lasted otherwise, so that a few of the
            program's evaluations say more.

    Returns:
        Columns of `Trace.spans`, by the number of the group; none where evaluations are few.
    """
    result = {}
    for number, members in timeline.untouched.items():
        if len(members) < (FEWEST if number in apart else _ENOUGH):
            continue
        took = timeline.evaluations_ns[members][:, None]
        latency_ns, reach_ns = float(trimmed_mean(took)[0]), float(half_width(took)[0])
        result[number] = {
            "latency_ns": latency_ns,
            "latency_low_ns": max(latency_ns - reach_ns, 0.0),
            "latency_high_ns": latency_ns + reach_ns,
        }
    return result
