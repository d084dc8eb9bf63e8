from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.composition.journal import SLOW_NS, Evaluation
from xsp.composition.typical.selection import (
    _first_round,
    balanced,
    disturbed,
    middling,
    unlike,
    unsettled,
)
from xsp.evaluation import Rung, trimmed_mean
from xsp.level import Kind
from xsp.session import PlannedVisit, Visit

BARE, OPS = Rung(frozenset()), Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))
MS = QUICK_NS = 1_000_000


def made(*faults: int | None, rung: Rung | None = BARE, thread: int = 7) -> list[Evaluation]:
    return [
        Evaluation(thread, 0, 10 * MS * at, 10 * MS * at + MS, rung, True, (1, ()), (), each)
        for at, each in enumerate(faults)
    ]


def found(evaluations: list[Evaluation]) -> list[int]:
    return sorted(begin // (10 * MS) for _, begin in unsettled(evaluations, lambda number: number))


def test_evaluations_that_took_pages_anew_are_found() -> None:
    assert found(made(512, 128, 0, 1, 0, 0, 2, 0, 384)) == [0, 1, 8]


def test_what_all_evaluations_take_is_their_own() -> None:
    assert found(made(4142, 4140, 4142, 4141, 4142, 4139)) == []


def test_rungs_are_compared_with_themselves() -> None:
    ops = made(*[513] * 8, rung=OPS)
    assert found([*made(*[0] * 8), *ops]) == []


def test_few_evaluations_are_all_kept() -> None:
    assert found(made(0, 0, 0, 0, 512)) == []


def test_where_page_faults_are_not_known_nothing_is_said() -> None:
    assert found(made(*[None] * 9)) == []


def test_page_faults_of_several_threads_are_nobodys() -> None:
    assert found([*made(0, 0, 0, 0, 0, 0, 512), *made(*[0] * 6, thread=8)]) == []


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40))
def test_enough_are_left_and_the_quietest_among_them(faults: list[int]) -> None:
    late = set(found(made(*faults)))
    assert not late or len(faults) - len(late) >= 5
    kept = [each for at, each in enumerate(faults) if at not in late]
    assert min(kept) == min(faults)
    assert all(faults[at] > max(kept) for at in late)


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


LAYERS = Rung(frozenset({Kind.PIPELINE, Kind.LAYER}))


def with_calls(calls: list[int], rung: Rung | None, first: int = 0) -> list[Evaluation]:
    return [
        Evaluation(7, 0, MS * (first + at), MS * (first + at) + 1, rung, True, (each, ()))
        for at, each in enumerate(calls)
    ]


def test_only_evaluations_of_about_the_average_number_of_calls_are_compared() -> None:
    short, long = [9, 10, 9, 9, 10, 9], [60, 61, 62, 63, 64, 65]
    middle = [30, 31, 33, 35, 36, 38]
    made = with_calls(short + middle + long, BARE)
    made += with_calls(middle + long + short, LAYERS, first=100)
    found = middling(made, lambda number: number)
    [(low, high)] = found.values()
    assert low <= 30
    assert 38 <= high < 60
    left_out = {begin // MS for _, begin in unlike(made, lambda number: number, found)}
    assert left_out == {*range(6), *range(12, 18), *range(106, 118)}


def test_where_a_rung_has_no_evaluation_of_average_size_all_are_compared() -> None:
    made = with_calls([1] * 8, BARE) + with_calls([90] * 8, LAYERS, first=100)
    found = middling(made, lambda number: number)
    assert found == {0: (1, 90)}
    assert unlike(made, lambda number: number, found) == frozenset()


def visit(rung: Rung, calls: Sequence[int], first: int = 0) -> Visit:
    at = range(first, first + len(calls))
    return Visit(
        PlannedVisit(rung, len(calls)),
        "step",
        7,
        windows=tuple((n, n + 1) for n in at),
        waited_ns=(0,) * len(calls),
        groups=(0,) * len(calls),
        rounds=(0,) * len(calls),
        names=("step",) * len(calls),
        model_calls=tuple(calls),
    )


def test_the_evaluations_of_each_rung_are_average_ones_together() -> None:
    bare, layers = [10, 20, 30, 20, 10], [18, 20, 22, 20, 20, 40, 44, 50]
    visits = [visit(BARE, bare), visit(LAYERS, layers[:4]), visit(LAYERS, layers[4:], first=9)]
    kept = balanced(visits, lambda number: number, {0: 20.0})
    by_rung: dict[Rung, list[int]] = {BARE: [], LAYERS: []}
    for each in kept:
        by_rung[each.planned.rung] += each.model_calls
        assert len(each.windows) == len(each.model_calls) == len(each.names)
    # Of six the trimmed mean, by which latencies go, leaves out the longest.
    assert by_rung == {BARE: bare, LAYERS: [18, 20, 22, 20, 20, 40]}
    assert balanced(visits, lambda number: number, {}) == visits


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.floats(1, 40))
def test_balancing_leaves_enough_and_never_makes_it_worse(calls: list[int], mean: float) -> None:
    [kept] = balanced([visit(BARE, calls)], lambda number: number, {0: mean})
    left = list(kept.model_calls)
    assert len(left) >= min(len(calls), 5)
    apart = [
        abs(float(trimmed_mean(np.array(each, dtype=float)[:, None])[0]) - mean)
        for each in (left, calls)
    ]
    assert apart[0] <= apart[1]


def test_evaluations_of_as_many_calls_have_no_middle() -> None:
    assert middling(with_calls([4] * 9, BARE), lambda number: number) == {}


def test_pages_that_more_calls_take_are_their_own() -> None:
    made = [
        Evaluation(7, 0, 10 * MS * at, 10 * MS * at + MS, BARE, True, (calls, ()), (), 100 * calls)
        for at, calls in enumerate([1, 9] * 8)
    ]
    assert found(made) == []


def streaks(lengths: Sequence[int], took_ns: int = MS) -> list[Evaluation]:
    """Return evaluations of which the first of each streak came after work of xsp's."""
    places = [place for length in lengths for place in range(length)]
    return [
        Evaluation(
            7, 0, 10 * MS * at, 10 * MS * at + took_ns, BARE, True, (1, ()), (), None, place > 0
        )
        for at, place in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("lengths", "left"),
    [([16, 16], 20), ([16, 15], 23), ([4] * 20, 20), ([3] * 20, 20), ([2] * 20, 40), ([1, 25], 21)],
)
def test_evaluations_soon_after_work_of_xsps_do_not_count_if_others_are_enough(
    lengths: list[int], left: int
) -> None:
    made = streaks(lengths)
    late = disturbed(made, lambda group: group)
    assert len(made) - len(late) == left
    assert not late or (7, made[0].begin_ns) in late


def test_slow_evaluations_do_not_notice_work_of_xsps() -> None:
    assert not disturbed(streaks([40], took_ns=30 * MS), lambda group: group)


def test_rungs_that_are_compared_leave_out_alike() -> None:
    bare = streaks([12] * 5)
    ops = [each._replace(rung=OPS, begin_ns=each.begin_ns + 5) for each in streaks([5] * 6)]
    evaluations = [*bare, *ops]
    apart = disturbed(evaluations, lambda group: group)
    compared = disturbed(evaluations, lambda group: group, compared=True)
    assert len(apart) == 5 * 6 + 6 * 3
    assert len(compared) == 5 * 3 + 6 * 3
