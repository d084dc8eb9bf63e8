"""Moods of the simulated machine: how slow it is at which time.

Work is counted in ns of a machine that is never slow. While the machine's factor is 1.3, work of
10 ns takes 13 ns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Random = np.random.Generator

HORIZON_NS = 60e9  # after so long a course stays as it is
_STEP_NS = 10e6
_FOREVER_NS = 1e15


class Course:
    """The factor of a machine over time, constant between edges.

    Args:
        edges_ns: Where the factor changes, from 0 on.
        factors: The factor from each edge on.
    """

    def __init__(self, edges_ns: Floats, factors: Floats) -> None:
        self.edges_ns = np.append(edges_ns, _FOREVER_NS)
        self.factors = factors
        steps = np.diff(self.edges_ns) / factors
        self._work_ns = np.concatenate([[0.0], steps.cumsum()])
        # Of single numbers, lists are read several times as fast as arrays.
        self._lists = self.edges_ns.tolist(), self._work_ns.tolist(), factors.tolist()

    def advance(self, time_ns: float, work_ns: float) -> tuple[float, float]:
        """Do some work from a time on; return the work done until then, and when all is done."""
        edges, work, factors = self._lists
        place = bisect_right(edges, time_ns) - 1
        began = work[place] + (time_ns - edges[place]) / factors[place]
        ended = began + work_ns
        while ended > work[place + 1]:
            place += 1
        return began, edges[place] + (ended - work[place]) * factors[place]

    def work_until(self, time_ns: Floats | float) -> Floats:
        """Return how much work the machine has done at a time."""
        return np.interp(time_ns, self.edges_ns, self._work_ns)

    def time_of(self, work_ns: Floats | float) -> Floats:
        """Return when the machine has done so much work."""
        return np.interp(work_ns, self._work_ns, self.edges_ns)

    def factors_at(self, time_ns: Floats) -> Floats:
        """Return the factor at some times."""
        place = np.searchsorted(self.edges_ns, time_ns, side="right") - 1
        return np.asarray(self.factors[place])


@dataclass(frozen=True, slots=True)
class Mood:
    """Behavior of a machine: jitter, spikes and drift.

    Attributes:
        course: Makes the factor over time.
        jitter: Standard deviation of the logarithm of a factor of each run, and of one of each
            span's self time in each run.
        spikes: Share of the steps that are interrupted.
        spike_ns: How long such an interruption lasts.
        processes: Standard deviation of the factor of each process; 0: all in one process.
        moving: Whether the truth is that of the moments of the measurement's own runs, and not the
            population's.
    """

    course: Callable[[Random], Course]
    jitter: float = 0.01
    spikes: float = 0.0
    spike_ns: float = 1e6
    processes: float = 0.0
    moving: bool = False


def steady(random: Random) -> Course:
    """Return a machine that is always equally fast."""
    return Course(np.zeros(1), np.ones(1))


def bursts(length_ns: float, share: float = 0.1, factor: float = 1.3) -> Callable[[Random], Course]:
    """Return a machine that is slow in bursts of one length, a share of the time in all."""

    def course(random: Random) -> Course:
        count = 2 * int(HORIZON_NS * share / length_ns) + 10
        quiet = random.exponential(length_ns * (1 / share - 1), count)
        # A machine that has been running for long may be in the middle of a burst.
        begin = np.cumsum(quiet + length_ns) - length_ns - random.uniform(0, length_ns / share)
        edges = np.stack([begin, begin + length_ns], axis=1).ravel()
        factors = np.tile([factor, 1.0], count)
        return _from_zero(edges, factors)

    return course


def drift(length_s: float, growth: float = 0.2) -> Callable[[Random], Course]:
    """Return a machine that becomes slower, evenly, for so long."""

    def course(random: Random) -> Course:
        edges = np.arange(0, length_s * 1e9 + _STEP_NS, _STEP_NS)
        return Course(edges, 1 + growth * np.minimum(edges / (length_s * 1e9), 1.0))

    return course


def level(tau_s: float, sd: float = 0.02) -> Callable[[Random], Course]:
    """Return a machine whose level is an Ornstein-Uhlenbeck process with a time constant."""

    def course(random: Random) -> Course:
        edges = np.arange(0, HORIZON_NS, _STEP_NS)
        keep = float(np.exp(-_STEP_NS / 1e9 / tau_s))
        steps = sd * random.standard_normal(len(edges))
        steps[1:] *= (1 - keep**2) ** 0.5
        levels = accumulate(steps.tolist(), lambda before, step: keep * before + step)
        return Course(edges, np.exp(np.fromiter(levels, np.float64, len(edges))))

    return course


def jumps(mean_s: float, sd: float = 0.02) -> Callable[[Random], Course]:
    """Return a machine whose level stays for exponential times and then is another one."""

    def course(random: Random) -> Course:
        count = int(2 * HORIZON_NS / 1e9 / mean_s) + 10
        lengths = random.exponential(mean_s * 1e9, count)
        edges = np.concatenate([[0.0], lengths.cumsum()[:-1]])
        return Course(edges, np.exp(sd * random.standard_normal(count)))

    return course


def _from_zero(edges: Floats, factors: Floats) -> Course:
    """Return a course that is 1 before the first edge, and begins at 0."""
    before = np.flatnonzero(edges <= 0)
    first = factors[before[-1]] if len(before) else 1.0
    later = edges > 0
    return Course(np.concatenate([[0.0], edges[later]]), np.concatenate([[first], factors[later]]))


MOODS: dict[str, Mood] = {
    "calm 1 %": Mood(steady),
    "calm 3 %": Mood(steady, jitter=0.03),
    "calm 10 %": Mood(steady, jitter=0.1),
    "bursts 60 ms": Mood(bursts(60e6)),
    "bursts 1 s": Mood(bursts(1e9)),
    "drift 0.5 s": Mood(drift(0.5), moving=True),
    "drift 3 s": Mood(drift(3.0), moving=True),
    "drift 20 s": Mood(drift(20.0), moving=True),
    "spikes": Mood(steady, spikes=0.02),
    "level 0.3 s": Mood(level(0.3)),
    "level 1 s": Mood(level(1.0)),
    "level 3 s": Mood(level(3.0)),
    "jumps 0.3 s": Mood(jumps(0.3)),
    "jumps 3 s": Mood(jumps(3.0)),
    "processes 1 %": Mood(steady, processes=0.01),
    "processes 2 %": Mood(steady, processes=0.02),
}
