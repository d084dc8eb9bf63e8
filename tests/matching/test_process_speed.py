from __future__ import annotations

import numpy as np
import pytest

from xsp.matching.machine_speed import Series
from xsp.matching.process_speed import process_speeds

ROUNDS = np.repeat(np.arange(20), 2)


def processes(speeds: list[float], noise: float = 0.0, seed: int = 0) -> dict[int, Series]:
    """Return bare runs of processes that take turns on a machine whose level moves by 5 %."""
    random = np.random.default_rng(seed)
    level = 1 + 0.05 * np.sin(ROUNDS / 3)
    return {
        number: Series(
            ROUNDS * 10**8,
            ROUNDS,
            1e6 * speed * level * np.exp(noise * random.standard_normal(len(ROUNDS))),
        )
        for number, speed in enumerate(speeds)
    }


def test_each_process_is_brought_to_the_scale_of_all() -> None:
    found = process_speeds(processes([1.0, 1.2, 1 / 1.2]))
    assert found.factors == pytest.approx({0: 1.0, 1: 1 / 1.2, 2: 1.2})
    assert found.apart == pytest.approx(0.2)


def test_noise_is_not_taken_for_a_difference_between_processes() -> None:
    apart = [process_speeds(processes([1.0] * 4, 0.05, seed)).apart for seed in range(40)]
    assert np.median(apart) == 0.0


def test_the_interval_holds_the_mean_of_all_processes_that_there_could_be() -> None:
    random, held = np.random.default_rng(1), []
    for seed in range(300):
        speeds = np.exp(0.02 * random.standard_normal(4))
        half = process_speeds(processes(speeds.tolist(), 0.01, seed)).half_width
        held.append(abs(np.log(speeds).mean()) <= half)
    assert 0.92 <= np.mean(held) <= 0.98


@pytest.mark.parametrize("number", [0, 1])
def test_a_single_process_is_compared_with_none(number: int) -> None:
    found = process_speeds(processes([1.0] * number))
    assert (dict(found.factors), found.half_width, found.apart) == ({}, 0.0, 0.0)


def test_processes_that_share_neither_time_nor_rounds_are_not_compared() -> None:
    one, other = processes([1.0, 1.0]).values()
    later = Series(other.began_ns + 10**12, other.rounds + 100, other.values)
    assert not process_speeds({0: one, 1: later}).factors
