"""Estimates how much longer spans are on one pass than on another.

Latencies are trimmed means; so the overhead taken out of a latency is a difference of trimmed
means too. Runs of one round were close in time. What the machine did meanwhile to both passes is in
both means, and not in the error of their difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.matching import Z95, clustered_error, half_width, pulls, student, trimmed_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST_NS = 1e-6  # least error, for readings that are all equal: weights divide by errors
_UNKNOWN = 0.02  # assumed relative error of a latency that was measured once


@dataclass(frozen=True, slots=True)
class Sample:
    """Times of spans in several runs.

    Attributes:
        values: `[runs, spans]`, NaN where a span is missing in a run.
        rounds: Round of each run: runs of one round were close in time.
    """

    values: Floats
    rounds: Ints

    def joined(self, other: Sample) -> Sample:
        """Return the runs of both samples."""
        return Sample(
            np.concatenate([self.values, other.values]),
            np.concatenate([self.rounds, other.rounds]),
        )

    def of(self, runs: NDArray[np.bool_]) -> Sample:
        """Return some of the runs."""
        return Sample(self.values[runs], self.rounds[runs])


def difference(sample: Sample, reference: Sample) -> tuple[Floats, Floats]:
    """Return by how much each span is longer in `sample` than in `reference`.

    Returns:
        The differences of the trimmed means, and their standard errors (same unit). The error
        is a guess where a span was measured once.

    >>> once = np.array([0, 1, 2])
    >>> estimate, _ = difference(Sample(np.full((3, 1), 13.0), once),
    ...                          Sample(np.full((3, 1), 10.0), once))
    >>> estimate
    array([3.])
    """
    estimate = trimmed_mean(sample.values) - trimmed_mean(reference.values)
    pull = np.vstack([pulls(sample.values), -pulls(reference.values)])
    rounds = np.concatenate([sample.rounds, reference.rounds])
    if min(len(np.unique(each.rounds)) for each in (sample, reference)) < 2:
        rounds = np.arange(len(rounds))  # of a single visit, all that is known is its runs
    # By how much few runs of a span widen its error; NaN for a single run.
    counts = [np.count_nonzero(~np.isnan(each.values), axis=0) for each in (sample, reference)]
    fewest = np.minimum.reduce([*counts, np.full(len(counts[0]), len(np.unique(rounds)))])
    widen = {int(n): student(int(n) - 1) / Z95 for n in np.unique(fewest) if n > 1}
    few_values = np.array([widen.get(n, np.nan) for n in fewest.tolist()])
    error = clustered_error(pull, rounds) * few_values
    size = np.abs(trimmed_mean(np.vstack([sample.values, reference.values])))
    return estimate, np.hypot(np.where(np.isnan(error), _UNKNOWN * size, error), _LEAST_NS)


def lasting_change(times: Floats) -> float:
    """Return by which fraction the last quarter of some times is longer than the first.

    The result is 0 where the intervals of both quarters overlap, so that it may be noise, and
    where a quarter has less than five times.

    Args:
        times: One for each step, in the order of the steps.

    >>> lasting_change(np.repeat([10.0, 12.0, 12.0, 15.0], 5))
    0.5
    """
    quarter = len(times) // 4
    if quarter < 5:
        return 0.0
    first, last = times[:quarter, None], times[-quarter:, None]
    early, late = (float(trimmed_mean(each)[0]) for each in (first, last))
    if abs(late - early) <= float(half_width(first)[0] + half_width(last)[0]):
        return 0.0
    return late / max(early, 1.0) - 1
