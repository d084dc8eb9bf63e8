from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from xsp.merge.recording_cost import CostPerSpan, estimate_cost


def cost(
    excess: Sequence[float],
    error: Sequence[float],
    count: Sequence[int],
    names: Sequence[int] | None = None,
) -> CostPerSpan:
    """Estimate costs of spans that all have one name, unless `names` are given."""
    anchor = np.repeat(np.arange(len(count)), count)
    name = np.zeros_like(anchor) if names is None else np.array(names)
    return estimate_cost(
        np.array(excess, dtype=float), np.array(error, dtype=float), anchor=anchor, name=name
    )


def test_an_excess_that_is_known_well_is_divided_equally() -> None:
    found = cost([6000, 500], [1, 1], [6, 1])
    assert found.value_ns == pytest.approx([1000] * 6 + [500], rel=1e-3)
    assert found.anchor_ns == pytest.approx([1000, 500], rel=1e-3)


def test_a_provider_that_wastes_much_is_believed() -> None:
    found = cost([8_000_000], [50_000], [80])
    assert found.pooled_ns == pytest.approx(100_000, rel=1e-3)
    assert found.low_ns < 100_000 < found.high_ns


def test_a_cost_is_never_negative() -> None:
    found = cost([-900, -100, 50], [500, 500, 500], [3, 3, 3])
    assert (found.value_ns >= 0).all()
    assert 0 <= found.low_ns <= found.pooled_ns <= found.high_ns


def test_a_noisy_anchor_takes_the_rungs_cost_and_a_clear_one_its_own() -> None:
    excess = [3000.0, 6000.0, 3300.0, 5700.0, 150_000.0]
    found = cost(excess, [30, 30, 30, 30, 100_000], [3, 3, 3, 3, 3])
    assert found.anchor_ns[:4] == pytest.approx([1000, 2000, 1100, 1900], rel=0.02)
    assert found.anchor_ns[4] == pytest.approx(1500, rel=0.1)
    assert found.error_ns[-1] > found.error_ns[0]


def test_each_name_has_the_cost_that_anchors_tell_together() -> None:
    random = np.random.default_rng(0)
    anchor, name = np.repeat(np.arange(60), 4), random.integers(0, 6, 240)
    costs = np.array([500.0, 700, 1000, 1500, 2200, 3000])
    excess = np.bincount(anchor, costs[name]) + 20 * random.standard_normal(60)
    found = estimate_cost(excess, np.full(60, 20.0), anchor=anchor, name=name)
    assert found.value_ns == pytest.approx(costs[name], abs=40)
    assert found.name_error_ns.max() < 40


def test_names_that_never_come_apart_cost_alike_with_a_third_of_the_cost_as_error() -> None:
    found = cost([3500] * 20, [1] * 20, [2] * 20, [0, 1] * 20)
    assert found.value_ns == pytest.approx([1750] * 40, rel=1e-2)
    assert found.name_error_ns == pytest.approx([1750 / 3] * 40, rel=0.2)
    assert found.error_ns.max() < 10


def test_names_that_come_apart_elsewhere_and_cost_alike_leave_little_error() -> None:
    alone = [[name] for name in range(2, 12)] * 3
    names = [0, 1] * 20 + [name for names in alone for name in names]
    found = cost([2000] * 20 + [1000] * 30, [5] * 50, [2] * 20 + [1] * 30, names)
    assert found.value_ns == pytest.approx([1000] * 70, rel=0.02)
    assert found.name_error_ns.max() < 100


def test_many_names_are_told_apart_as_far_as_they_are_frequent() -> None:
    names = [name for name in range(3000) for _ in range(2 if name < 20 else 1)]
    excess = [3000.0 if name < 20 else 1000.0 for name in names]
    found = cost(excess, [10] * len(names), [1] * len(names), names)
    assert found.value_ns == pytest.approx(excess, rel=0.05)


def test_the_spread_of_single_spans_is_stated() -> None:
    costs = np.random.default_rng(0).uniform(500, 3000, (400, 4))
    found = cost(list(costs.sum(axis=1)), [20] * 400, [4] * 400)
    assert found.spread_ns == pytest.approx(costs.std(), rel=0.5)


def test_a_single_anchor_leaves_it_open_how_much_spans_differ() -> None:
    found = cost([100_000], [100], [100])
    assert found.value_ns == pytest.approx([1000] * 100, rel=1e-3)
    assert found.spread_ns == pytest.approx(500, rel=0.3)
    assert found.error_ns[0] == pytest.approx(1, rel=0.1)


def test_one_anchor_far_from_all_others_is_an_outlier() -> None:
    excess = [*np.linspace(2900, 3100, 20), 300_000.0]
    found = cost(excess, [30] * 21, [3] * 21)
    assert found.outliers.tolist() == [20]
    assert found.anchor_ns[20] == pytest.approx(100_000, rel=1e-2)


def test_anchors_that_differ_as_operators_do_are_no_outliers() -> None:
    excess = np.random.default_rng(0).uniform(500, 3000, 200)
    assert not len(cost(list(excess), [30] * 200, [1] * 200).outliers)


def test_anchors_that_were_never_seen_take_the_cost_of_the_names() -> None:
    nan = float("nan")
    found = cost([3000, nan, 500], [1, nan, 1], [10, 4, 1], [0] * 14 + [1])
    assert found.value_ns == pytest.approx([300] * 14 + [500], rel=0.05)


def test_where_nothing_is_known_no_cost_is_known() -> None:
    found = cost([float("nan")], [1], [10])
    assert np.isnan(found.value_ns).all()
    assert np.isnan(found.pooled_ns)


def test_excesses_far_beyond_anything_that_recording_costs_are_survived() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        excess = 10 ** random.uniform(0, 10, 6)
        error = 10 ** random.uniform(-6, 3, 6)
        found = cost(excess.tolist(), error.tolist(), [2] * 6, random.integers(0, 4, 12).tolist())
        assert np.isfinite(found.value_ns).all()
        assert np.isfinite(found.name_error_ns).all()
