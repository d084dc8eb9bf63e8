"""Differences: from spans on two rungs to by how much they are longer on one of them.

Latencies are trimmed means, and so is what is taken out of them: the difference of the
trimmed means of both rungs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import standard_error, trimmed_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST_NS = 1e-6  # error of repeated readings that are all equal: errors are divided by
_UNKNOWN = 0.02  # relative error of a latency measured once, where none can be estimated


@dataclass(frozen=True, slots=True)
class Sample:
    """Spans in several runs.

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
    """Return by how much each span of a sample is longer than that of a reference.

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
