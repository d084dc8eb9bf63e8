from __future__ import annotations

import pytest

from xsp.composition.outcome import SLOW_NS, _first_round

QUICK_NS = 1_000_000


@pytest.mark.parametrize(
    ("rounds", "lasts_ns", "first"),
    [
        ([0, 1, 2], QUICK_NS, 0),
        ([3] * 30 + [9] * 20, QUICK_NS, 5),
        ([9] * 30 + [10] * 19, QUICK_NS, 5),
        ([9] * 30 + [10] * 20, QUICK_NS, 10),
        ([9] * 30 + [10] * 20, SLOW_NS, 0),
        ([-1, -1], QUICK_NS, -1),
    ],
)
def test_quick_evaluations_of_the_first_rounds_count_only_where_few_came_later(
    rounds: list[int], lasts_ns: int, first: int
) -> None:
    assert _first_round([(number, lasts_ns) for number in rounds]) == first
