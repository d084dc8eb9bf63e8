from __future__ import annotations

import pytest

import xsp


def test_by_default_every_evaluation_counts() -> None:
    every = xsp.schedule()
    assert all(every.records(n) and every.counts(n) and not every.ended(n) for n in (0, 9, 10**6))


def test_evaluations_are_left_out_then_warm_up_then_count_and_then_it_is_over() -> None:
    when = xsp.schedule(skip=2, warmup=1, active=3)
    assert [when.records(n) for n in range(8)] == [False] * 2 + [True] * 4 + [False] * 2
    assert [when.counts(n) for n in range(8)] == [False] * 3 + [True] * 3 + [False] * 2
    assert [when.ended(n) for n in range(8)] == [False] * 6 + [True] * 2


@pytest.mark.parametrize(
    "wrong", [{"skip": -1}, {"warmup": -1}, {"active": 0}, {"skip": 1.5}, {"active": "2"}]
)
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        xsp.schedule(**wrong)
