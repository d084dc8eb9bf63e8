from __future__ import annotations

from collections.abc import Sequence

import pytest

from xsp.evaluation.run import Rung, ladder
from xsp.level import Kind
from xsp.session.plan import Plan
from xsp.session.settings import Settings, settings_of
from xsp.target import division
from xsp.target.division import divide, too_slow
from xsp.target.spec import Spec
from xsp.target.worker import Job

SPEC = Spec("job.py:work")
KINDS = (Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL, Kind.KERNEL)
NAMES = ("pipeline", "layer", "op", "call", "kernel")


@pytest.fixture(autouse=True)
def rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the rungs of all levels, whatever this machine has."""

    def names(settings: Settings) -> list[str]:
        return (
            [*NAMES[: len(settings.levels) + 1], "detail"]
            if len(settings.levels) > 1
            else ["pipeline"]
        )

    monkeypatch.setattr(division, "rung_names", names)


def jobs(levels: int, budget: float, *, serialised: bool = False) -> list[Job]:
    return divide(SPEC, settings_of(levels, budget=budget), serialised=serialised)


@pytest.mark.parametrize(
    ("levels", "processes"),
    [
        (1, [("pipeline",)] * 3),
        (2, [("pipeline", "layer"), ("op", "detail"), ("pipeline", "layer")]),
        (3, [("pipeline", "layer"), ("op",), ("call", "detail")]),
        (4, [("pipeline", "layer"), ("op",), ("call",), ("kernel", "detail")]),
    ],
)
def test_deeper_rungs_have_a_process_each(levels: int, processes: list[tuple[str, ...]]) -> None:
    assert [job.rungs for job in jobs(levels, 5.0)] == processes


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_the_budget_is_divided_without_rest(levels: int) -> None:
    assert sum(job.settings.budget_s for job in jobs(levels, 5.0)) == pytest.approx(5.0)


def test_a_serialised_process_has_its_part_of_the_budget() -> None:
    divided = jobs(3, 5.0, serialised=True)
    rest = division.serialised_budget_s(divided)
    assert sum(job.settings.budget_s for job in divided) + rest == pytest.approx(5.0)


def rungs_of(job: Job) -> list[Rung]:
    every = {rung.name: rung for rung in ladder(KINDS)} | {"detail": Rung(frozenset(KINDS), True)}
    return [every[name] for name in ("bare", *(job.rungs or ()))]


def take_turns(plans: Sequence[Plan], latency_ns: int) -> int:
    """Carry out plans visit by visit in turns, and return how long that took, in ns."""
    now = 1
    while any(not plan.done for plan in plans):
        for plan in plans:
            if (step := plan.next()) is None:
                continue
            began = now
            now = max(now + latency_ns * (step.evaluations + step.untimed), step.pause_until_ns)
            # Unlike from round to round, so that no plan ends as precise.
            took = latency_ns * (4 if step.round % 2 else 1)
            plan.record(step, [took] * step.evaluations, began_ns=began, ended_ns=now)
    return now


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("latency_ms", [0.01, 1, 25, 80])
def test_all_processes_together_keep_the_budget(levels: int, latency_ms: float) -> None:
    divided = jobs(levels, 5.0)
    assert not too_slow(latency_ms / 1e3, divided)
    plans = [Plan(rungs_of(job), job.settings, repeatable=True) for job in divided]
    took_s = take_turns(plans, int(latency_ms * 1e6)) / 1e9
    assert 4.0 < took_s <= 5.0 + 0.5 + 20 * latency_ms / 1e3
    assert all(plan.latencies[rung] for plan in plans for rung in plan.latencies)


def test_a_model_too_slow_to_compare_processes_is_measured_in_one() -> None:
    divided = jobs(3, 5.0)
    assert too_slow(0.8, divided)
    assert not too_slow(0.8, jobs(3, 60.0))
    assert divided[0].alone is not None
    assert divided[0].alone.budget_s == pytest.approx(5.0)
    assert divided[0].alone.warmup == 0  # the trial calls were the warming up
    assert [job.alone for job in divided[1:]] == [None, None]


def test_nothing_is_called_unrecorded_where_graphs_may_be_captured() -> None:
    assert jobs(4, 5.0)[0].alone is None
    on_device = divide(Spec("job.py:work", device="cuda"), settings_of(2), serialised=False)
    assert on_device[0].alone is None
