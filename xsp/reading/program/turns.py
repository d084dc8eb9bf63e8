"""Computes how long each of the user's regions only waited, in an event loop that takes turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xsp.provider import AT, KIND_BITS, KIND_MASK, LEAVE
from xsp.provider import REGION as OPENED
from xsp.reading.program.events import RegionTimes
from xsp.record.program import RegionFacts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def awaiting_ns(
    logs: Sequence[tuple[Ints, Ints]], facts: Sequence[RegionFacts], regions: RegionTimes
) -> Floats:
    """Return how long no callback of its loop worked for each region; NaN where that is not known.

    Work for a region is work for the regions around it. What other threads do for it is a wait.

        AT a 0, OPEN b 2, AT none 5, AT b 9, LEAVE b 10, AT none 12      b waits 4 ns, a waits 4 ns

    Args:
        logs: Codes and times of each thread's log.
        facts: The regions.
        regions: When they began and ended.
    """
    worked = np.zeros(len(facts))
    told = np.array([each.turns for each in facts], dtype=bool)
    for log, (codes, times) in enumerate(logs) if told.any() else ():
        low = codes & KIND_MASK
        at = np.flatnonzero(np.isin(low, (AT, OPENED, LEAVE)))
        region = 0
        for here, after in pairwise(at.tolist()):
            number = int(codes[here] >> KIND_BITS)
            if low[here] != LEAVE:
                region = number
            elif region == number:
                region = facts[number - 1].parent
            around = region
            while around:
                begin, end = regions.begin[around - 1], regions.end[around - 1]
                if regions.thread[around - 1] == log:
                    turn = min(int(times[after]), int(end)) - max(int(times[here]), int(begin))
                    worked[around - 1] += max(turn, 0)
                around = facts[around - 1].parent
    waited = np.maximum(regions.end - regions.begin - worked, 0.0)
    return np.where(told & (regions.thread == regions.end_thread), waited, np.nan)
