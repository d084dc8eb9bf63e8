from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from xsp.level import Kind
from xsp.matching.machine_speed import FEWEST_ROUNDS
from xsp.matching.run import Pass, ladder
from xsp.record.session.plan import (
    MOST_ROUNDS,
    VISIT_CALLS,
    Plan,
)
from xsp.record.session.settings import Settings, settings_of
from xsp.record.session.visit import PlannedVisit

PASSES = (
    *ladder({Kind.REGION, Kind.LAYER, Kind.OP}),
    Pass(frozenset({Kind.REGION, Kind.LAYER, Kind.OP}), detail=True),
)


def carry_out(
    plan: Plan,
    latency_ns: int = 20_000_000,
    noise: float = 0.0,
    *,
    apart_ns: int = 0,
    now: int = 1,
) -> list[PlannedVisit]:
    random = np.random.default_rng(1)
    steps = []
    while (step := plan.next()) is not None:
        steps.append(step)
        drawn = random.normal(latency_ns, noise * latency_ns, step.calls)
        latencies = [int(value) for value in drawn]
        began, now = now, now + latency_ns * (step.calls + step.untimed)
        now = max(now, step.pause_until_ns)
        plan.record(step, latencies, began_ns=began, ended_ns=now)
        now += apart_ns
        assert len(steps) < 20_000
    return steps


def test_the_bare_pass_comes_first_and_last() -> None:
    steps = [step for step in carry_out(Plan(PASSES, Settings())) if step.counts]
    assert steps[0].pass_.name == steps[-1].pass_.name == "bare"


def test_every_round_visits_every_pass_once_in_an_order_of_its_own() -> None:
    steps = [step for step in carry_out(Plan(PASSES, Settings())) if step.counts]
    rounds = [[s.pass_.name for s in steps if s.round == n] for n in range(4)]
    assert all(sorted(names) == ["bare", "layer", "op", "region"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 2


def test_a_quiet_machine_needs_the_fewest_rounds() -> None:
    plan = Plan(PASSES, Settings())
    carry_out(plan, latency_ns=80_000_000)
    assert len(plan.latencies[PASSES[1]]) == FEWEST_ROUNDS


def test_a_noisy_machine_is_measured_longer_until_it_is_precise() -> None:
    plan = Plan(PASSES, Settings(budget_s=1000))
    carry_out(plan, noise=0.05)
    assert len(plan.latencies[PASSES[1]]) > 2 * FEWEST_ROUNDS


def test_the_budget_ends_it() -> None:
    plan = Plan(PASSES, Settings(budget_s=0.5))
    steps = carry_out(plan, noise=0.5)
    assert plan.spent_ns < 2e9
    assert {step.pass_.name for step in steps} >= {"bare", "region", "layer", "op", "detail"}


def test_runs_asks_for_a_number_of_evaluations_on_every_pass() -> None:
    plan = Plan(PASSES, Settings(runs=7))
    counted = Counter(step.pass_.name for step in carry_out(plan, noise=0.5) if step.counts)
    assert (counted["region"], counted["layer"], counted["op"]) == (7, 7, 7)
    assert counted["detail"] == 1


DEVICE = ladder({Kind.REGION, Kind.LAUNCH, Kind.KERNEL})


@pytest.mark.parametrize(
    ("passes", "names"),
    [
        (DEVICE, ["kernel"] * 3 + ["bare", "region"]),
        ((DEVICE[0], DEVICE[-1]), ["kernel"] * 3 + ["bare"]),
        ((DEVICE[0], Pass(DEVICE[-1].kinds, detail=True)), ["detail"] * 3 + ["bare"]),
        ((*DEVICE, Pass(DEVICE[-1].kinds, detail=True)), ["kernel"] * 3 + ["bare", "region"]),
        (DEVICE[:2], ["region"] + ["bare"] * 3),
    ],
)
def test_on_a_device_what_captures_graphs_is_recorded(
    passes: tuple[Pass, ...], names: list[str]
) -> None:
    steps = carry_out(Plan(passes, Settings()))
    assert [step.pass_.name for step in steps if not step.counts and step.calls] == names


def test_a_first_evaluation_on_a_device_that_compiles_makes_no_slow_model() -> None:
    plan = Plan(DEVICE, Settings())
    steps: list[PlannedVisit] = []
    at, latency_ns = 0, 20_000_000_000
    while len(steps) < 8 and (step := plan.next()) is not None:
        steps.append(step)
        plan.record(step, [latency_ns] * step.calls, began_ns=at, ended_ns=at + latency_ns)
        at, latency_ns = at + latency_ns, 1_000_000
    assert [step.pass_.name for step in steps if step.calls][:3] == ["kernel"] * 3
    assert all(step.untimed == 3 for step in steps if step.counts)


def test_a_model_that_takes_seconds_is_called_no_more_often_than_needed() -> None:
    steps = carry_out(Plan(PASSES, Settings(budget_s=1)), latency_ns=2_000_000_000)
    bare = [step for step in steps if step.pass_.name == "bare"]
    assert [step.calls for step in bare] == [1]  # the deepest pass warmed up
    armed = [step.pass_ for step in steps if not step.counts and not step.calls]
    assert armed == list(PASSES[1:-2])  # a profiler's first use can take seconds
    assert sum(step.calls + step.untimed for step in steps) == 1 + len(PASSES)


@pytest.mark.parametrize("latency_ms", [2, 40, 200, 700])
@pytest.mark.parametrize("budget_s", [1.0, 5.0])
def test_the_budget_is_kept_but_for_what_every_pass_needs(latency_ms: int, budget_s: float) -> None:
    plan = Plan(PASSES, Settings(budget_s=budget_s))
    carry_out(plan, latency_ns=latency_ms * 1_000_000, noise=0.3)
    fewest_s = latency_ms / 1e3 * (2 + 2 * len(PASSES))
    round_s = 0.01 * len(PASSES)  # of a quick model, with what comes before each visit
    assert plan.spent_ns / 1e9 <= budget_s + fewest_s + round_s
    assert all(plan.latencies[pass_] for pass_ in PASSES if pass_.timed)


@pytest.mark.parametrize(("budget_s", "rounds"), [(1, 1), (4, 1), (5, 2), (7, 2), (8, 3)])
def test_no_round_is_begun_of_which_more_would_lie_beyond_the_budget(
    budget_s: float, rounds: int
) -> None:
    plan = Plan(PASSES, Settings(budget_s=budget_s, warmup=0))
    carry_out(plan, latency_ns=750_000_000)  # 3 s a round
    assert len(plan.latencies[PASSES[1]]) == rounds


def test_an_endlessly_noisy_model_is_not_measured_longer_than_it_can_be_interpreted() -> None:
    plan = Plan(PASSES, Settings(budget_s=1e6))
    carry_out(plan, latency_ns=1_000, noise=0.9)
    assert len(plan.latencies[PASSES[1]]) <= VISIT_CALLS * MOST_ROUNDS


@pytest.mark.parametrize(
    ("argument", "value"),
    [("runs", 0), ("runs", 2.5), ("runs", "3"), ("runs", -3), ("budget", 0), ("budget", -1.0)],
)
def test_numbers_out_of_range_are_refused(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=argument):
        settings_of(2, **{argument: value})  # type: ignore[arg-type]


def test_settings_survive_json() -> None:
    settings = settings_of(("model", "framework"), runs=3, budget=1.5)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
