"""Two ranks, one of which decides: what they record of each evaluation, and where that fails."""

from __future__ import annotations

import random

import pytest
from rank_samples import Board

from xsp.evaluation import Rung
from xsp.level import Kind
from xsp.program.turns import Step, Turns
from xsp.rank import Agreement, Identity, Turn
from xsp.session import Settings

BARE = Rung(frozenset())
LAYERS = Rung(frozenset({Kind.PIPELINE, Kind.LAYER}))
OPS = Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))
DETAIL = Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}), detail=True)
LADDER = (BARE, LAYERS, OPS, DETAIL)
MS = 1_000_000


def company(board: Board, size: int = 2, patience_s: float = 0.0) -> list[Agreement]:
    return [Agreement(Identity(n, size), board, patience_s=patience_s) for n in range(size)]


class Rank:
    """A rank that evaluates one group, as slowly as it likes."""

    def __init__(self, agreement: Agreement, settings: Settings, seed: int) -> None:
        self.turns = Turns(LADDER, settings, agreement)
        self.steps: list[Step | None] = []
        self._random, self._now = random.Random(seed), 1
        self._armed: Rung | None = None

    def evaluate(self) -> None:
        step = self.turns.step(self._armed)
        lasts_ns = int(self._random.uniform(0.2, 8) * MS)
        if step is not None:
            self.turns.record(step, self._now, self._now + lasts_ns)
        self._now += 2 * lasts_ns
        self._armed = step.rung if step else None
        self.steps.append(step)


@pytest.mark.parametrize("settings", [Settings(runs=12), Settings(budget_s=0.3)])
def test_ranks_of_unlike_speed_record_the_same_of_each_evaluation(settings: Settings) -> None:
    board = Board()
    ranks = [Rank(each, settings, n) for n, each in enumerate(company(board, 3))]
    for _ in range(600):
        for rank in ranks:
            rank.evaluate()
    first = ranks[0].steps
    assert [rank.steps for rank in ranks[1:]] == [first, first]
    assert all(rank.turns.done for rank in ranks)
    assert {step.rung for step in first if step} == set(LADDER)
    assert first[-1] is None


def test_the_plan_of_the_first_rank_gets_what_it_asks_for() -> None:
    rank = Rank(company(Board())[0], Settings(runs=7), 0)
    while not rank.turns.done:
        rank.evaluate()
    assert all(len(rank.turns.plan.latencies[rung]) >= 7 for rung in (BARE, LAYERS, OPS))


def test_a_rank_that_runs_ahead_gives_up_and_records_nothing_more() -> None:
    leader, follower = (Rank(each, Settings(runs=5), 0) for each in company(Board()))
    for _ in range(3):
        follower.evaluate()
    assert [step and step.rung for step in follower.steps] == [OPS, None, None]
    leader.evaluate()
    follower.evaluate()  # once alone, it stays so
    assert follower.steps[-1] is None
    assert follower.turns.done


def test_why_a_rank_gave_up_is_told() -> None:
    leader, follower = company(Board())
    assert follower.turn(0, 1) is None
    assert "rank 0 was more than 0 s behind" in follower.trouble
    leader.end()
    assert not leader.trouble


def test_a_rank_does_not_wait_for_one_that_has_ended() -> None:
    board = Board()
    leader, follower = company(board, patience_s=60)
    leader.end()
    assert follower.turn(0, 1) is None
    assert not follower.trouble


def test_a_rank_does_not_wait_where_nothing_arrives() -> None:
    board = Board()
    _, follower = company(board, patience_s=600)
    board.gone = True
    assert follower.turn(0, 1) is None
    assert "out of reach" in follower.trouble


def test_what_was_left_before_the_end_is_still_read() -> None:
    leader, follower = company(Board())
    leader.leave(3, 1, Turn(2, 0, 4, 3))
    leader.leave(3, 2, None)
    assert follower.turn(3, 1) == Turn(2, 0, 4, 3)
    assert follower.turn(3, 2) is None
    assert not follower.trouble


def test_others_stop_watching_after_rank_0_only() -> None:
    leader, follower = company(Board())
    assert not any(follower.may_stop() for _ in range(50))
    assert leader.may_stop()
    assert any(follower.may_stop() for _ in range(50))
