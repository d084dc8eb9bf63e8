"""Contrasts: by how much the spans of one rung are longer than those of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import Ranks, mean_between, standard_error, trimmed_mean, trimmed_ranks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST_NS = 1e-6  # error of repeated readings that are all equal: errors are divided by
_HANDICAP = 1.1  # errors are estimates too: the plain estimator goes first where all are alike
_ENOUGH = 10  # rounds from which on the fastest of them can be told from chance
_UNKNOWN = 0.02  # relative error of a latency measured once, where none can be estimated


@dataclass(frozen=True, slots=True)
class Sample:
    """Spans in several runs.

    Attributes:
        values: `[runs, spans]`, NaN where a span is missing in a run.
        rounds: Round of each run: runs of one round were close in time.
        slower: How much slower than usual the machine was at each run.
    """

    values: Floats
    rounds: Ints
    slower: Floats

    def steady(self) -> Sample:
        """Return the sample as it would be without drift."""
        return Sample(self.values / self.slower[:, None], self.rounds, self.slower)

    def joined(self, other: Sample) -> Sample:
        """Return the runs of both."""
        return Sample(
            np.concatenate([self.values, other.values]),
            np.concatenate([self.rounds, other.rounds]),
            np.concatenate([self.slower, other.slower]),
        )

    def of(self, runs: NDArray[np.bool_]) -> Sample:
        """Return some of the runs."""
        return Sample(self.values[runs], self.rounds[runs], self.slower[runs])


def difference(sample: Sample, reference: Sample) -> tuple[Floats, Floats]:
    """Return by how much each column of a sample lies above that of a reference.

    Noise decides which estimator is best, so there are several, and each column
    takes the one with the smallest error: trimmed means; means of the lower half and
    the lowest quarter, which interference (always positive) hardly reaches; all of
    them with drift taken out; and differences within rounds.

    Returns:
        The differences, and their standard errors (same unit).
    """
    steady = sample.steady(), reference.steady()
    ranks = [trimmed_ranks]
    if min(len(np.unique(sample.rounds)), len(np.unique(reference.rounds))) >= _ENOUGH:
        ranks += [_lower_half, _lowest_quarter]
    pairs = [(sample, reference), steady]
    candidates = [_apart(*pair, kept) for kept in ranks for pair in pairs]
    shared = np.intersect1d(sample.rounds, reference.rounds)
    if len(shared) >= 5:
        paired = _round_means(sample, shared) - _round_means(reference, shared)
        candidates.append((trimmed_mean(paired), standard_error(paired)))
    return _best(candidates, trimmed_mean(np.vstack([sample.values, reference.values])))


def _best(candidates: list[tuple[Floats, Floats]], size: Floats) -> tuple[Floats, Floats]:
    """Return the estimates with the smallest errors; what was measured once has a guessed one."""
    estimates = np.stack([estimate for estimate, _ in candidates])
    errors = np.stack([error for _, error in candidates])
    handicap = np.where(np.arange(len(errors)) > 0, _HANDICAP, 1.0)[:, None]
    best = np.argmin(np.where(np.isnan(errors), np.inf, errors * handicap), axis=0)
    columns = np.arange(len(size))
    error = errors[best, columns]
    error = np.where(np.isnan(error), _UNKNOWN * np.abs(size), error)
    return estimates[best, columns], np.hypot(error, _LEAST_NS)


def _apart(sample: Sample, reference: Sample, ranks: Ranks) -> tuple[Floats, Floats]:
    estimate = mean_between(sample.values, ranks) - mean_between(reference.values, ranks)
    errors = [standard_error(each.values, ranks, each.rounds) for each in (sample, reference)]
    return estimate, np.hypot(*errors)


def _lower_half(n: int) -> tuple[int, int]:
    return int(0.05 * n), n // 2


def _lowest_quarter(n: int) -> tuple[int, int]:
    return int(0.02 * n), n // 4


def _round_means(sample: Sample, rounds: Ints) -> Floats:
    """Return `[rounds, spans]`: the mean of each round's runs, NaN where there is none."""
    known = np.isin(sample.rounds, rounds)
    position, values = np.searchsorted(rounds, sample.rounds[known]), sample.values[known]
    sums = np.zeros((len(rounds), values.shape[1]))
    counts = np.zeros_like(sums)
    np.add.at(sums, position, np.nan_to_num(values))
    np.add.at(counts, position, ~np.isnan(values))
    means: Floats = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means
