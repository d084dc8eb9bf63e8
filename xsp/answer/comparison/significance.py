"""Judges whether two latencies with 95 % intervals differ by more than chance.

docs/compare.md has the formulas. In short: the two measurements are independent, so the halves of
their intervals add up as squares; a difference is significant where it is larger than what comes
out, and where a whole table of differences is looked at, they are corrected (Benjamini-Hochberg).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from xsp.answer.comparison.alignment import Bools, Floats
from xsp.matching import Z95

# Of all differences that a table calls significant, so many are none (false discovery rate).
FALSE_DISCOVERY_RATE = 0.05
# How far processes are assumed to be apart, where a trace knows of one only: standard deviation,
# as a fraction of the latency. xsp calls processes different (`processes-differ`) from there on.
ASSUMED_SPREAD = 0.02


class Verdict(StrEnum):
    """What can be said of a difference."""

    SLOWER = "slower"
    FASTER = "faster"
    MORE = "more"
    LESS = "less"
    NOT_SIGNIFICANT = "not significant"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Estimates:
    """Numbers with 95 % intervals; NaN where something is not known.

    Attributes:
        value: The numbers themselves.
        low: Lower ends.
        high: Upper ends.
    """

    value: Floats
    low: Floats
    high: Floats

    @property
    def half(self) -> Floats:
        """How far each interval reaches; lower ends stop at 0, where they would say too little."""
        half: Floats = np.maximum(self.high - self.value, self.value - self.low)
        return half

    def of_one(self, calls: Floats) -> Estimates:
        """Return the numbers for one of so many calls."""
        return Estimates(self.value / calls, self.low / calls, self.high / calls)

    def zero_where(self, absent: Bools) -> Estimates:
        """Return the same with 0 in place of some."""
        ends = (self.value, self.low, self.high)
        return Estimates(*(np.where(absent, 0.0, end) for end in ends))

    def widened(self, on_host: Bools) -> Estimates:
        """Return the same with the assumed spread of processes in the intervals of some."""
        assumed = Z95 * ASSUMED_SPREAD * self.value * on_host
        half = np.hypot(self.half, assumed)
        return Estimates(self.value, np.maximum(self.value - half, 0.0), self.value + half)


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences, b less a; NaN where something is not known.

    Attributes:
        value: The differences themselves.
        half: How far their 95 % intervals reach.
        p: Chance of a difference as large or larger, were there none.
    """

    value: Floats
    half: Floats
    p: Floats

    @classmethod
    def between(cls, a: Estimates, b: Estimates) -> Differences:
        """Return the differences of two independent measurements."""
        value = b.value - a.value
        half = np.hypot(a.half, b.half)
        # Two-sided p-values; at the end of the interval it is 0.05.
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where((value == 0) & (half == 0), 0.0, np.abs(value) * Z95 / half)
        p_values = np.array([math.erfc(each / math.sqrt(2)) for each in z.tolist()])
        return cls(value, half, p_values)

    def verdicts(self, p: Floats, at: float) -> list[str]:
        """Return a `Verdict` on each difference, by (corrected) p-values and a threshold."""
        found = np.select(
            [np.isnan(p), p > at, self.value > 0],
            [Verdict.UNKNOWN, Verdict.NOT_SIGNIFICANT, Verdict.SLOWER],
            Verdict.FASTER,
        )
        return [str(each) for each in found.tolist()]


def with_ends(name: str, unit: str, meaning: str) -> dict[str, str]:
    """Return the meanings of a column and of those with the ends of its 95 % interval."""
    return {
        f"{name}{unit}": meaning,
        f"{name}_low{unit}": "Lower end of its 95 % interval.",
        f"{name}_high{unit}": "Upper end of its 95 % interval.",
    }


def corrected(p: Floats) -> Floats:
    """Return p-values corrected for their number (Benjamini & Hochberg 1995); NaN stays NaN.

    Where those up to 0.05 are called significant, 5 % of these are expected to be none.

    >>> corrected(np.array([0.01, 0.04, np.nan, 0.03])).round(3)
    array([0.03, 0.04,  nan, 0.04])
    """
    known = np.flatnonzero(~np.isnan(p))
    largest_first = known[np.argsort(-p[known], kind="stable")]
    rank = np.arange(len(known), 0, -1)
    result = np.full(len(p), np.nan)
    result[largest_first] = np.minimum.accumulate(p[largest_first] * len(known) / rank)
    return np.minimum(result, 1.0)
