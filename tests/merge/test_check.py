from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulate import QUIET, Machine, Noise, resnet

from xsp.merge.check import find_problems
from xsp.merge.ladder import Ladder, climb
from xsp.merge.latency import Latencies, latencies
from xsp.merge.recording_cost import CostPerSpan, RungCost, recording_costs
from xsp.problem import Problem

Evidence = tuple[Ladder, list[RungCost], Latencies]


def evidence(noise: Noise = QUIET, *, costly: float | None = None) -> Evidence:
    """Return what the checks compare; recording some operators costs `costly` ns."""
    tree = resnet()
    if costly is not None:
        for i, name in enumerate(tree.name):
            if name == "aten::mkldnn" and i < 30:
                tree.cost_ns[i] = costly
    ladder = climb(Machine(tree, noise).measure(20)[0])
    costs = recording_costs(ladder)
    return ladder, costs, latencies(ladder, costs, "mean")


def problem(found: Evidence, code: str) -> Problem | None:
    return next((each for each in find_problems(*found) if each.code == code), None)


def with_child(found: Evidence, factor: float, *, margin: float = 0.01) -> Evidence:
    """Return evidence in which the first child of the root takes `factor` times the root."""
    ladder, costs, known = found
    child = int(np.flatnonzero(ladder.spans.parent == 0)[0])
    value, low, high = known.value_ns.copy(), known.low_ns.copy(), known.high_ns.copy()
    value[child] = factor * value[0]
    low[child], high[child] = (1 - margin) * value[child], (1 + margin) * value[child]
    return ladder, costs, replace(known, value_ns=value, low_ns=low, high_ns=high)


def test_a_span_longer_than_the_one_around_it_is_named_once() -> None:
    found = with_child(evidence(), 3.5)
    names = found[0].spans.rows["name"].to_list()
    said = problem(found, "child-longer")
    assert said is not None
    assert f"is longer than {names[0]}" in said.message
    assert "others" not in said.message
    assert problem(found, "scaled") is None


@pytest.mark.parametrize(("factor", "margin"), [(0.2, 0.01), (1.5, 0.6)])
def test_a_span_that_fits_or_may_fit_is_no_problem(factor: float, margin: float) -> None:
    assert problem(with_child(evidence(), factor, margin=margin), "child-longer") is None


def test_costs_that_differ_by_much_are_said() -> None:
    said = problem(
        evidence(Noise(jitter=0.001, span_jitter=0.001), costly=400_000), "share-outlier"
    )
    assert said is not None
    assert "µs elsewhere" in said.message


def near(cost: CostPerSpan) -> CostPerSpan:
    """Return costs that are 1 % higher in every anchor than in all, and said to be far."""
    higher = np.full_like(cost.anchor_ns, 1.01 * cost.pooled_ns)
    return replace(cost, anchor_ns=higher, outliers=np.arange(len(higher)))


def test_costs_that_differ_by_one_per_cent_are_no_problem_however_certain() -> None:
    ladder, costs, known = evidence(costly=400_000)
    alike = [replace(cost, per_span=cost.per_span and near(cost.per_span)) for cost in costs]
    assert problem((ladder, alike, known), "share-outlier") is None
