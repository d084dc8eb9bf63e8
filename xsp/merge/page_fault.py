"""Page faults: the runs of all rungs in, a problem out if rungs differ in page faults.

Neighbouring rungs are compared to learn what recording costs, and ought to differ in nothing else.
Page faults are something else: an allocator that gives the top of its heap back to the system
after some evaluations, and takes it again, does so as the sizes of the blocks on the heap will
have it.

    layer rung    4,142 page faults in an evaluation
    op rung       3,318 page faults      what recording operators costs comes out 1 ms too low
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from xsp.evaluation import trimmed_mean
from xsp.merge.difference import Sample, difference
from xsp.merge.ladder import Ladder, RungRuns
from xsp.problem import Problem

_FAULT_NS = 1_000  # half of this on bare metal, several times this in some virtual machines
_CHANGE = 0.01  # of the latency: a smaller difference is no problem
_NOISE = 3  # standard errors: a smaller difference is no problem
# Both thresholds, for whoever sets one of them switches off that glibc adapts the other
# (mallopt(3)): each large tensor would then be mapped, and fault, anew.
_REMEDY = "MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824"


def uneven_page_faults(ladder: Ladder, latency_ns: float) -> Problem | None:
    """Return a problem that names the two neighbouring rungs that differ most in page faults.

    Args:
        ladder: The runs of all rungs.
        latency_ns: The model's latency.

    Returns:
        None if no rungs differ by more than chance, and by enough to distort what recording costs.
    """
    pairs = list(pairwise(ladder.rungs))
    excess = [abs(_excess(ladder, above, rung)) for above, rung in pairs]
    if max(excess, default=0.0) * _FAULT_NS <= _CHANGE * latency_ns:
        return None
    above, rung = pairs[int(np.argmax(excess))]
    return Problem(
        "page-faults",
        f"an evaluation took {_typical(rung):,.0f} page faults on the {rung.name} rung and "
        f"{_typical(above):,.0f} on the {above.name} rung, a microsecond or more each: memory was "
        "given back to the system and taken again, on one rung more often than on the other, so "
        f"that what recording costs is off; where glibc allocates, {_REMEDY} in the environment "
        "(both: one alone makes it worse) keeps the memory in the process",
    )


def _excess(ladder: Ladder, above: RungRuns, rung: RungRuns) -> float:
    """Return how many page faults more a rung has than the rung above; 0 if that may be noise.

    Records of spans take memory, less than a page each: up to one page fault for each span more
    is a cost of recording like any other, and left out.
    """
    samples = [Sample(each.page_faults[:, None], each.rounds) for each in (rung, above)]
    gap, noise = (float(value[0]) for value in difference(*samples))
    if not abs(gap) > _NOISE * noise:
        return 0.0
    return gap - min(max(gap, 0.0), _spans(ladder, rung) - _spans(ladder, above))


def _spans(ladder: Ladder, rung: RungRuns) -> float:
    heights = np.diff(ladder.seen.first)[rung.members]
    return float(np.median(heights)) if len(heights) else 0.0


def _typical(rung: RungRuns) -> float:
    return float(trimmed_mean(rung.page_faults[:, None])[0])
