"""Watching ends once a plan is complete, where watching costs the program time."""

from __future__ import annotations

import torch

import xsp
from xsp.program.evaluation import IdleWatching

MS = 1_000_000


def idle(spent_ns: list[int]) -> IdleWatching:
    watching = IdleWatching()
    for number, spent in enumerate(spent_ns):
        watching.add(number * 50 * MS, spent)
    return watching


def test_a_hundredth_of_the_time_is_costly() -> None:
    assert idle([MS] * 8).costly
    assert not idle([MS // 3] * 8).costly
    assert not idle([MS] * 7).costly  # too few to tell


def test_one_slow_look_is_not_costly_and_several_are() -> None:
    cheap = MS // 10
    assert not idle([cheap, 20 * MS, *[cheap] * 6]).costly
    assert idle([cheap, cheap, 20 * MS] * 3).costly


def test_a_loop_of_quick_calls_is_left_alone_once_its_plan_is_complete() -> None:
    model = torch.nn.Linear(4, 4).eval()
    with torch.no_grad(), xsp.profile(levels=2, runs=2, replay=False) as prof:
        for _ in range(400):
            model(torch.ones(2, 4))
    evaluations = prof._dispatching.journal.evaluations
    assert 8 <= sum(each.rung is None for each in evaluations) <= 10
    assert "unwatched" in str(prof.trace)
