from __future__ import annotations

import numpy as np
import pytest

from xsp.merge.recording_cost import CostPerSpan, estimate_cost


def cost(
    excess: list[float], error: list[float], count: list[float], room_ns: float = 1000
) -> CostPerSpan:
    arrays = [np.array(values, dtype=float) for values in (excess, error, count)]
    return estimate_cost(arrays[0], arrays[1], count=arrays[2], room_ns=room_ns)


def test_an_excess_that_is_known_well_is_divided_equally() -> None:
    found = cost([6000, 500], [1, 1], [6, 1])
    assert found.value_ns == pytest.approx([1000, 500], rel=1e-3)


def test_a_provider_that_wastes_much_is_believed() -> None:
    found = cost([8_000_000], [50_000], [80], room_ns=500)
    assert found.pooled_ns == pytest.approx(100_000, rel=1e-3)
    assert found.low_ns < 100_000 < found.high_ns


def test_noise_does_not_become_a_cost() -> None:
    found = cost([6_000_000], [6_000_000], [230], room_ns=1000)
    assert 0 <= found.pooled_ns < 5_000


def test_a_cost_is_never_negative() -> None:
    found = cost([-900, -100, 50], [500, 500, 500], [3, 3, 3])
    assert (found.value_ns >= 0).all()
    assert 0 <= found.low_ns <= found.pooled_ns <= found.high_ns


def test_a_noisy_anchor_takes_the_rungs_cost_and_a_clear_one_its_own() -> None:
    excess = [3000.0, 6000.0, 3300.0, 5700.0, 150_000.0]
    found = cost(excess, [30, 30, 30, 30, 100_000], [3, 3, 3, 3, 3])
    assert found.value_ns[:4] == pytest.approx([1000, 2000, 1100, 1900], rel=0.02)
    assert found.value_ns[4] == pytest.approx(1500, rel=0.05)
    assert found.error_ns[4] > found.error_ns[0]


def test_the_spread_of_single_spans_is_stated() -> None:
    random = np.random.default_rng(0)
    costs = random.uniform(500, 3000, (400, 4))
    found = estimate_cost(
        costs.sum(axis=1), np.full(400, 20.0), count=np.full(400, 4.0), room_ns=1000
    )
    assert found.spread_ns == pytest.approx(costs.std(), rel=0.1)


def test_one_anchor_far_from_all_others_is_an_outlier() -> None:
    excess = [*np.linspace(2900, 3100, 20), 300_000.0]
    found = cost(excess, [30] * 21, [3] * 21)
    assert found.outliers.tolist() == [20]
    assert found.value_ns[20] == pytest.approx(100_000, rel=1e-3)


def test_anchors_that_differ_as_operators_do_are_no_outliers() -> None:
    excess = np.random.default_rng(0).uniform(500, 3000, 200)
    assert not len(cost(list(excess), [30] * 200, [1] * 200).outliers)


def test_anchors_that_hold_nothing_or_were_never_seen_take_the_rungs_cost() -> None:
    found = cost([3000, float("nan"), 0], [1, float("nan"), 1], [10, 4, 0])
    assert found.value_ns == pytest.approx([300, 300, 300], rel=1e-3)


def test_nothing_known_gives_no_cost() -> None:
    found = cost([float("nan")], [1], [10])
    assert found.value_ns.tolist() == [0]
    assert np.isnan(found.pooled_ns)
