"""Shares: what recording one span costs the spans around it.

A rung records the spans that the rung above it records, and its own kinds beside
them. What the spans of the rung above (here: parents) grew by, each without the
parents inside it, is what recording the own kinds in it cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Shares:
    """What recording one span of a rung's own kinds costs.

    Attributes:
        value_ns: Share of each parent; where it holds no such span, the rung's.
        error_ns: Standard error of each.
        spread_ns: By how much single spans differ in cost (standard deviation), as far
            as the parents' shares tell.
        pooled_ns: Share of the whole rung.
        low_ns: Lower end of its 95 % interval.
        high_ns: Upper end.
        outliers: Parents whose share is far from that of the rung.
    """

    value_ns: Floats
    error_ns: Floats
    spread_ns: float
    pooled_ns: float
    low_ns: float
    high_ns: float
    outliers: Ints


def estimate_shares(excess: Floats, error: Floats, *, count: Floats, room_ns: float) -> Shares:
    """Return the share of each parent.

    The parents' own estimates are drawn towards the rung's as far as their noise,
    compared with how much the parents differ, asks for it (empirical Bayes): a
    parent of 20 ms does not know a cost of 1 us, one of 50 us does. The rung's share
    is not negative, and much more than `room_ns` only where the data say so clearly.

    Args:
        excess: What each parent grew by, in ns, without the parents inside it.
        error: Standard error of each.
        count: Recorded spans that the growth pays for, for each parent.
        room_ns: What usually lies between recorded spans, which recording is a part
            of: the scale of costs that are plausible before anything is measured.

    >>> shares = estimate_shares(
    ...     np.array([3000.0]), np.array([1.0]), count=np.array([10.0]), room_ns=500.0
    ... )
    >>> shares.value_ns.round(1), round(shares.pooled_ns, 1)
    (array([300.]), 300.0)
    """
    known = (count > 0) & np.isfinite(excess) & np.isfinite(error)
    if not known.any():
        nothing, unknown = np.zeros(len(excess)), float("nan")
        return Shares(nothing, nothing, 0.0, unknown, unknown, unknown, _NOBODY)
    raw, raw_error = excess[known] / count[known], error[known] / count[known]
    centre, centre_error, spread = _random_effects(raw, raw_error)
    mean, deviation, low, high = _posterior(centre, centre_error, room_ns)
    value = np.full(len(excess), mean)
    value_error = np.full(len(excess), np.hypot(deviation, spread))
    trust = spread**2 / (spread**2 + raw_error**2)
    value[known] = np.maximum(trust * raw + (1 - trust) * mean, 0.0)
    value_error[known] = np.hypot(np.sqrt(trust) * raw_error, (1 - trust) * deviation)
    far = _far(raw, raw_error, mean)
    single = spread * float(np.median(count[known])) ** 0.5
    return Shares(value, value_error, single, mean, low, high, np.flatnonzero(known)[far])


_NOBODY: Ints = np.zeros(0, dtype=np.int64)


def _random_effects(values: Floats, errors: Floats) -> tuple[float, float, float]:
    """Return common mean, its standard error, and the spread of the true values.

    The spread is DerSimonian and Laird's (1986), the mean is weighted with it.
    """
    weights = errors**-2.0
    mean = float(np.average(values, weights=weights))
    heterogeneity = float(weights @ (values - mean) ** 2) - (len(values) - 1)
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    variance = max(heterogeneity / scale, 0.0) if len(values) > 1 and scale > 0 else 0.0
    weights = 1 / (errors**2 + variance)
    mean = float(np.average(values, weights=weights))
    return mean, float(weights.sum() ** -0.5), variance**0.5


def _posterior(value: float, error: float, scale: float) -> tuple[float, float, float, float]:
    """Return mean, deviation and 95 % interval of a cost that was measured with an error.

    Prior: half-Cauchy, as Gelman (2006) advises for scales. Its long tail leaves a
    large cost as it is once the data show it; near zero it keeps noise from
    becoming a cost.
    """
    near = scale * np.linspace(0, 10, 1001)
    around = np.linspace(value - 6 * error, value + 6 * error, 1001)
    grid = np.unique(np.concatenate([near, around[around > 0]]))
    logarithm = -0.5 * ((grid - value) / error) ** 2 - np.log1p((grid / scale) ** 2)
    density = np.exp(logarithm - logarithm.max())
    steps = np.diff(grid, append=grid[-1]) + np.diff(grid, prepend=grid[0])
    weights = density * steps / (density @ steps)
    mean = float(weights @ grid)
    deviation = float(np.sqrt(weights @ (grid - mean) ** 2))
    low, high = np.interp([0.025, 0.975], weights.cumsum(), grid)
    return mean, deviation, float(low), float(high)


def _far(raw: Floats, error: Floats, mean: float) -> NDArray[np.bool_]:
    """Tell which shares are far from the rung's: beyond noise, and several times as large."""
    distance = np.abs(raw - mean)
    spread = 1.4826 * np.median(np.abs(raw - np.median(raw)))
    far: NDArray[np.bool_] = (distance > 4 * np.hypot(error * _Z95, spread)) & (distance > 4 * mean)
    return far
