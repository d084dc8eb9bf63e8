"""Recording cost: the matrices of the ladder in, what recording one span of each rung costs out.

A rung records all spans that the rung above records, and spans of its own kinds besides. Spans
that both rungs record are called anchors. The own time of an anchor (without the anchors inside)
grows from one rung to the other by the cost of recording the rung's own spans in the anchor.

    anchor "fc"    own time 17 on rung layer, 20 on rung op, which records 2 operators in "fc"
    result         recording one operator costs (20 - 17) / 2 = 1.5
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import ROOT, RunSpans, trimmed_mean
from xsp.merge.difference import Sample, difference
from xsp.merge.ladder import Ladder, RungRuns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_Z95 = 1.96
_FEW = 3  # with so many runs of the same process, runs of others are left out
_LEAST_ROOM_NS = 10.0
_NOBODY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CostPerSpan:
    """What recording one span of a rung's own kinds costs.

    Attributes:
        value_ns: Cost per span inside each anchor; the rung's where an anchor holds no such span.
        error_ns: Standard error of `value_ns`.
        spread_ns: Standard deviation of the cost of single spans, estimated from how much the
            anchors differ.
        pooled_ns: Cost per span of the whole rung.
        low_ns: Lower end of the 95 % interval of `pooled_ns`.
        high_ns: Upper end of that interval.
        outliers: Anchors whose cost per span is far from that of the rung.
    """

    value_ns: Floats
    error_ns: Floats
    spread_ns: float
    pooled_ns: float
    low_ns: float
    high_ns: float
    outliers: Ints


@dataclass(frozen=True, slots=True)
class RungCost:
    """What recording cost on one rung.

    Attributes:
        per_span: Cost per span; None for the outermost rung, which has no rung to compare with.
        anchors: Rows of the anchors, in the order of `per_span.value_ns`.
        count: How many recorded spans have each anchor as their nearest.
        charge_ns: Cost of recording each span; 0 for spans of rungs above.
        nested_ns: Cost of recording the rung's own kinds inside each span.
        error_ns: Standard error of `nested_ns`.
    """

    per_span: CostPerSpan | None
    anchors: Ints
    count: Floats
    charge_ns: Floats
    nested_ns: Floats
    error_ns: Floats


def recording_costs(ladder: Ladder) -> list[RungCost]:
    """Return what recording cost on each rung of the ladder."""
    before = (None, *ladder.rungs[:-1])
    return [_cost(ladder, *pair) for pair in zip(ladder.rungs, before, strict=True)]


def _cost(ladder: Ladder, rung: RungRuns, above: RungRuns | None) -> RungCost:
    spans = ladder.spans
    nothing = np.zeros(len(spans.key))
    if above is None:
        unknown = (spans.first <= rung.order) & spans.paid
        charge = np.where(unknown, np.nan, 0.0)
        return RungCost(None, _NOBODY, nothing[:0], charge, nothing, nothing)
    on_both = spans.order <= above.order
    on_both[ROOT] = True
    own = ~on_both & (spans.first > above.order) & (spans.first <= rung.order) & spans.paid
    anchor = np.maximum(spans.anchors(on_both), ROOT)
    count = np.bincount(anchor[own], minlength=len(own)).astype(float)
    anchors = np.flatnonzero(on_both & (count > 0))
    excess, error = _excess(ladder, rung, above, anchors)
    room = _room(ladder, rung, own)
    per_span = estimate_cost(excess, error, count=count[anchors], room_ns=room)
    value, value_error = np.zeros((2, len(own)))
    value[anchors], value_error[anchors] = per_span.value_ns, per_span.error_ns
    charge, charge_error = np.where(own, (value[anchor], value_error[anchor]), 0.0)
    unequal = _unequal(spans, own, count[anchor], per_span.spread_ns) * ~on_both
    nested_error = np.hypot(spans.nested(charge_error), unequal)
    return RungCost(per_span, anchors, count[anchors], charge, spans.nested(charge), nested_error)


def _unequal(spans: RunSpans, own: Bools, count: Floats, spread_ns: float) -> Floats:
    """Return by how much the cost inside each span is off because single spans cost differently.

    The cost inside a whole anchor is known; the cost inside a span within the anchor is not.

    Args:
        spans: The spans of the shown run.
        own: Which spans are of the rung's own kinds.
        count: How many own spans the nearest anchor of each span holds.
        spread_ns: Standard deviation of the cost of single spans.
    """
    inside = spans.nested(own.astype(float))
    left = np.clip(1 - inside / np.maximum(count, 1), 0, 1)
    return spread_ns * np.sqrt(inside * left)


def _excess(
    ladder: Ladder, rung: RungRuns, above: RungRuns, anchors: Ints
) -> tuple[Floats, Floats]:
    """Return by how much the own time of each anchor grew from the rung above, and its error.

    The own time is compared with runs of the same process alone, where there are enough.
    """
    times = ladder.own_times(rung, above.order)[:, anchors]
    reference = Sample(ladder.own_times(above, above.order)[:, anchors], above.rounds)
    bare = ladder.rungs[0]
    processes = above.processes
    if anchors.tolist() == [ROOT] and above.order >= 0 > bare.order and _only_root(ladder, above):
        reference = reference.joined(Sample(bare.host_ns[:, None], bare.rounds))
        processes = np.concatenate([processes, bare.processes])
    near = np.isin(processes, rung.processes)
    if near.sum() >= _FEW:
        reference = reference.of(near)
    return difference(Sample(times, rung.rounds), reference)


def _only_root(ladder: Ladder, rung: RungRuns) -> bool:
    """Tell whether a rung records no span but the root, as little as the bare rung."""
    return int((ladder.spans.order <= rung.order).sum()) == 1


def _room(ladder: Ladder, rung: RungRuns, own: Bools) -> float:
    """Return the time that usually lies between two of the spans `own`, in ns.

    That is the lower quartile, for some parents do much between the spans inside.
    """
    parent = ladder.spans.parent
    children = np.bincount(parent[own], minlength=len(parent))
    holders = np.flatnonzero(children)
    if not len(holders):
        return _LEAST_ROOM_NS
    gaps = trimmed_mean(ladder.own_times(rung, rung.order)[:, holders]) / children[holders]
    gaps = np.repeat(gaps, children[holders])
    gaps = gaps[np.isfinite(gaps)]
    return max(float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0, _LEAST_ROOM_NS)


def estimate_cost(excess: Floats, error: Floats, *, count: Floats, room_ns: float) -> CostPerSpan:
    """Return the cost per span inside each anchor.

    Each anchor's own estimate is drawn towards the rung's, the more the noisier the anchor is in
    comparison with how much anchors differ (empirical Bayes): an anchor of 20 ms cannot tell a
    cost of 1 us, an anchor of 50 us can. The rung's cost is not negative, and much more than
    `room_ns` only where the data say so clearly.

    Args:
        excess: Growth of each anchor's own time, in ns.
        error: Standard error of each growth.
        count: How many recorded spans caused the growth, for each anchor.
        room_ns: Time that usually lies between two recorded spans. Recording is a part of that
            time, which is so the scale of plausible costs before anything is measured.

    >>> cost = estimate_cost(
    ...     np.array([3000.0]), np.array([1.0]), count=np.array([10.0]), room_ns=500.0
    ... )
    >>> cost.value_ns.round(1), round(cost.pooled_ns, 1)
    (array([300.]), 300.0)
    """
    known = (count > 0) & np.isfinite(excess) & np.isfinite(error)
    if not known.any():
        nothing, unknown = np.zeros(len(excess)), float("nan")
        return CostPerSpan(nothing, nothing, 0.0, unknown, unknown, unknown, _NOBODY)
    raw, raw_error = excess[known] / count[known], error[known] / count[known]
    centre, centre_error, spread = _random_effects(raw, raw_error)
    mean, deviation, low, high = _posterior(centre, centre_error, room_ns)
    value = np.full(len(excess), mean)
    value_error = np.full(len(excess), np.hypot(deviation, spread))
    trust = spread**2 / (spread**2 + raw_error**2)
    value[known] = np.maximum(trust * raw + (1 - trust) * mean, 0.0)
    value_error[known] = np.hypot(np.sqrt(trust) * raw_error, (1 - trust) * deviation)
    outliers = np.flatnonzero(known)[_far(raw, raw_error, mean)]
    single = spread * float(np.median(count[known])) ** 0.5
    return CostPerSpan(value, value_error, single, mean, low, high, outliers)


def _random_effects(values: Floats, errors: Floats) -> tuple[float, float, float]:
    """Return common mean, its standard error, and the spread of the true values.

    The spread is that of DerSimonian and Laird (1986); weights of the mean include the spread.
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
    """Tell which costs are far from the rung's: beyond noise, and several times as large."""
    distance = np.abs(raw - mean)
    spread = 1.4826 * np.median(np.abs(raw - np.median(raw)))
    return (distance > 4 * np.hypot(error * _Z95, spread)) & (distance > 4 * mean)
