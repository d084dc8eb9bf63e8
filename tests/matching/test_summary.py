from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.matching.summary import (
    half_width,
    summarize,
    trimmed_mean,
)


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def test_trimmed_mean_leaves_a_fifth_out_at_either_end() -> None:
    assert trimmed_mean(column(0, 10, 11, 12, 1000))[0] == 11
    assert trimmed_mean(column(1, 3))[0] == 2
    assert trimmed_mean(column(7))[0] == 7


def test_spans_missing_in_some_runs_are_summarized_over_the_others() -> None:
    values = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan]])
    assert trimmed_mean(values).tolist() == [2.0, 5.0]
    assert np.isnan(trimmed_mean(np.full((3, 1), np.nan)))[0]


@pytest.mark.parametrize(
    ("statistic", "expected"), [("median", 3.5), ("mean", 21.0), ("trimmed", 3.5)]
)
def test_statistics(statistic: str, expected: float) -> None:
    assert summarize(column(1, 2, 3, 4, 5, 111), statistic)[0] == expected


def test_an_unknown_statistic_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'mode'; there are trimmed, median"):
        summarize(column(1.0), "mode")


@pytest.mark.parametrize("statistic", ["trimmed", "median", "mean"])
@pytest.mark.parametrize("runs", [2, 3, 4, 5, 8, 30, 150, 400])
def test_intervals_hold_the_truth_about_as_often_as_they_say(statistic: str, runs: int) -> None:
    values = np.random.default_rng(3).normal(100, 5, size=(runs, 2000))
    half = half_width(values, statistic)
    held = np.mean(np.abs(summarize(values, statistic) - 100) <= half)
    assert held >= 0.92
    assert runs < 30 or held <= 0.98


def test_one_run_gives_no_interval() -> None:
    assert np.isnan(half_width(column(5.0)))[0]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_every_statistic_lies_within_the_values(values: list[float]) -> None:
    for statistic in ("trimmed", "median", "mean"):
        found = summarize(column(*values), statistic)[0]
        assert min(values) - 1e-3 <= found <= max(values) + 1e-3


def test_of_three_and_four_values_one_that_was_disturbed_is_left_out() -> None:
    assert trimmed_mean(column(10, 11, 110))[0] == 11
    assert trimmed_mean(column(10, 11, 12, 110))[0] == 11.5


def test_an_interval_of_many_runs_is_that_of_their_quantiles() -> None:
    values = np.random.default_rng(5).normal(100, 5, size=(4000, 50))
    ratio = half_width(values[:280]) / half_width(values) / (4000 / 280) ** 0.5
    assert np.median(ratio) == pytest.approx(1, abs=0.05)
