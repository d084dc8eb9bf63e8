"""Two latencies of a group: by the program's evaluations, and by its trace; what to say of them.

The tree of a program has the sum of what its evaluations take. The trace of a group has the latency
of one: a trimmed mean, of repetitions after the block as well. Where the two differ, a reader of
both is told why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from xsp.composition.group import Size
from xsp.composition.journal import Journal
from xsp.composition.part import Part
from xsp.composition.timeline import FEWEST, Timeline
from xsp.evaluation import half_width, trimmed_mean
from xsp.problem import Problem
from xsp.text import duration, margin
from xsp.trace import Trace

Floats = NDArray[np.float64]

REPEATED_APART = "repeated-apart"

_ENOUGH = 10  # evaluations of the program that say more of it than repetitions
_ALIKE = 1.05  # times as long: such latencies are not told apart
_FAR = 1.25  # times as long as repetitions: such latencies are, whatever their intervals
_REPEATED = (
    "{}: an evaluation took {} in the program, and {} where it was repeated after the block, by "
    "which the parts of it are told mostly, drawn longer or shorter in proportion: what the "
    "program does between two of them leaves its data in the caches, or the machine's speed "
    "changed; replay=False keeps to the program's own"
)
_AVERAGE = (
    "{}: an evaluation took {} on average in the program, as its tree has it, and {} without the "
    "slowest and the quickest, as `prof.groups` has it"
)
_RECORDED = (
    "{}: an evaluation took {} on average in the program, as its tree has it, and {} by those of "
    "them that its plan could use, as `prof.groups` has it"
)


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


def told_apart(label: str, took_ns: Floats, trace: Trace, *, repeated: bool) -> Problem | None:
    """Return what there is to say where a group's evaluations and its trace differ, if they do.

    They do where the average and the latency are more than 5 % apart and lie out of each other's
    interval, or are more than 25 % apart and it was repeated.

    Args:
        label: Name of the group.
        took_ns: How long its evaluations take, shape `[evaluations]`.
        trace: The trace of one evaluation.
        repeated: Whether it was repeated after the program.
    """
    root = trace.root
    reach_ns = margin(root.latency_ns, root.latency_low_ns, root.latency_high_ns)
    if not root.latency_ns or reach_ns is None:
        return None
    mean_ns, typical_ns = float(took_ns.mean()), float(trimmed_mean(took_ns[:, None])[0])
    far = _FAR if repeated else math.inf
    if _are_alike(mean_ns, root.latency_ns, reach_ns, far):
        return None
    found = label, duration(mean_ns), duration(root.latency_ns)
    if _are_alike(typical_ns, root.latency_ns, reach_ns, far):
        return Problem("average-apart", _AVERAGE.format(*found))
    if repeated:
        return Problem(REPEATED_APART, _REPEATED.format(*found))
    return Problem("average-apart", _RECORDED.format(*found))


def _are_alike(own_ns: float, latency_ns: float, reach_ns: float, far: float) -> bool:
    """Return whether two latencies are about the same; the first is known as well as the second."""
    times = max(own_ns, latency_ns) / max(min(own_ns, latency_ns), 1.0)
    within = abs(own_ns - latency_ns) <= reach_ns * (1.0 + own_ns / latency_ns)
    return times < _ALIKE or (within and times < far)
