"""Differences: times of spans on two rungs in, how much longer spans are on one of the two out.

Latencies are trimmed means; so the overhead taken out of a latency is a difference of trimmed
means too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import standard_error, trimmed_mean

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
    errors = [standard_error(each.values, rounds=each.rounds) for each in (sample, reference)]
    error = np.hypot(*errors)
    size = np.abs(trimmed_mean(np.vstack([sample.values, reference.values])))
    return estimate, np.hypot(np.where(np.isnan(error), _UNKNOWN * size, error), _LEAST_NS)
