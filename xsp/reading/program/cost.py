"""Estimates the time that recording added to a program, by comparing adjacent windows.

The cost of a recorded layer, or operator, is the difference between windows with and without it,
neighbors in time, for each unit (calls of one number, backward passes after them), by trimmed
means, drawn to a prior by its own standard error: where calls differ, windows alone say anything.
The method and the priors were measured (benchmarks/notes/2026-11-windows.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.provider import BACKWARD, CALL, OPTIMIZER
from xsp.reading.program.events import Items

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Priors, ns, of PyTorch on machines of 2026: of layers and operators by a prototype, of the rest by
# `benchmarks/within.py`, between a quiet machine and a busy one.
LAYER_NS, OPERATOR_NS = 550.0, 800.0  # of one that is recorded
CALL_NS, PASS_NS, OPTIMIZER_NS = 3500.0, 6500.0, 6500.0  # of a call, backward pass, optimizer step
IDLE_NS = 250.0  # of a module's call whose layers are not recorded
REGION_NS, PART_NS = 1250.0, 1000.0  # of one end of a region, and of a part
PRIOR_SD = 0.35  # of a prior, as a fraction of it
_LEAST_NS, _MOST_NS = 200.0, 3000.0  # of a learned cost: beyond that windows were unlike
_TRIM = 0.2  # of values at either end: the project's statistic
_FEWEST = 5  # windows that teach anything
_UNITS = 40  # that are looked at: those with most calls
DEEP_ERROR = 0.15  # of what was subtracted in windows of operators: they cost unlike amounts


@dataclass(frozen=True, slots=True)
class Costs:
    """Time in ns that recording one item adds, by kind, and the standard error of learned ones."""

    layer: float = LAYER_NS
    operator: float = OPERATOR_NS
    layer_se: float = PRIOR_SD * LAYER_NS
    operator_se: float = PRIOR_SD * OPERATOR_NS


@dataclass(frozen=True, slots=True)
class Segments:
    """Calls, passes and optimizers' steps that lie in no other, by which costs are learned.

    Attributes:
        unit: What is alike.
        window: Number of the window that it is in, -1 where it is in two.
        layers: Whether layers are recorded in it; `operators`: whether operators are.
        took_ns: How long it took, less what is known to be xsp's.
        n_layers: How many layers lie in it; `n_operators` likewise.
    """

    unit: Ints
    window: Ints
    layers: Bools
    operators: Bools
    took_ns: Floats
    n_layers: Floats
    n_operators: Floats


def units(items: Items, chosen: Ints) -> Ints:
    """Return a number for each segment that is equal where segments are alike.

    A backward pass is like others after the same call.
    """
    kind = items.kind[chosen]
    number = np.where(kind == CALL, items.number[chosen] + 1, 0)
    last = np.maximum.accumulate(np.where(number > 0, np.arange(len(chosen)), 0))
    unit = number[last] * 4
    unit += np.where(kind == BACKWARD, 1, np.where(kind == OPTIMIZER, 2, 0))
    return unit


def learn(segments: Segments) -> Costs:
    """Estimate the cost of recording a layer and an operator in this program."""
    with_layers = segments.layers & ~segments.operators
    without = ~segments.layers & ~segments.operators
    layer, layer_se = _drawn(
        _differences(segments, with_layers, without, segments.n_layers, segments.took_ns),
        LAYER_NS,
    )
    rest = segments.took_ns - segments.n_layers * layer * segments.layers
    operator, operator_se = _drawn(
        _differences(segments, segments.operators, ~segments.operators, segments.n_operators, rest),
        OPERATOR_NS,
    )
    return Costs(layer, operator, layer_se, operator_se)


def _differences(
    segments: Segments, more: Bools, less: Bools, count: Floats, took_ns: Floats
) -> list[tuple[float, float]]:
    """Return the cost by each window of the rarer kind, with the number of spans it rests on."""
    result: list[tuple[float, float]] = []
    # The first segments of windows that have four or more: caches are cold there.
    first = (
        np.append(True, segments.window[1:] != segments.window[:-1])
        if len(segments.window)
        else np.zeros(0, bool)
    )
    many = (
        np.bincount(np.maximum(segments.window, 0))[np.maximum(segments.window, 0)] >= 4
        if len(segments.window)
        else first
    )
    first_of_many = first & many
    usable = (segments.window >= 0) & ~first_of_many
    often = np.bincount(segments.unit[usable]) if usable.any() else np.zeros(0)
    for unit in np.argsort(-often, kind="stable")[:_UNITS].tolist():
        mine = usable & (segments.unit == unit)
        yes = _windows(segments, mine & more, count, took_ns)
        no = _windows(segments, mine & less, count, took_ns)
        if not len(yes[0]) or not len(no[0]):
            continue
        rare, common, sign = (no, yes, 1.0) if len(no[0]) <= len(yes[0]) else (yes, no, -1.0)
        for window, value, spans in zip(*rare, strict=True):
            after = np.searchsorted(common[0], window)
            near = [at for at in (after - 1, after) if 0 <= at < len(common[0])]
            other = common[1][near].mean()
            recorded = spans if sign < 0 else common[2][near].mean()
            if recorded > 0:
                result.append((sign * (other - value) / recorded, recorded))
    return result


def _windows(
    segments: Segments, chosen: Bools, count: Floats, took_ns: Floats
) -> tuple[Ints, Floats, Floats]:
    """Return number, trimmed mean of times and mean count of spans of each window.

    Segments of several threads are not in the order of windows.
    """
    at = np.flatnonzero(chosen)
    at = at[np.argsort(segments.window[at], kind="stable")]
    window, starts = np.unique(segments.window[at], return_index=True)
    groups = np.split(at, starts[1:]) if len(at) else []
    means = np.array([_trimmed(took_ns[group]) for group in groups])
    return window, means, np.array([count[group].mean() for group in groups])


def _trimmed(values: Floats) -> float:
    values = np.sort(values)
    cut = int(len(values) * _TRIM)
    return float(values[cut : len(values) - cut].mean())


def _drawn(pairs: Sequence[tuple[float, float]], prior: float) -> tuple[float, float]:
    """Return a cost and its standard error: the windows' own, drawn to a prior.

    >>> _drawn([], 500.0)
    (500.0, 175.0)
    >>> value, error = _drawn([(300.0, 10.0)] * 20 + [(310.0, 10.0)] * 20, 500.0)
    >>> round(value), error < 5
    (305, True)

    Six windows of calls that differ say little, though four of them say about the same:

    >>> unlike = [(5101, 13), (6453, 14), (6477, 11), (6811, 41), (20307, 34), (21014, 13)]
    >>> [round(each) for each in _drawn(unlike, 800.0)]
    [838, 280]
    """
    if len(pairs) < _FEWEST:
        return prior, PRIOR_SD * prior
    cost, weight = np.array(pairs).T
    order = np.argsort(cost)
    cost, weight = cost[order], weight[order] / weight.sum()
    place = np.cumsum(weight) - weight / 2
    middle = (place > _TRIM) & (place < 1.0 - _TRIM)
    middle = middle if middle.any() else np.ones(len(cost), bool)
    value = float((cost[middle] * weight[middle]).sum() / weight[middle].sum())
    # The standard error of a trimmed mean (Tukey and McLaughlin 1963): by the winsorized values.
    ends = int(_TRIM * len(cost))
    spread = float(np.clip(cost, cost[ends], cost[len(cost) - 1 - ends]).std(ddof=1))
    own_se = max(spread / ((1.0 - 2.0 * _TRIM) * len(cost) ** 0.5), 1.0)
    own, known = own_se**-2, (PRIOR_SD * prior) ** -2
    drawn = float(np.clip((value * own + prior * known) / (own + known), _LEAST_NS, _MOST_NS))
    return drawn, (own + known) ** -0.5
