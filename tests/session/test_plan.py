from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from xsp.evaluation.machine_speed import FEWEST_ROUNDS
from xsp.evaluation.run import Rung, ladder
from xsp.level import Kind
from xsp.session.plan import (
    MOST_ROUNDS,
    ROUNDS,
    SPREAD_S,
    VISIT_EVALUATIONS,
    Plan,
)
from xsp.session.settings import Settings, settings_of
from xsp.session.visit import PlannedVisit

RUNGS = (
    *ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP}),
    Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}), detail=True),
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
        drawn = random.normal(latency_ns, noise * latency_ns, step.evaluations)
        latencies = [int(value) for value in drawn]
        began, now = now, now + latency_ns * (step.evaluations + step.untimed)
        now = max(now, step.pause_until_ns)
        plan.record(step, latencies, began_ns=began, ended_ns=now)
        now += apart_ns
        assert len(steps) < 20_000
    return steps


def test_the_bare_rung_comes_first_and_last() -> None:
    steps = [step for step in carry_out(Plan(RUNGS, Settings(), repeatable=True)) if step.counts]
    assert steps[0].rung.name == steps[-1].rung.name == "bare"


def test_every_round_visits_every_rung_once_in_an_order_of_its_own() -> None:
    steps = [step for step in carry_out(Plan(RUNGS, Settings(), repeatable=True)) if step.counts]
    rounds = [[s.rung.name for s in steps if s.round == n] for n in range(4)]
    assert all(sorted(names) == ["bare", "layer", "op", "pipeline"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 2


def test_a_quiet_machine_needs_the_fewest_rounds() -> None:
    plan = Plan(RUNGS, Settings(), repeatable=True)
    carry_out(plan, latency_ns=80_000_000)
    assert len(plan.latencies[RUNGS[1]]) == FEWEST_ROUNDS


@pytest.mark.parametrize("budget_s", [1, 20])
@pytest.mark.parametrize("latency_ns", [50_000, 1_000_000, 20_000_000])
def test_rounds_are_spread_over_seconds_where_the_budget_allows(
    latency_ns: int, budget_s: float
) -> None:
    plan = Plan(RUNGS, Settings(budget_s=budget_s), repeatable=True)
    steps = carry_out(plan, latency_ns)
    spread = min(SPREAD_S, budget_s)
    assert 0.85 * spread < plan.lasted_s < 1.5 * spread + 0.1
    assert max(step.round for step in steps) <= ROUNDS + 1


def test_time_passes_with_the_bare_model() -> None:
    steps = carry_out(Plan(RUNGS, Settings(), repeatable=True), latency_ns=1_000_000)
    passing = [step for step in steps if step.pause_until_ns]
    assert {step.rung.name for step in passing} == {"bare"}
    assert not any(step.counts or step.evaluations or step.untimed for step in passing)


def test_runs_that_were_asked_for_are_made_without_a_pause() -> None:
    steps = carry_out(Plan(RUNGS, Settings(runs=20), repeatable=True), latency_ns=1_000_000)
    assert all(step.evaluations for step in steps)


def test_a_level_that_moves_slowly_is_not_taken_for_precision() -> None:
    moods = 1 + 0.02 * np.repeat(np.random.default_rng(3).normal(size=200), 10)
    plan = Plan(RUNGS, Settings(), repeatable=True)
    now = 1
    while (step := plan.next()) is not None:
        latency = round(20_000_000 * moods[min(int(now / 1e8), 1999)])
        began, now = now, now + latency * (step.evaluations + step.untimed)
        now = max(now, step.pause_until_ns)
        plan.record(step, [latency] * step.evaluations, began_ns=began, ended_ns=now)
    assert plan.lasted_s > 10


def test_every_second_round_goes_the_other_way_so_that_drift_makes_no_rung_slower() -> None:
    plan = Plan(RUNGS, Settings(budget_s=100), repeatable=True)
    steps = [s for s in carry_out(plan, noise=0.05) if s.counts and not s.rung.detail]
    names = [[s.rung.name for s in steps if s.round == number] for number in range(10)]
    assert all(names[n] == names[n + 1][::-1] for n in range(0, 10, 2))
    assert len({tuple(order) for order in names}) > 4


def test_the_minimum_which_has_no_interval_is_measured_as_long_as_the_trimmed_mean() -> None:
    rounds = []
    for statistic in ("min", "trimmed"):
        plan = Plan(RUNGS, Settings(statistic=statistic), repeatable=True)
        carry_out(plan)
        rounds.append(len(plan.latencies[RUNGS[1]]))
    assert rounds[0] == rounds[1] < 2 * ROUNDS


def test_a_noisy_machine_is_measured_longer_until_it_is_precise() -> None:
    plan = Plan(RUNGS, Settings(budget_s=1000), repeatable=True)
    carry_out(plan, noise=0.05)
    assert len(plan.latencies[RUNGS[1]]) > 2 * FEWEST_ROUNDS


def test_the_budget_ends_it() -> None:
    plan = Plan(RUNGS, Settings(budget_s=0.5), repeatable=True)
    steps = carry_out(plan, noise=0.5)
    assert plan.spent_ns < 2e9
    assert {step.rung.name for step in steps} >= {"bare", "pipeline", "layer", "op", "detail"}


def test_runs_asks_for_a_number_of_evaluations_on_every_rung() -> None:
    plan = Plan(RUNGS, Settings(runs=7), repeatable=False)
    counted = Counter(step.rung.name for step in carry_out(plan, noise=0.5) if step.counts)
    assert (counted["pipeline"], counted["layer"], counted["op"]) == (7, 7, 7)
    assert counted["detail"] == 1


SAMPLED = Rung(RUNGS[-1].kinds, sampled=True)


@pytest.mark.parametrize(
    ("latency_ns", "settings", "evaluations"),
    [
        (10_000_000, Settings(), 50),  # for half a second
        (10_000_000, Settings(budget_s=4), 20),  # for a twentieth of the budget
        (10_000, Settings(), 2000),
        (900_000_000, Settings(), 1),
        (10_000_000, Settings(runs=5), 5),
    ],
)
def test_samples_are_taken_once_at_the_end_and_for_a_small_part_of_the_budget(
    latency_ns: int, settings: Settings, evaluations: int
) -> None:
    steps = carry_out(Plan((*RUNGS, SAMPLED), settings, repeatable=True), latency_ns=latency_ns)
    (at,) = [number for number, step in enumerate(steps) if step.rung.sampled]
    assert steps[at].evaluations == evaluations
    assert at >= len(steps) - 3
    assert not SAMPLED.timed


def test_a_program_that_cannot_be_repeated_is_sampled_in_some_of_its_evaluations() -> None:
    for latency_ns, early, later in ((1_000_000, 2, 8), (5_000_000, 2, 8), (60_000_000, 2, 2)):
        plan = Plan((*RUNGS, SAMPLED), Settings(), repeatable=False)
        steps = [step for step in carry_out(plan, latency_ns=latency_ns) if step.rung.sampled]
        assert {step.evaluations for step in steps} == {1}
        # Early, for the program may end at any time, and more often where each has few samples.
        rounds = Counter(step.round for step in steps)
        assert (rounds[1], rounds[4], rounds[7]) == (early, later, later)
        # For half a second, or at the last moment for a tenth of one longer.
        assert 500 <= len(steps) * latency_ns / 1e6 <= 600


def test_a_process_of_its_own_samples_for_half_of_its_part_of_the_budget() -> None:
    plan = Plan((RUNGS[0], SAMPLED), Settings(budget_s=0.5), repeatable=True)
    (step,) = [
        step for step in carry_out(plan, latency_ns=1_000_000) if step.counts and step.rung.sampled
    ]
    assert step.evaluations == 250


DEVICE = ladder({Kind.PIPELINE, Kind.LAUNCH, Kind.KERNEL})


@pytest.mark.parametrize(
    ("rungs", "names"),
    [
        (DEVICE, ["kernel"] * 3 + ["bare", "pipeline"]),
        ((DEVICE[0], DEVICE[-1]), ["kernel"] * 3 + ["bare"]),
        ((DEVICE[0], Rung(DEVICE[-1].kinds, detail=True)), ["detail"] * 3 + ["bare"]),
        ((*DEVICE, Rung(DEVICE[-1].kinds, detail=True)), ["kernel"] * 3 + ["bare", "pipeline"]),
        (DEVICE[:2], ["pipeline"] + ["bare"] * 3),
    ],
)
def test_on_a_device_what_captures_graphs_is_recorded(
    rungs: tuple[Rung, ...], names: list[str]
) -> None:
    steps = carry_out(Plan(rungs, Settings(), repeatable=True))
    assert [step.rung.name for step in steps if not step.counts and step.evaluations] == names


def test_a_first_evaluation_on_a_device_that_compiles_makes_no_slow_model() -> None:
    plan = Plan(DEVICE, Settings(), repeatable=True)
    steps: list[PlannedVisit] = []
    at, latency_ns = 0, 20_000_000_000
    while len(steps) < 8 and (step := plan.next()) is not None:
        steps.append(step)
        plan.record(step, [latency_ns] * step.evaluations, began_ns=at, ended_ns=at + latency_ns)
        at, latency_ns = at + latency_ns, 1_000_000
    assert [step.rung.name for step in steps if step.evaluations][:3] == ["kernel"] * 3
    assert all(step.untimed == 3 for step in steps if step.counts)


def test_a_program_that_cannot_be_repeated_is_warmed_up_once() -> None:
    steps = carry_out(Plan(DEVICE, Settings(), repeatable=False))
    assert [step.rung.name for step in steps][:3] == ["kernel", "bare", "pipeline"]


def test_a_quick_model_is_evaluated_many_times_a_visit_after_settling() -> None:
    steps = carry_out(Plan(RUNGS, Settings(), repeatable=True), latency_ns=100_000)
    late = [step for step in steps if step.round > 0 and not step.rung.detail]
    assert all(step.untimed >= 1 for step in late)
    assert max(step.evaluations for step in late) == VISIT_EVALUATIONS


def test_warming_up_tells_how_large_the_first_visits_are() -> None:
    steps = carry_out(Plan(RUNGS, Settings(), repeatable=True), latency_ns=100_000)
    first = next(step for step in steps if step.counts)
    assert (first.evaluations, first.untimed) == (VISIT_EVALUATIONS, 30)


def test_a_program_that_cannot_be_repeated_is_asked_for_one_evaluation_at_a_time() -> None:
    steps = carry_out(Plan(RUNGS, Settings(), repeatable=False), latency_ns=1000)
    assert {(step.evaluations, step.untimed) for step in steps} == {(1, 0)}
    assert [step.rung.name for step in steps[:5]] == ["op", "bare", "pipeline", "layer", "op"]


def test_what_was_done_without_being_asked_for_does_not_confuse_it() -> None:
    plan = Plan(RUNGS, Settings(runs=1), repeatable=False)
    plan.record(PlannedVisit(RUNGS[2], round=5), [1], began_ns=0, ended_ns=1)
    first = plan.next()
    assert first is not None
    assert first.rung == RUNGS[3]


def test_the_fraction_grows_to_one() -> None:
    plan = Plan(RUNGS, Settings(runs=5), repeatable=False)
    seen = [plan.fraction]
    while (step := plan.next()) is not None:
        plan.record(step, [100], began_ns=0, ended_ns=100)
        seen.append(plan.fraction)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_model_that_takes_seconds_is_called_no_more_often_than_needed() -> None:
    steps = carry_out(Plan(RUNGS, Settings(budget_s=1), repeatable=True), latency_ns=2_000_000_000)
    bare = [step for step in steps if step.rung.name == "bare"]
    assert [step.evaluations for step in bare] == [1]  # the deepest rung warmed up
    armed = [step.rung for step in steps if not step.counts and not step.evaluations]
    assert armed == list(RUNGS[1:-2])  # a profiler's first use can take seconds
    assert sum(step.evaluations + step.untimed for step in steps) == 1 + len(RUNGS)


@pytest.mark.parametrize("latency_ms", [2, 40, 200, 700])
@pytest.mark.parametrize("budget_s", [1.0, 5.0])
def test_the_budget_is_kept_but_for_what_every_rung_needs(latency_ms: int, budget_s: float) -> None:
    plan = Plan(RUNGS, Settings(budget_s=budget_s), repeatable=True)
    carry_out(plan, latency_ns=latency_ms * 1_000_000, noise=0.3)
    fewest_s = latency_ms / 1e3 * (2 + 2 * len(RUNGS))
    round_s = 0.01 * len(RUNGS)  # of a quick model, with what comes before each visit
    assert plan.spent_ns / 1e9 <= budget_s + fewest_s + round_s
    assert all(plan.latencies[rung] for rung in RUNGS if rung.timed)


@pytest.mark.parametrize(("budget_s", "rounds"), [(1, 1), (4, 1), (5, 2), (7, 2), (8, 3)])
def test_no_round_is_begun_of_which_more_would_lie_beyond_the_budget(
    budget_s: float, rounds: int
) -> None:
    plan = Plan(RUNGS, Settings(budget_s=budget_s, warmup=0), repeatable=True)
    carry_out(plan, latency_ns=750_000_000)  # 3 s a round
    assert len(plan.latencies[RUNGS[1]]) == rounds


def test_a_round_lasts_no_longer_while_others_have_their_turns() -> None:
    plan = Plan(RUNGS, Settings(budget_s=6, warmup=0), repeatable=True)
    carry_out(plan, latency_ns=400_000_000, apart_ns=1_200_000_000)
    assert len(plan.latencies[RUNGS[1]]) == 4  # 1.6 s each


def test_a_round_of_the_programs_own_does_not_shorten_the_repetitions() -> None:
    plan = Plan(RUNGS, Settings(budget_s=60), repeatable=False)
    for now in range(0, 15_000_000_000, 5_000_000_000):
        step = plan.next()
        assert step is not None
        plan.record(step, [5_000_000], began_ns=now, ended_ns=now + 5_000_000)
    plan.repeatable = True
    plan.settings = Settings(budget_s=plan.spent_ns / 1e9 + 2)
    carry_out(plan, latency_ns=5_000_000, now=now + 5_000_000)
    assert len(plan.latencies[RUNGS[1]]) >= FEWEST_ROUNDS


def test_runs_that_were_asked_for_are_made_as_long_as_the_budget_is_not_spent() -> None:
    plan = Plan(RUNGS, settings_of(2, runs=3, budget=20), repeatable=True)
    carry_out(plan, latency_ns=1_900_000_000)  # 7.6 s a round
    assert len(plan.latencies[RUNGS[1]]) == 3


def test_an_endlessly_noisy_model_is_not_measured_longer_than_it_can_be_interpreted() -> None:
    plan = Plan(RUNGS, Settings(budget_s=1e6), repeatable=True)
    carry_out(plan, latency_ns=1_000, noise=0.9)
    assert len(plan.latencies[RUNGS[1]]) <= VISIT_EVALUATIONS * MOST_ROUNDS


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


def test_a_model_that_is_warm_already_begins_with_what_one_evaluation_may_tell() -> None:
    plan = Plan(RUNGS, Settings(budget_s=1, warmup=0), repeatable=True)
    steps = carry_out(plan, latency_ns=2_000_000_000)
    *timed, detail = RUNGS
    assert [step.rung for step in steps if not step.counts] == timed
    assert not [step for step in steps if not step.counts and step.evaluations]
    assert [step.rung for step in steps if step.counts] == [*timed[::-1], detail]


def test_what_closes_the_plan_is_in_the_budget() -> None:
    sampled = Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}), sampled=True)
    plan = Plan((*RUNGS, sampled), Settings(budget_s=2, precision=1e-9), repeatable=True)
    steps = carry_out(plan, latency_ns=1_000_000, noise=0.1)
    assert steps[-2].rung == sampled
    assert steps[-2].most_ns > 0
    assert plan.spent_ns < 2.05e9
