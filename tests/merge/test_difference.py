from __future__ import annotations

import numpy as np
import pytest

from xsp.evaluation.summary import trimmed_mean
from xsp.merge.difference import Sample, difference


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def differ(values: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    samples = [Sample(each, np.arange(len(each))) for each in (values, reference)]
    return difference(samples[0], samples[1])


def test_a_difference_without_noise_is_exact() -> None:
    estimate, error = differ(np.full((5, 2), 1300.0), np.full((5, 2), 1000.0))
    assert estimate.tolist() == [300, 300]
    assert error.max() < 1


def test_drift_common_to_both_falls_out_of_a_difference() -> None:
    random = np.random.default_rng(1)
    drift = np.linspace(1000, 2000, 30)[:, None]
    noise = random.normal(size=(2, 30, 1))
    estimate, _ = differ(drift + 300 + noise[0], drift + noise[1])
    assert abs(estimate[0] - 300) < 1


def test_runs_that_were_disturbed_hardly_reach_a_difference() -> None:
    random = np.random.default_rng(2)
    disturbed = np.where(
        random.random((2, 40, 200)) < 0.15, random.exponential(5e6, (2, 40, 200)), 0
    )
    clean = random.normal(1e6, 1e3, (2, 40, 200))
    estimate, error = differ(clean[0] + 2e4 + disturbed[0], clean[1] + disturbed[1])
    assert np.median(np.abs(estimate - 2e4)) < 1e3
    assert np.median(error) < 1e3


@pytest.mark.parametrize("excess", [0.02, 1.0])
def test_noise_that_only_makes_longer_does_not_bias_a_difference(excess: float) -> None:
    random = np.random.default_rng(3)
    noise = 1 + np.abs(random.normal(0, 0.05, (2, 40, 500)))
    slow, fast = 1000 * (1 + excess) * noise[0], 1000 * noise[1]
    estimate, error = differ(slow, fast)
    truth = 1000 * excess * (1 + np.abs(random.normal(0, 0.05, (10**6, 1))))
    truth = trimmed_mean(truth)
    assert abs(estimate.mean() - truth[0]) < 4 * estimate.std() / 500**0.5
    assert np.mean(np.abs(estimate - truth) < 1.96 * error) > 0.9


def test_the_error_of_a_difference_is_honest() -> None:
    values = np.random.default_rng(4).normal(1000, 10, (2, 30, 3000))
    estimate, error = differ(values[0], values[1])
    assert 0.90 < np.mean(np.abs(estimate) < 1.96 * error) < 0.99


def test_a_difference_of_single_runs_is_not_trusted() -> None:
    _, error = differ(column(1300), column(1000))
    assert error[0] > 20


def test_runs_that_are_alike_within_a_round_do_not_make_an_error_small() -> None:
    random = np.random.default_rng(5)
    rounds = np.repeat(np.arange(8), 10)
    mood = random.normal(1000, 50, (2, 8, 500))[:, rounds]
    values = mood + random.normal(0, 1, mood.shape)
    estimate, error = difference(Sample(values[0], rounds), Sample(values[1], rounds + 100))
    assert np.mean(np.abs(estimate) < 1.96 * error) > 0.85


@pytest.mark.parametrize(
    ("rounds", "others"),
    [
        (np.zeros(5), np.arange(10)),
        (np.zeros(17), np.repeat([0, 1], [17, 3])),
        (-np.ones(3), np.zeros(5)),
    ],
)
def test_runs_of_a_single_round_have_an_error(rounds: np.ndarray, others: np.ndarray) -> None:
    random = np.random.default_rng(6)
    values = random.normal(1000, 10, (len(rounds), 1000))
    reference = random.normal(1000, 10, (len(others), 1000))
    estimate, error = difference(
        Sample(values, rounds.astype(int)), Sample(reference, others.astype(int))
    )
    assert np.mean(np.abs(estimate) < 1.96 * error) > 0.9
