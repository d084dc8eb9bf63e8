from __future__ import annotations

import numpy as np

from xsp.merge.drift import speeds


def measured(course: np.ndarray, jitter: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    rounds = np.repeat(np.arange(len(course)), 4)
    group = np.tile(np.arange(4), len(course))
    latency = (
        1e6 * (1 + group) * course[rounds] * (1 + jitter * random.standard_normal(len(rounds)))
    )
    return latency, rounds, group


def test_slow_drift_is_followed_and_jitter_is_not() -> None:
    course = 1 + 0.1 * np.sin(np.linspace(0, 3, 60))
    latency, rounds, group = measured(course, 0.01)
    found = speeds(latency, rounds, group)
    assert np.abs(found / found.mean() - course[rounds] / course.mean()).max() < 0.02


def test_outliers_do_not_count_as_drift() -> None:
    latency, rounds, group = measured(np.ones(40), 0.0)
    latency[::7] *= 3
    assert (speeds(latency, rounds, group) == 1).all()


def test_few_rounds_tell_nothing_of_drift() -> None:
    latency, rounds, group = measured(np.linspace(1, 2, 5), 0.0)
    assert (speeds(latency, rounds, group) == 1).all()
