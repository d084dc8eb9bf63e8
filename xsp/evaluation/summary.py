"""Summaries: times of each span in several runs in, one number for each span, with interval, out.

Values come as matrices `[runs, spans]`. Every statistic is the mean of the sorted values
between two ranks: the trimmed mean leaves a fifth out at either end, the median and the
minimum leave out more.

    sorted times    1  2  3  4  500
    trimmed mean       2  3  4          3.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi, sqrt, tan
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ranks = Callable[[int], tuple[int, int]]  # of n sorted values: the first kept, and past the last

TRIM = 0.2
_TAIL = 0.025  # on either side of a 95 % interval
_RESAMPLES = 200
_MOST = 2.5  # largest factor by which few rounds widen an interval
_CHUNK = 20_000  # columns at a time, whose resamples take 32 MB


def trimmed_mean(values: Floats) -> Floats:
    """Return the mean of each column without its lowest and highest fifth, rounded down.

    Args:
        values: `[runs, spans]`; NaN where a span is missing in a run.

    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [4.0], [500.0]]))
    array([3.])
    """
    return _mean_between(values, _trimmed_ranks)


def summarise(values: Floats, statistic: str = "trimmed") -> Floats:
    """Return one number per column of `values` (`[runs, spans]`); NaN for a column of NaN.

    Raises:
        ValueError: `statistic` is not one of `STATISTICS`.
    """
    return _mean_between(values, ranks_of(statistic))


def bootstrap_interval(
    values: Floats,
    statistic: str = "trimmed",
    *,
    rounds: Ints | None = None,
) -> tuple[Floats, Floats]:
    """Return the lower and upper end of the statistic's 95 % interval for each column.

    A bootstrap resample of sorted values is a count per rank, and the counts serve every
    column: with columns sorted once, all resampled statistics are one matrix product. The
    percentiles are widened by Student's factor, since few runs say little.

    Args:
        values: `[runs, spans]`; NaN where a span is missing in a run.
        statistic: One of `STATISTICS`.
        rounds: Round of each run. Runs of one round may be alike, and then count as fewer
            than as many runs of different rounds. None: every run has a round of its own.

    Returns:
        Two arrays, one number per column: NaN where there are fewer than two values, and for the
        minimum, whose resamples never lie below it.
    """
    low = np.full(values.shape[1], np.nan)
    high = low.copy()
    if statistic == "min":
        return low, high
    for n, columns, ordered in _by_count(values):
        if n < 2:
            continue
        first, last = ranks_of(statistic)(n)
        weights = _resampled_weights(n, (first, last))
        centre = ordered[first:last].mean(axis=0)
        quantiles = np.quantile(weights @ ordered, [_TAIL, 1 - _TAIL], axis=0)
        widen = _student_factor(last - first if statistic == "trimmed" else n)
        widen *= sqrt(n / (n - 1))
        low[columns] = centre - (centre - quantiles[0]) * widen
        high[columns] = centre + (quantiles[1] - centre) * widen
    if rounds is not None and len(np.unique(rounds)) < len(rounds):
        alone = standard_error(values)
        alike = np.ones_like(alone)
        np.divide(standard_error(values, rounds=rounds), alone, out=alike, where=alone > 0)
        centre = summarise(values, statistic)
        low, high = centre - (centre - low) * alike, centre + (high - centre) * alike
    return low, high


def _mean_between(values: Floats, ranks: Ranks) -> Floats:
    """Return the mean of each column's sorted values between two ranks."""
    result = np.full(values.shape[1], np.nan)
    for n, columns, ordered in _by_count(values):
        first, last = ranks(n)
        result[columns] = ordered[first:last].mean(axis=0)
    return result


def _trimmed_ranks(n: int) -> tuple[int, int]:
    """Return the ranks between which the 20 % trimmed mean of `n` values is taken."""
    return int(TRIM * n), n - int(TRIM * n)


_RANKS: dict[str, Ranks] = {
    "trimmed": _trimmed_ranks,
    "median": lambda n: ((n - 1) // 2, n // 2 + 1),
    "mean": lambda n: (0, n),
    "min": lambda n: (0, 1),
}
STATISTICS = tuple(_RANKS)


def ranks_of(statistic: str) -> Ranks:
    """Return the ranks between which a statistic is the mean.

    Raises:
        ValueError: `statistic` is not one of `STATISTICS`.
    """
    if statistic not in _RANKS:
        raise ValueError(f"there is no statistic {statistic!r}; there are {', '.join(STATISTICS)}")
    return _RANKS[statistic]


def standard_error(values: Floats, rounds: Ints | None = None) -> Floats:
    """Return the standard error of the trimmed mean, NaN for fewer than two values.

    After Tukey and McLaughlin (1963), widened by Student's factor. Runs of one round
    are near in time and so may be alike; such runs count as fewer (cluster-robust).

    Args:
        values: `[runs, spans]`; NaN where a span is missing in a run.
        rounds: Round of each run; None: every run has a round of its own.
    """
    result = np.full(values.shape[1], np.nan)
    for n, columns, ordered in _by_count(values):
        first, last = _trimmed_ranks(n)
        if n < 2 or last - first < 2:
            continue
        winsorised = np.clip(values[:, columns], ordered[first], ordered[last - 1])
        residual = np.nan_to_num(winsorised - np.nanmean(winsorised, axis=0))
        alone = np.sqrt((residual**2).sum(axis=0) * n / (n - 1)) * _student_factor(last - first)
        error = alone if rounds is None else np.maximum(alone, _alike_error(residual, rounds))
        result[columns] = error / (last - first)
    return result


def _alike_error(residual: Floats, rounds: Ints) -> Floats:
    """Return the standard error of a sum of runs that may be alike within a round."""
    order = np.argsort(rounds, kind="stable")
    heads = np.flatnonzero(np.diff(rounds[order], prepend=-1))
    if len(heads) < 2:
        return np.zeros(residual.shape[1])
    sums = np.add.reduceat(residual[order], heads, axis=0)
    error: Floats = np.sqrt((sums**2).sum(axis=0) * len(heads) / (len(heads) - 1))
    return error * min(_student_factor(len(heads)), _MOST)


def _by_count(values: Floats) -> Iterator[tuple[int, Ints, Floats]]:
    """Yield (n, columns, their n values in order) for chunks of columns with n values."""
    counts = np.count_nonzero(~np.isnan(values), axis=0)
    for n in np.unique(counts[counts > 0]):
        columns = np.flatnonzero(counts == n)
        for start in range(0, len(columns), _CHUNK):
            chunk = columns[start : start + _CHUNK]
            yield int(n), chunk, np.sort(values[:, chunk], axis=0)[:n]


def _resampled_weights(n: int, ranks: tuple[int, int]) -> Floats:
    """Return for each resample the weight of each rank of the original values."""
    random = np.random.default_rng(0)  # seeded, so that merging twice gives the same
    counts = random.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    upper = counts.cumsum(axis=1)
    inside = np.minimum(upper, ranks[1]) - np.maximum(upper - counts, ranks[0])
    return np.clip(inside, 0, None) / (ranks[1] - ranks[0])


def _student_factor(n: int) -> float:
    """Return how much wider Student's interval is for `n` values than the normal one."""
    probability = 1 - _TAIL
    return _student(probability, n - 1) / NormalDist().inv_cdf(probability)


def _student(probability: float, freedom: int) -> float:
    """Return a quantile of Student's distribution (Abramowitz and Stegun 26.7.5)."""
    if freedom <= 1:
        return tan(pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) * sqrt(2 / (4 * probability * (1 - probability)))
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
