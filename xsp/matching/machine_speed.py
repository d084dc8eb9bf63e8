"""Estimates from the latencies of runs how the machine's speed moved during a measurement.

A machine is faster in some seconds than in others: its frequency, its neighbors, its memory.
Runs of one measurement see only the levels of a few seconds, and many runs within one level say
nothing of the next. So the series of rounds is taken for the sum of noise, which is new in every
round, a level that moves slowly (an Ornstein-Uhlenbeck process), and possibly a straight drift:

    rounds      1.00 1.01 0.99 1.00 1.05 1.06 1.04 1.05 1.00 0.99
    noise       ± 0.01, ten draws           level   ± 0.03, three draws
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, lgamma, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from xsp.matching.summary import Z95, pulls, student, trimmed_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_ROUNDS = 10  # fewer say nothing of levels
_MOST_POINTS = 200  # of a series; of more rounds, neighbors are averaged
_TIMES_S = (0.1, 0.3, 1.0, 3.0, 10.0)  # after which a level has moved on
_RATIOS = tuple(10.0**power for power in range(-2, 5))  # variance of the level over the noise's
_LEAST_NS = 1_000  # that a series lasts
_DRIFT = 1.0  # scale of plausible drifts, as a fraction of the latency
_ERF = np.vectorize(erf)


@dataclass(frozen=True, slots=True)
class Series:
    """Latencies of the model on one pass, in one process.

    Attributes:
        began_ns: When each run began.
        rounds: Round of each run.
        values: Latency of each run.
    """

    began_ns: Ints
    rounds: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class SlowLevel:
    """Slow changes of the machine's speed, a level and a drift, as fractions of any latency.

    Attributes:
        half_width: Half of the 95 % interval of the level's mean over the measurement, around
            the mean over a time without end.
        drift_per_s: Slope of the straight drift; 0 where none was seen.
        centre_ns: The time at which the drift is 0.
    """

    half_width: float = 0.0
    drift_per_s: float = 0.0
    centre_ns: float = 0.0

    def drift(self, began_ns: Ints) -> Floats:
        """Return by which factor the drift made runs slower that began at these times."""
        factor = 1 + self.drift_per_s * (began_ns - self.centre_ns) / 1e9
        slowed: Floats = np.maximum(factor, 0.1)
        return slowed


def slow_level(samples: Sequence[Series]) -> SlowLevel:
    """Return how the machine's speed moved during a measurement.

    All passes and processes tell of the same machine, so their latencies are made one series,
    each as a fraction of the pass's own.
    """
    samples = [sample for sample in samples if len(np.unique(sample.rounds)) >= FEWEST_ROUNDS]
    began = np.concatenate([np.zeros(0, np.int64), *(sample.began_ns for sample in samples)])
    if not len(began) or np.ptp(began) < _LEAST_NS:
        return SlowLevel()
    rounds = max(len(np.unique(sample.rounds)) for sample in samples)
    center = float(began.mean())
    relative = np.concatenate([_relative(sample.values) for sample in samples])
    slope = _resistant_slope((began - center) / 1e9, relative)
    moved = [_influence(sample, SlowLevel(0.0, slope, center)) for sample in samples]
    # The drift is taken out while values are winsorized, and judged like all else afterwards.
    series = np.concatenate(moved) + slope * (began - center) / 1e9
    seconds, level = _points((began - center) / 1e9, series, min(rounds, _MOST_POINTS))
    half_width, drift = _level_and_drift(seconds, level)
    return SlowLevel(half_width, drift, center)


def _relative(values: Floats) -> Floats:
    return values / max(float(trimmed_mean(values[:, None])[0]), 1.0) - 1


def _resistant_slope(seconds: Floats, values: Floats) -> float:
    """Return the slope between the medians of the first and the last third (Tukey 1977)."""
    low, high = np.quantile(seconds, [1 / 3, 2 / 3])
    early, late = seconds <= low, seconds >= high
    apart = float(seconds[late].mean() - seconds[early].mean())
    rise = float(np.median(values[late]) - np.median(values[early]))
    return rise / apart if apart > 0 else 0.0


def _influence(sample: Series, drift: SlowLevel) -> Floats:
    """Return by how much each run is off its pass's trimmed mean, winsorized, as a fraction."""
    values = (sample.values / drift.drift(sample.began_ns))[:, None]
    influence = pulls(values)[:, 0] * len(values)
    return influence / max(float(trimmed_mean(values)[0]), 1.0)


def _points(seconds: Floats, values: Floats, count: int) -> tuple[Floats, Floats]:
    """Return time and mean value of `count` groups of runs, in the order of time."""
    order = np.argsort(seconds, kind="stable")
    starts = np.arange(count) * len(order) // count
    sizes = np.diff(starts, append=len(order))
    at, level = (np.add.reduceat(each[order], starts) / sizes for each in (seconds, values))
    return at, level


def _level_and_drift(seconds: Floats, level: Floats) -> tuple[float, float]:
    """Return half of the 95 % interval of the level's mean, and the drift per second.

    Every pair of correlation time and variance ratio, with and without a drift, is a model. A
    model's weight is its likelihood, after the variance, the mean and the drift are integrated
    out; even odds that there is no slow level at all.
    """
    times = np.array([1.0, *np.repeat(_TIMES_S, len(_RATIOS))])
    ratios = np.array([0.0, *np.tile(_RATIOS, len(_TIMES_S))])
    products, determinant = _innovations(seconds, level, times, ratios)
    correlation = {
        each: float(np.exp(-np.abs(seconds[:, None] - seconds) / each).mean())
        for each in set(times.tolist())
    }
    inflation = ratios * [correlation[each] for each in times.tolist()]
    odds = np.full(len(times), log(0.5 / (len(times) - 1)))
    odds[0] = log(0.5)
    width = float(np.ptp(seconds)) or 1.0
    fits = [_regression(products[:, : 2 + drift, : 2 + drift], len(level)) for drift in (0, 1)]
    weights = np.concatenate([odds + fit[0] - determinant / 2 for fit in fits])
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    # Student's factor is that of the model, but no model's variance rests on two values alone.
    widen = student(len(level) - 1) / Z95
    errors = widen * np.sqrt(np.concatenate([inflation * fit[1] for fit in fits]))
    slopes = np.concatenate([fit[2] for fit in fits]) / width
    # How far 95 % of a mixture of normal distributions around 0 reach.
    some = errors > 0
    if weights[some].sum() <= 0.05:
        mixture_half_width = 0.0
    else:
        low, high = 0.0, 6 * float(errors.max())
        for _ in range(40):
            middle = (low + high) / 2
            inside = weights[some] @ _ERF(middle / errors[some] / sqrt(2)) + weights[~some].sum()
            low, high = (middle, high) if inside < 0.95 else (low, middle)
        mixture_half_width = high
    return mixture_half_width, float(weights @ slopes)


def _innovations(
    seconds: Floats, level: Floats, times: Floats, ratios: Floats
) -> tuple[Floats, Floats]:
    """Return products of whitened columns (level, one, time), and log determinants, per model.

    A Kalman filter runs over the points once, for all models side by side (Harvey 1989).
    """
    width = float(np.ptp(seconds)) or 1.0
    columns = np.stack([level, np.ones(len(level)), (seconds - seconds.mean()) / width], axis=1)
    state: Floats = np.zeros((len(times), 3))
    variance: Floats = ratios.copy()
    products, determinant = np.zeros((len(times), 3, 3)), np.zeros(len(times))
    for step, row in zip(np.diff(seconds, prepend=seconds[0]), columns, strict=True):
        kept: Floats = np.exp(-step / times)
        state *= kept[:, None]
        variance = kept**2 * variance + ratios * (1 - kept**2)
        total = variance + 1
        surprise = row - state
        gain = variance / total
        state += gain[:, None] * surprise
        variance *= 1 - gain
        products += surprise[:, :, None] * (surprise / total[:, None])[:, None, :]
        determinant += np.log(total)
    return products, determinant


def _regression(products: Floats, count: int) -> tuple[Floats, Floats, Floats]:
    """Return log likelihood, variance of the noise, and slope, of each model's regression.

    Args:
        products: `[models, columns, columns]`, the level first.
        count: Number of points.
    """
    known = products[:, 1:, 1:]
    beta = np.linalg.solve(known, products[:, 1:, :1])[..., 0]
    fitted = (beta * products[:, 1:, 0]).sum(axis=1)
    left = np.maximum(products[:, 0, 0] - fitted, 1e-18 * count)
    freedom = count - beta.shape[1]
    likelihood: Floats = lgamma(freedom / 2) - freedom / 2 * np.log(pi * left)
    likelihood = likelihood - np.linalg.slogdet(known)[1] / 2
    slope: Floats = np.zeros(len(left))
    if beta.shape[1] > 1:  # a normal prior, flat over the slopes that the series allows
        slope = np.asarray(beta[:, 1], dtype=np.float64)
        likelihood = likelihood - log(_DRIFT * sqrt(2 * pi))
    return likelihood, left / freedom, slope
