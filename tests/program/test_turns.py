from __future__ import annotations

from collections import defaultdict
from itertools import groupby, pairwise

import pytest

from xsp.evaluation import Rung
from xsp.level import Kind
from xsp.program.turns import WARM, Step, Turns
from xsp.session import Settings

BARE = Rung(frozenset())
LAYERS = Rung(frozenset({Kind.PIPELINE, Kind.LAYER}))
OPS = Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))
DETAIL = Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}), detail=True)
LADDER = (BARE, LAYERS, OPS, DETAIL)
MS = 1_000_000


def made(turns: Turns, latency_ns: int, most: int = 100_000) -> list[Step]:
    """Make evaluations of one length until the plan is complete, and return their steps."""
    steps: list[Step] = []
    now, armed = 1, None
    while len(steps) < most and (step := turns.step(armed)) is not None:
        if step.rung != armed:
            turns.note_change()
        turns.record(step, now, now + latency_ns)
        now += 2 * latency_ns
        armed = step.rung
        steps.append(step)
    return steps


@pytest.mark.parametrize("latency_ns", [MS // 100, MS // 2, 5 * MS, 100 * MS])
def test_a_plan_is_completed_with_as_many_counted_evaluations_as_asked_for(latency_ns: int) -> None:
    turns = Turns(LADDER, Settings(runs=4))
    steps = made(turns, latency_ns)
    assert turns.done
    counted: defaultdict[Rung, int] = defaultdict(int)
    for step in steps:
        counted[step.rung] += step.counts
    assert all(counted[rung] >= 4 for rung in (BARE, LAYERS, OPS))
    assert turns.evaluations == len(steps)
    assert turns.step(None) is None


def test_the_first_evaluation_is_on_the_deepest_timed_rung_and_does_not_count() -> None:
    assert Turns(LADDER, Settings()).step(None) == Step(OPS, -1, False)


def test_after_a_change_of_the_rung_an_evaluation_does_not_count() -> None:
    steps = made(Turns(LADDER, Settings(runs=20)), MS // 2)
    for before, after in pairwise(steps):
        if after.rung != before.rung and after.rung.timed:
            assert not after.counts
    assert sum(step.counts for step in steps) > len(steps) / 3


def test_slow_evaluations_count_at_once() -> None:
    steps = made(Turns(LADDER, Settings(runs=5)), 50 * MS)
    assert all(step.counts for step in steps[1:] if step.rung.timed)


def test_rungs_keep_their_turn_longer_once_the_first_rounds_are_made() -> None:
    steps = made(Turns(LADDER, Settings(runs=200)), MS // 10)
    visits = [list(visit) for _, visit in groupby(steps, key=lambda step: step.rung)]
    recorded = [sum(s.counts for s in visit) for visit in visits if visit[0].rung != BARE]
    assert max(recorded[:4]) <= 2  # a rung that goes first may have gone last before
    assert max(recorded[-12:]) >= 10


def test_the_rung_that_is_recorded_already_goes_first() -> None:
    turns = Turns(LADDER, Settings(runs=3))
    first = turns.step(None)
    assert first is not None
    turns.record(first, 0, 50 * MS)
    step = turns.step(LAYERS)
    assert step is not None
    assert step.rung == LAYERS


def test_an_evaluation_of_a_turn_that_ended_meanwhile_is_of_no_account() -> None:
    turns = Turns(LADDER, Settings(runs=3))
    first = turns.step(None)
    assert first is not None
    turns.record(first, 0, MS)
    turns.record(first, 0, MS)  # another thread's, begun on the same turn
    assert turns.evaluations == 1


@pytest.mark.parametrize("latency_ns", [MS // 2, 50 * MS])
@pytest.mark.parametrize("runs", [1, 3, 10, 100])
def test_the_plan_says_at_least_how_many_evaluations_it_takes(runs: int, latency_ns: int) -> None:
    turns = Turns(LADDER, Settings(runs=runs))
    asked = turns.plan.fewest_evaluations
    assert len(made(turns, latency_ns)) >= asked


def test_a_budget_ends_the_plan() -> None:
    turns = Turns(LADDER, Settings(budget_s=0.5))
    steps = made(turns, MS)
    assert turns.done
    assert 250 < len(steps) < 1_000


def test_a_group_that_is_through_with_a_rung_is_a_guest_there_while_another_needs_it() -> None:
    turns = Turns(LADDER, Settings(runs=3))
    first, _, last = made(turns, 50 * MS, most=4)[1:]  # slow: turns of one or two evaluations
    assert turns.step(last.rung, held=True) == last  # goes on as before
    guest = turns.step(first.rung, held=True)
    assert guest is not None
    assert (guest.rung, guest.counts) == (first.rung, False)
    turns.record(guest, 1, 2)  # no evaluation of the plan
    assert turns.evaluations == 4
    following = turns.step(last.rung, held=False)
    assert following is not None
    assert turns.holds(following.rung)


def test_a_group_joins_in_where_another_needs_a_rung_that_is_still_to_come() -> None:
    turns = Turns(LADDER, Settings(runs=3))
    first, _, last = made(turns, 50 * MS, most=4)[1:]
    (other,) = {rung for rung in LADDER if rung.timed} - {first.rung, last.rung}
    step = turns.step(other, held=True)
    assert step is not None
    assert step.counts
    assert turns.holds(other)


def test_a_group_that_comes_seldom_is_a_guest_in_the_midst_of_its_visit() -> None:
    turns = Turns(LADDER, Settings(runs=3))
    first = turns.step(None, often=False)
    assert first is not None
    turns.record(first, 1, 1 + MS)
    step = turns.step(None, often=False)
    assert step is not None
    other = next(rung for rung in LADDER if rung != step.rung)
    assert turns.step(other, often=False, held=True) == Step(other, WARM, counts=False)
    assert turns.step(other, often=False, held=False) == step
    assert turns.step(other, often=True, held=True) == step


def test_in_the_first_rounds_most_evaluations_record_nothing() -> None:
    steps = made(Turns(LADDER, Settings(runs=200)), MS // 2)
    for number, (bare, others) in enumerate([(4, 1), (6, 1), (8, 2), (10, 2)]):
        of = [step.rung for step in steps if step.counts and step.round == number]
        assert (of.count(BARE), of.count(LAYERS), of.count(OPS)) == (bare, others, others)


def test_the_first_evaluation_of_a_group_is_recorded_whatever_rung_others_need() -> None:
    turns = Turns(LADDER, Settings(runs=3))
    assert turns.step(BARE, often=False, held=True) == Step(OPS, -1, False)


def test_where_threads_evaluate_at_once_each_of_them_settles_on_a_rung() -> None:
    def visits(threads: int) -> list[tuple[Rung, int, int]]:
        """Return the rung of each visit, and how many evaluations do not count, and do."""
        turns, armed, number = Turns(LADDER, Settings(runs=200)), None, None
        result: list[tuple[Rung, int, int]] = []
        while (step := turns.step(armed)) is not None:
            if step.rung != armed:
                turns.note_change()
            if (step.rung, step.round) != (armed, number):
                result.append((step.rung, 0, 0))
            number = step.round
            armed, left_out, counted = result[-1]
            result[-1] = armed, left_out + (not step.counts), counted + step.counts
            turns.record(step, 1, 1 + MS // 2, thread=turns.evaluations % threads)
        return result

    alone, together, crowd = visits(1), visits(4), visits(100)
    assert max(left_out for _, left_out, _ in alone) == 6
    assert max(left_out for _, left_out, _ in together) == 24
    assert max(counted for *_, counted in together) > 2 * max(counted for *_, counted in alone)
    assert 24 < max(left_out for _, left_out, _ in crowd) <= 48  # not for each of a crowd


def test_a_visit_on_the_rung_of_the_one_before_leaves_its_first_evaluations_out_as_well() -> None:
    steps = made(Turns(LADDER, Settings(runs=200)), MS // 2)
    first: dict[tuple[int, Rung], Step] = {}
    for step in steps:
        first.setdefault((step.round, step.rung), step)
    late = [step for (number, rung), step in first.items() if number > 3 and rung.timed]
    assert late
    assert not any(step.counts for step in late)
