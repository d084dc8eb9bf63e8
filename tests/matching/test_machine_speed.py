from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from xsp.matching.machine_speed import FEWEST_ROUNDS, Series, SlowLevel, slow_level

Floats = NDArray[np.float64]
Mood = Callable[[np.random.Generator, Floats], Floats]


def calm(random: np.random.Generator, seconds: Floats) -> Floats:
    return np.zeros(len(seconds))


def level(time_s: float, deviation: float = 0.02) -> Mood:
    def mood(random: np.random.Generator, seconds: Floats) -> Floats:
        steps = np.diff(seconds, prepend=seconds[0])
        found, now = [], random.normal()
        for kept in np.exp(-steps / time_s):
            now = kept * now + (1 - kept**2) ** 0.5 * random.normal()
            found.append(deviation * now)
        return np.array(found)

    return mood


def drift(random: np.random.Generator, seconds: Floats) -> Floats:
    return 0.2 * (seconds / seconds.max() - 0.5)


def measured(
    mood: Mood, seed: int, *, rounds: int = 200, passes: int = 4, noise: float = 0.01
) -> tuple[list[Series], float]:
    """Return series of passes that take turns, 0.1 s a round, and the mean of the level."""
    random = np.random.default_rng(seed)
    seconds = np.arange(rounds * passes) * 0.1 / passes + 5.0
    moved = mood(random, seconds - 5.0)
    values = 1e6 * (1 + moved) * np.exp(noise * random.standard_normal(len(seconds)))
    number = np.arange(rounds * passes) // passes
    samples = [
        Series(
            (seconds[pass_::passes] * 1e9).astype(int), number[pass_::passes], values[pass_::passes]
        )
        for pass_ in range(passes)
    ]
    return samples, float(moved.mean())


@pytest.mark.parametrize("time_s", [0.3, 1.0, 3.0])
def test_a_level_that_moves_is_in_the_interval(time_s: float) -> None:
    found = [measured(level(time_s), seed) for seed in range(120)]
    held = [abs(off) <= slow_level(samples).half_width for samples, off in found]
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("rounds", [20, 30, 200])
def test_a_calm_machine_has_hardly_a_level(rounds: int) -> None:
    widths = [slow_level(measured(calm, seed, rounds=rounds)[0]).half_width for seed in range(20)]
    independent = 1.96 * 0.01 / (4 * rounds) ** 0.5
    assert np.median(widths) < 2.5 * independent


def test_a_straight_drift_is_known_and_makes_no_interval_wide() -> None:
    samples, _ = measured(drift, 1)
    found = slow_level(samples)
    assert found.drift_per_s == pytest.approx(0.2 / 20, rel=0.05)
    assert found.half_width < 0.003
    steady = samples[0].values / found.drift(samples[0].began_ns)
    assert steady[:50].mean() == pytest.approx(steady[-50:].mean(), rel=0.01)


def test_runs_without_any_noise_have_no_level() -> None:
    samples, _ = measured(calm, 3, noise=0.0)
    assert slow_level(samples).half_width == pytest.approx(0.0, abs=1e-6)


def test_fewer_rounds_say_nothing() -> None:
    samples, _ = measured(level(1.0), 4, rounds=FEWEST_ROUNDS - 1)
    assert slow_level(samples) == slow_level([]) == SlowLevel()


def test_times_that_differ_by_less_than_a_float_resolves_do_not_break_it() -> None:
    samples, _ = measured(calm, 6, rounds=20)
    unix = [Series(10**18 + s.rounds, s.rounds, s.values) for s in samples]
    assert slow_level(unix) == SlowLevel()
