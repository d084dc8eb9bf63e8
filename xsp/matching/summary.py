"""Summarizes the times of each span in several runs as one number with an interval.

Values come as matrices `[runs, spans]`. Every statistic is the mean of the sorted values
between two ranks: the trimmed mean leaves a fifth out at either end, the median more.

    sorted times    1  2  3  4  500
    trimmed mean       2  3  4          3.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import pi, sqrt, tan
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ranks = Callable[[int], tuple[int, int]]  # of n sorted values: the first kept, and past the last

TRIM = 0.2
_TAIL = 0.025  # on either side of a 95 % interval
Z95 = 1.96  # half of a 95 % interval, in standard errors
_RESAMPLES = 4000  # an error of 1 % in the width, the same for all columns
_WEIGHTS = 200_000  # most weights: of many runs there are fewer resamples
_QUANTILES = 300  # more values than that are resampled as quantiles
_FEW = 5  # of fewer values the trimmed mean leaves out one at either end
_MOST = 2.5  # largest factor by which few rounds widen an interval
_CHUNK = 20_000  # columns at a time, which bounds the memory


def trimmed_mean(values: Floats) -> Floats:
    """Return the mean of each column without its lowest and highest fifth, at least one of three.

    Args:
        values: `[runs, spans]`; NaN where a span is missing in a run.

    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [4.0], [500.0]]))
    array([3.])
    """
    return _mean_between(values, _trimmed_ranks)


def summarize(values: Floats, statistic: str = "trimmed") -> Floats:
    """Return one number per column of `values` (`[runs, spans]`); NaN for a column of NaN.

    Raises:
        ValueError: `statistic` is not one of `STATISTICS`.
    """
    return _mean_between(values, ranks_of(statistic))


def half_width(values: Floats, statistic: str = "trimmed", *, rounds: Ints | None = None) -> Floats:
    """Return half of the statistic's 95 % interval for each column.

    That is the bootstrap's standard error times Student's quantile. A resample of sorted values
    is a weight per rank, and the weights serve every column.

    Args:
        values: `[runs, spans]`; NaN where a span is missing in a run.
        statistic: One of `STATISTICS`.
        rounds: Round of each run. Runs of one round may be alike, and then count as fewer
            than as many runs of different rounds. None: every run has a round of its own.

    Returns:
        One number per column; NaN where there are fewer than two values.
    """
    result = np.full(values.shape[1], np.nan)
    for n, columns, ordered in _by_count(values):
        if n < 2:
            continue
        error = np.sqrt(_resampled_variance(ordered, ranks_of(statistic)) * n / (n - 1))
        result[columns] = error * student(_freedom(n) if statistic == "trimmed" else n - 1)
    if rounds is not None and len(np.unique(rounds)) < len(rounds):
        alone = standard_error(values)
        alike = np.ones_like(alone)
        np.divide(standard_error(values, rounds=rounds), alone, out=alike, where=alone > 0)
        result *= alike
    return result


def _mean_between(values: Floats, ranks: Ranks) -> Floats:
    """Return the mean of each column's sorted values between two ranks."""
    result = np.full(values.shape[1], np.nan)
    for n, columns, ordered in _by_count(values):
        first, last = ranks(n)
        result[columns] = ordered[first:last].mean(axis=0)
    return result


def _trimmed_ranks(n: int) -> tuple[int, int]:
    """Return the ranks between which the 20 % trimmed mean of `n` values is taken.

    Of three and four values the lowest and the highest are left out as well: of so few
    steps, one that was disturbed would be a third of the result.
    """
    out = max(int(TRIM * n), 1 if n > 2 else 0)
    return out, n - out


def _freedom(n: int) -> int:
    """Return Student's degrees of freedom for the trimmed mean of `n` values."""
    first, last = _trimmed_ranks(n)
    return (last - first if n >= _FEW else n) - 1


_RANKS: dict[str, Ranks] = {
    "trimmed": _trimmed_ranks,
    "median": lambda n: ((n - 1) // 2, n // 2 + 1),
    "mean": lambda n: (0, n),
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
    counts = np.count_nonzero(~np.isnan(values), axis=0)
    widen = np.full(len(counts), np.nan)
    for n in np.unique(counts[counts > 1]):
        widen[counts == n] = student(_freedom(int(n))) / Z95 * sqrt(n / (n - 1))
    pull = pulls(values)
    alone = np.sqrt((pull**2).sum(axis=0)) * widen
    if rounds is None:
        return alone
    few = min(student(len(np.unique(rounds)) - 1) / Z95, _MOST)
    return np.fmax(alone, clustered_error(pull, rounds) * few + 0 * alone)


def pulls(values: Floats) -> Floats:
    """Return by how much each run pulls the trimmed mean of a column up or down.

    That is the run's influence over the number of runs: the distance of its winsorized value
    from their mean, over the number of values kept. The pulls of a column sum to 0. Of fewer than
    five values none is winsorized.

    Args:
        values: `[runs, spans]`; NaN where a span is missing in a run, whose pull is 0.

    >>> pulls(np.array([[1.0], [2.0], [3.0], [4.0], [500.0]])).ravel().round(2).tolist()
    [-0.33, -0.33, 0.0, 0.33, 0.33]
    """
    result = np.zeros(values.shape)
    for n, columns, ordered in _by_count(values):
        # Of three values the trimmed mean keeps one, and that one alone has no spread.
        first, last = _trimmed_ranks(n) if n >= _FEW else (0, n)
        winsorized = np.clip(values[:, columns], ordered[first], ordered[last - 1])
        distance = winsorized - np.nansum(winsorized, axis=0) / n
        result[:, columns] = np.nan_to_num(distance) / (last - first)
    return result


def clustered_error(pull: Floats, rounds: Ints) -> Floats:
    """Return the standard error of sums of `pull` over runs that may be alike within a round.

    The error is 0 where there is a single round.

    Args:
        pull: `[runs, spans]`, as `pulls` returns them.
        rounds: Round of each run.
    """
    order = np.argsort(rounds, kind="stable")
    heads = np.flatnonzero(np.diff(rounds[order], prepend=rounds.min() - 1))
    if len(heads) < 2:
        return np.zeros(pull.shape[1])
    sums = np.add.reduceat(pull[order], heads, axis=0)
    error: Floats = np.sqrt((sums**2).sum(axis=0) * len(heads) / (len(heads) - 1))
    return error


def _by_count(values: Floats) -> Iterator[tuple[int, Ints, Floats]]:
    """Yield (n, columns, their n values in order) for chunks of columns with n values."""
    counts = np.count_nonzero(~np.isnan(values), axis=0)
    for n in np.unique(counts[counts > 0]):
        columns = np.flatnonzero(counts == n)
        for start in range(0, len(columns), _CHUNK):
            chunk = columns[start : start + _CHUNK]
            yield int(n), chunk, np.sort(values[:, chunk], axis=0)[:n]


def _resampled_variance(ordered: Floats, ranks: Ranks) -> Floats:
    """Return the variance of the statistic over bootstrap resamples of each column.

    Of many values, neighbors in order are averaged: the variance is that of as many quantiles,
    and falls with the number of values.
    """
    many = len(ordered)
    if many > _QUANTILES:
        starts = np.arange(_QUANTILES) * many // _QUANTILES
        sizes = np.diff(starts, append=many)[:, None]
        ordered = np.add.reduceat(ordered, starts, axis=0) / sizes
    covariance = _resampled_covariance(len(ordered), ranks(len(ordered)))
    centered = ordered - ordered.mean(axis=0)  # weights sum to 0: only rounding errors change
    variance = np.einsum("ij,ij->j", centered, covariance @ centered)
    result: Floats = np.maximum(variance, 0.0) * len(ordered) / many
    return result


@lru_cache(maxsize=32)
def _resampled_covariance(n: int, ranks: tuple[int, int]) -> Floats:
    """Return `[n, n]`: how the weights of the ranks vary together over the resamples."""
    weights = _resampled_weights(n, ranks)
    covariance: Floats = weights.T @ weights
    return covariance


def _resampled_weights(n: int, ranks: tuple[int, int]) -> Floats:
    """Return `[resamples, n]`: the weight of each rank less its mean, over √resamples."""
    random = np.random.default_rng(0)  # seeded, so that merging twice gives the same
    resamples = min(_WEIGHTS // n, _RESAMPLES)
    counts = random.multinomial(n, np.full(n, 1 / n), size=resamples)
    upper = counts.cumsum(axis=1)
    inside = np.minimum(upper, ranks[1]) - np.maximum(upper - counts, ranks[0])
    weights = np.clip(inside, 0, None) / (ranks[1] - ranks[0])
    deviations: Floats = (weights - weights.mean(axis=0)) / sqrt(resamples)
    return deviations


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's distribution (Abramowitz and Stegun 26.7.5)."""
    probability = 1 - _TAIL
    if freedom <= 1:
        return tan(pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) * sqrt(2 / (4 * probability * (1 - probability)))
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
