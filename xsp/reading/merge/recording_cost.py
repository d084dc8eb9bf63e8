"""Estimates the cost of recording each span from how spans grow between two passes.

A pass records all spans that the pass above records, and spans of its own kinds besides. Spans
that both passes really saw are called anchors. The self time of an anchor (without the anchors
inside) grows from one pass to the other by the cost of recording the pass's own spans in it.

    anchor "fc"    self time 17 on pass layer, 20 on pass op, which records 2 operators in "fc"
    result         recording one operator costs (20 - 17) / 2 = 1.5

Where several threads ran spans at once, each counts in part (`xsp.matching.Shares`).

Operators of one name cost alike. So anchors that hold different operators tell, together, what
each name costs, and the 3 are divided accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import ROOT, Z95
from xsp.reading.merge.difference import Sample, difference
from xsp.reading.merge.ladder import Ladder, PassRuns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_FEW = 3  # with so many runs of the same process, runs of others are left out
_TINY = 1e-9  # instead of 0, to divide by
_LEAST_NS = 10.0  # least cost that spreads are compared with
_ANCHORS = 1_000  # as many anchors, those known best, tell what names cost
_NAMES = 48  # as many names, the most frequent, have a cost of their own
_FRACTIONS = 8  # spreads of costs that are considered: the cost per span, its half, and so on
_FLAT = 1e-12  # of the precision of names: that of the cost they have in common
_NOBODY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CostPerSpan:
    """Cost of recording the spans of a pass's own kinds.

    Attributes:
        value_ns: Cost of each of these spans, NaN where nothing is known.
        error_ns: Standard error of the mean cost in each span's anchor.
        name_error_ns: Standard error of each span's cost, because its name is not known to cost
            what others cost.
        spread_ns: Standard deviation of the costs of single spans of one name.
        anchor_ns: Mean cost of the spans in each anchor.
        pooled_ns: Mean cost of the whole pass.
        low_ns: Lower end of the 95 % interval of `pooled_ns`.
        high_ns: Upper end of that interval.
        outliers: Anchors in which the mean cost is far from that of the pass.
    """

    value_ns: Floats
    error_ns: Floats
    name_error_ns: Floats
    spread_ns: float
    anchor_ns: Floats
    pooled_ns: float
    low_ns: float
    high_ns: float
    outliers: Ints


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of recording on one pass.

    Attributes:
        per_span: Cost per span; None for the outermost pass, which has no pass to compare with.
        anchors: Rows of the anchors, in the order of `per_span.anchor_ns`.
        count: How many recorded spans have each anchor as their nearest.
        charge_ns: Cost of recording each span; 0 for spans of passes above, NaN where unknown.
        nested_ns: Known cost of recording the pass's own kinds inside each span.
        error_ns: Standard error of `nested_ns`.
    """

    per_span: CostPerSpan | None
    anchors: Ints
    count: Floats
    charge_ns: Floats
    nested_ns: Floats
    error_ns: Floats


def recording_costs(ladder: Ladder) -> list[PassCost]:
    """Return the cost of recording on each pass of the ladder."""
    before = (None, *ladder.passes[:-1])
    return [_cost(ladder, *pair) for pair in zip(ladder.passes, before, strict=True)]


def _cost(ladder: Ladder, pass_: PassRuns, above: PassRuns | None) -> PassCost:
    spans = ladder.spans
    nothing = np.zeros(len(spans.key))
    if above is None:
        unknown = (spans.first <= pass_.order) & spans.paid
        charge = np.where(unknown, np.nan, 0.0)
        return PassCost(None, _NOBODY, nothing[:0], charge, nothing, nothing)
    shared = ladder.shared(pass_, above)
    on_both = ladder.of_paths(shared)
    on_both[ROOT] = True
    own = ~on_both & (spans.first > above.order) & (spans.first <= pass_.order) & spans.paid
    own &= ladder.of_paths(ladder.paths(pass_))
    anchor = np.maximum(spans.anchors(on_both), ROOT)
    # By how much recording each of some spans counts in its anchor; None: as a whole.
    weight = None if spans.shares is None else spans.shares.within(np.flatnonzero(own), anchor[own])
    count = np.bincount(anchor[own], weight, minlength=len(own)).astype(float)
    anchors = np.flatnonzero(count)
    number = np.searchsorted(anchors, anchor[own])
    excess, error = _excess(ladder, (pass_, above), shared, anchors)
    # A number for the name of each of the spans `own`, equal for equal names.
    names = spans.rows["name"].filter(pl.Series(own))
    name_numbers = names.rank("dense").cast(pl.Int64).to_numpy() - 1
    per_span = estimate_cost(excess, error, anchor=number, name=name_numbers, weight=weight)
    costs = np.zeros((4, len(own)))
    costs[:3, own] = per_span.value_ns, per_span.error_ns, per_span.name_error_ns
    costs[3, own] = per_span.spread_ns**2
    charge, costs = costs[0], np.nan_to_num(costs)
    sums = [np.bincount(anchor, each, minlength=len(own)).astype(float) for each in costs[2:]]
    costs[2:] -= sums  # what an anchor within a span holds was divided in that anchor
    nested, error, *inside = spans.nested(costs)
    inside = [np.maximum(each, 0.0) for each in inside]
    unequal = _unequal(inside, [each[anchor] for each in sums]) * ~on_both
    return PassCost(per_span, anchors, count[anchors], charge, nested, np.hypot(error, unequal))


def _unequal(inside: Sequence[Floats], whole: Sequence[Floats]) -> Floats:
    """Return by how much the cost inside each span is off because spans cost differently.

    The cost inside a whole anchor is known. So the cost inside a span within the anchor is off by
    as much as that of all else in the anchor.

    Args:
        inside: Sums over the spans inside each span: of errors of names, which add up, and of
            variances of single spans, which are independent of each other.
        whole: The same sums over the whole anchor.
    """
    names, single = inside
    other_names, others = (np.maximum(w - i, 0.0) for w, i in zip(whole, inside, strict=True))
    variance = single * others / np.maximum(single + others, _TINY)
    return np.sqrt(variance + np.minimum(names, other_names) ** 2)


def _excess(
    ladder: Ladder, pair: tuple[PassRuns, PassRuns], shared: Bools, anchors: Ints
) -> tuple[Floats, Floats]:
    """Return by how much the self time of each anchor grew from the pass above, and its error.

    The self time is compared with runs of the same process alone, where there are enough.
    """
    pass_, above = pair
    times, before = (ladder.self_times(each, shared)[:, anchors] for each in pair)
    reference = Sample(before, above.rounds)
    bare = ladder.passes[0]
    processes = above.processes
    # Tell whether a pass records no span but the root, as little as the bare pass.
    if (
        anchors.tolist() == [ROOT]
        and above.order >= 0 > bare.order
        and (int((ladder.spans.order <= above.order).sum()) == 1)
    ):
        reference = reference.joined(Sample(bare.host_ns[:, None], bare.rounds))
        processes = np.concatenate([processes, bare.processes])
    near = np.isin(processes, pass_.processes)
    if near.sum() >= _FEW:
        reference = reference.of(near)
    return difference(Sample(times, pass_.rounds), reference)


def estimate_cost(
    excess: Floats, error: Floats, *, anchor: Ints, name: Ints, weight: Floats | None = None
) -> CostPerSpan:
    """Return the cost of each span, estimated from how much the anchors grew.

    A span's cost is that of its name, and a part of what its anchor grew by beyond the costs of
    the names in it: the larger a part, the less noisy the anchor is in comparison with how much
    spans of one name differ (empirical Bayes). An anchor of 20 ms cannot tell a cost of 1 us, an
    anchor of 50 us can. No cost is negative.

    Args:
        excess: Growth of each anchor's self time, in ns; NaN where it is not known.
        error: Standard error of each growth.
        anchor: Anchor of each span that caused the growth, as an index into `excess`.
        name: Number of each span's name, from 0.
        weight: By how much each span counts in its anchor, where several ran at once; None: as
            a whole.

    >>> cost = estimate_cost(
    ...     np.array([3000.0, 500.0, 3500.0]), np.array([1.0, 1.0, 1.0]),
    ...     anchor=np.array([0, 1, 2, 2]), name=np.array([0, 1, 0, 1]))
    >>> cost.value_ns.round(-1)
    array([3000.,  500., 2950.,  550.])
    """
    count = np.bincount(anchor, weight, minlength=len(excess))
    count = np.where(count > 0, count, 1)
    known = np.isfinite(excess) & np.isfinite(error)
    mean, mean_error = np.where(known, (excess, error), np.nan) / count
    if not known.any():
        unknown, nan = np.full(len(anchor), np.nan), float("nan")
        return CostPerSpan(unknown, unknown, unknown, 0.0, mean, nan, nan, nan, _NOBODY)
    pooled, pooled_error = _pooled(mean[known], mean_error[known])
    best = np.argsort(mean_error)[: min(known.sum(), _ANCHORS)]  # NaN comes last
    # For each name its rank in frequency, from 0; all names from `_NAMES` on are one.
    rank = np.argsort(np.argsort(-np.bincount(name), kind="stable"))
    column = np.minimum(rank, _NAMES)[name]
    parts = _parts(anchor, column, best, weight)
    names, names_error, spread = _costs_of_names(
        mean[best], mean_error[best], count[best], parts, pooled
    )
    value, value_error = names[column], names_error[column]
    of_span = 1.0 if weight is None else weight
    said, said_error = (
        np.bincount(anchor, of_span * v, len(excess)) / count for v in (value, value_error)
    )
    beyond, beyond_error = _beyond_names(
        mean - said, mean_error, said_error, spread / np.sqrt(count)
    )
    value = np.maximum(value + beyond[anchor], 0.0)
    low, middle, high = np.maximum(pooled + Z95 * np.array([-1, 0, 1]) * pooled_error, 0).tolist()
    return CostPerSpan(
        value_ns=value,
        error_ns=beyond_error[anchor],
        name_error_ns=value_error,
        spread_ns=spread,
        anchor_ns=np.bincount(anchor, of_span * value, len(excess)) / count,
        pooled_ns=middle,
        low_ns=low,
        high_ns=high,
        outliers=np.flatnonzero(known)[_far(mean[known], mean_error[known], middle)],
    )


def _beyond_names(
    apart: Floats, error: Floats, said_error: Floats, alone: Floats
) -> tuple[Floats, Floats]:
    """Return by how much spans in each anchor cost more than their names say.

    Args:
        apart: By how much the mean cost in each anchor is above that of its names; may be NaN.
        error: Standard error of the mean cost.
        said_error: Standard error of the cost that the names say.
        alone: Standard deviation of the mean costs in anchors with the same names.

    Returns:
        The part of `apart` that is no noise, 0 where nothing is known, and the standard error of
        the mean cost that results.
    """
    trust = np.nan_to_num(alone**2 / (alone**2 + error**2))
    doubt = (1 - trust) * np.fmin(said_error, np.hypot(error, alone))
    return np.nan_to_num(trust * apart), np.hypot(alone * np.sqrt(1 - trust), doubt)


def _parts(anchor: Ints, column: Ints, chosen: Ints, weight: Floats | None) -> Floats:
    """Return `[chosen anchors, columns]`: which part of an anchor's spans has each name."""
    row = np.full(int(anchor.max()) + 1, -1)
    row[chosen] = np.arange(len(chosen))
    inside, width = row[anchor] >= 0, int(column.max()) + 1
    cell = row[anchor[inside]] * width + column[inside]
    weight = None if weight is None else weight[inside]
    counts = np.bincount(cell, weight, minlength=len(chosen) * width).reshape(len(chosen), width)
    return counts / counts.sum(axis=1, keepdims=True)


def _costs_of_names(
    mean: Floats, error: Floats, count: Ints, parts: Floats, pooled: float
) -> tuple[Floats, Floats, float]:
    """Return the cost of each name, its standard error, and the spread of single spans.

    Model: the mean cost in an anchor is the pass's cost, plus the mean deviation of the names in
    the anchor, plus the mean deviation of its single spans, plus noise. Deviations are normal.
    How large they are, of names and of single spans, is not known: estimates are averaged over
    spreads, weighted by how likely each makes the data, as in Gelman et al., Bayesian Data
    Analysis, section 5.4. Where the data cannot tell (a single anchor, or the same names in
    every anchor), the spread is assumed to be about half of the cost per span.

    Args:
        mean: Mean cost of the spans in each anchor.
        error: Standard error of each mean.
        count: How many spans each anchor holds.
        parts: `[anchors, names]`, which part of an anchor's spans has each name.
        pooled: Cost per span of the whole pass.
    """
    scale = max(pooled, _LEAST_NS)
    above = mean - pooled
    error = np.hypot(error, _TINY * np.abs(above).max())  # a part of rounding, at least
    spreads, prior = _possible_spreads(scale, np.abs(above) - 3 * error, count)
    design = np.hstack([np.ones((len(mean), 1)), parts])
    fits = [_fits(above, design, error**2 + each**2 / count, spreads) for each in spreads]
    likely, costs, variances = (np.stack(each) for each in zip(*fits, strict=True))
    likely = likely + prior[:, None] + prior
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    cost: Floats = np.tensordot(weights, costs, 2)
    variance: Floats = np.tensordot(weights, variances + (costs - cost) ** 2, 2)
    return pooled + cost, variance**0.5, float(weights.sum(axis=1) @ spreads**2) ** 0.5


def _possible_spreads(scale: float, apart: Floats, count: Ints) -> tuple[Floats, Floats]:
    """Return spreads that costs may have, and the logarithms of their prior weights.

    Their root mean square is 0.4 of the cost per span, unless anchors lie further apart.
    """
    far = max(float(np.max(apart * np.sqrt(count))) / scale, 1.0)
    steps = np.arange(np.ceil(np.log2(far)), -_FRACTIONS, -1)
    spreads: Floats = scale * np.exp2(steps)
    return spreads, np.log(2) * np.where(steps > 0, -2 * steps, 0)


def _fits(
    above: Floats, design: Floats, variance: Floats, spreads: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return how likely the data are for each spread of names, and costs of names with variances.

    That is ridge regression, one for each spread: Bayesian linear regression with a normal prior.

    Args:
        above: By how much the mean cost in each anchor is above that of the pass.
        design: `[anchors, 1 + names]`: 1, and which part of an anchor's spans has each name.
        variance: Variance of each `above`, given the costs of names.
        spreads: Standard deviations of the costs of names.

    Returns:
        Logarithms of marginal likelihoods `[spreads]`; the cost of each name, less that of the
        pass, and its variance, both `[spreads, names]`.
    """
    weighted = design.T / variance
    precision = np.repeat(spreads[:, None] ** -2.0, design.shape[1], axis=1)
    precision[:, 0] = _FLAT * spreads.max() ** -2.0
    # Not by BLAS, whose second thread waits for a core where a measured process is ending: 25 ms
    # for a product that takes less than 2.
    products = np.einsum("na,am->nm", weighted, design)
    covariance = np.linalg.inv(products + precision[:, :, None] * np.eye(len(weighted)))
    moment = weighted @ above
    solution = covariance @ moment
    likely = solution @ moment + np.linalg.slogdet(covariance)[1] + np.log(precision).sum(axis=1)
    likely -= np.log(variance).sum() + (above**2 / variance).sum()
    own = covariance.diagonal(axis1=1, axis2=2)
    variances: Floats = np.maximum(own[:, :1] + 2 * covariance[:, 0, 1:] + own[:, 1:], 0.0)
    return likely / 2, solution[:, :1] + solution[:, 1:], variances


def _pooled(values: Floats, errors: Floats) -> tuple[float, float]:
    """Return the common mean of values that differ by more than their errors, and its error.

    That is the random-effects mean of DerSimonian and Laird (1986).
    """
    weights = errors**-2.0
    mean = float(np.average(values, weights=weights))
    heterogeneity = float(weights @ (values - mean) ** 2) - (len(values) - 1)
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    variance = max(heterogeneity / scale, 0.0) if len(values) > 1 and scale > 0 else 0.0
    weights = 1 / (errors**2 + variance)
    return float(np.average(values, weights=weights)), float(weights.sum() ** -0.5)


def _far(raw: Floats, error: Floats, mean: float) -> Bools:
    """Tell which costs are far from the pass's: beyond noise, and several times as large."""
    distance = np.abs(raw - mean)
    spread = 1.4826 * np.median(np.abs(raw - np.median(raw)))
    return (distance > 4 * np.hypot(error * Z95, spread)) & (distance > 4 * mean)
