from __future__ import annotations

import cProfile
import mmap
import sys
import threading
from typing import Any

import polars as pl
import pytest
from toy import Toy, ToyModel

from xsp.clock import Clock
from xsp.evaluation.run import Rung, ladder
from xsp.level import Kind
from xsp.measurement.interpretation import Interpretation, interpret
from xsp.problem import Problem, ProblemCount
from xsp.provider.contract import Records, Request
from xsp.provider.row import ROW_SCHEMA, SpanRows, span_rows
from xsp.provider.watching import ModelCall
from xsp.session.recorder import Session
from xsp.session.visit import PlannedVisit, Visit
from xsp.testing import FakeClock, FakeProvider, ReplayProvider, rows

BARE, PIPELINE, LAYER, OP = ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP})


def toy_session(cost_ns: int = 0) -> tuple[Session, ModelCall, ToyModel]:
    clock = FakeClock(1_000)
    toy = Toy(clock, cost_ns=cost_ns)
    model = ToyModel(toy)
    return Session([toy], clock), ModelCall(model, (1,), subject="ToyModel"), model


def interpreted(session: Session) -> Interpretation:
    return interpret(session.visits, session.providers)


def test_a_visit_times_every_evaluation_but_those_that_settle() -> None:
    session, call, model = toy_session()
    assert session.visit(PlannedVisit(BARE, 3, 2, round=0), call) == [model.latency_ns] * 3
    assert model.calls == 5
    assert len(interpreted(session).runs) == 3


def test_a_visit_ends_when_it_has_lasted_as_long_as_it_may() -> None:
    session, call, model = toy_session()
    most_ns = 2 * model.latency_ns
    assert len(session.visit(PlannedVisit(BARE, 10, 0, 0, most_ns - 1), call)) == 2
    assert len(session.visit(PlannedVisit(BARE, 10, 0, 0, most_ns), call)) == 3


def test_a_visit_that_was_made_before_is_the_first_of_its_rung_that_counts() -> None:
    session, call, model = toy_session()
    trial = Visit(PlannedVisit(BARE, round=0), "", 1, windows=((100, 150),), waited_ns=(20,))
    session.take(trial)
    assert session.visit(PlannedVisit(BARE), call) == [model.latency_ns]  # warming up
    assert session.visit(PlannedVisit(PIPELINE, round=0), call) == [model.latency_ns]
    assert session.visit(PlannedVisit(BARE, round=0), call) == [50]
    assert session.visit(PlannedVisit(BARE, round=1), call) == [model.latency_ns]
    assert model.calls == 3
    run = next(run for run in interpreted(session).runs if run.rung == BARE)
    assert (run.round, run.began_ns, run.host_ns) == (0, 100, 30)
    session.take(trial)
    session.take(None)
    assert session.visit(PlannedVisit(BARE, round=2), call) == [model.latency_ns]


def test_a_pause_lets_the_model_run_for_a_time_and_keeps_nothing() -> None:
    session, call, model = toy_session()
    before = session.clock.now()
    pause = PlannedVisit(BARE, 0, pause_until_ns=before + 10 * model.latency_ns - 1)
    assert session.visit(pause, call) == []
    assert session.clock.now() - before == 10 * model.latency_ns
    assert session.visit(pause, call) == []  # the moment is over
    assert (model.calls, session.visits) == (10, [])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not count page faults")
def test_a_visit_counts_the_page_faults_of_its_timed_evaluations_alone() -> None:
    pages, size = 200, mmap.PAGESIZE
    made = []

    def model() -> None:
        made.append(mmap.mmap(-1, pages * size))
        for place in range(0, pages * size, size):
            made[-1][place] = 1

    session = Session([], FakeClock())
    session.visit(PlannedVisit(BARE, 2, 5, round=0), ModelCall(model, (), subject="model"))
    for memory in made:
        memory.close()
    (visit,) = session.visits
    assert visit.page_faults == pytest.approx(2 * pages, abs=50)
    (one, other) = interpreted(session).runs
    assert one.page_faults == other.page_faults == pytest.approx(pages, abs=25)


def test_who_watches_the_process_is_a_problem_said_once() -> None:
    session, call, _ = toy_session()
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        for rung in (BARE, PIPELINE):
            session.visit(PlannedVisit(rung, round=0), call)
    finally:
        profiler.disable()
    (problem,) = session.problems
    assert problem.code == "observed"
    assert "cProfile" in problem.message


def test_nobody_watches_a_quiet_process() -> None:
    session, call, _ = toy_session()
    session.visit(PlannedVisit(BARE, round=0), call)
    assert session.problems == ()


def test_each_rung_records_its_kinds_and_no_more() -> None:
    session, call, _ = toy_session()
    for rung in (BARE, PIPELINE, LAYER, OP):
        session.visit(PlannedVisit(rung, round=0), call)
    kinds = [
        set(run.rows["kind"]) if run.rows is not None else set()
        for run in interpreted(session).runs
    ]
    assert kinds == [set(), {"pipeline"}, {"pipeline", "layer"}, {"pipeline", "layer", "op"}]


def test_runs_hold_the_tree_of_each_evaluation() -> None:
    session, call, _ = toy_session()
    session.visit(PlannedVisit(OP, 2, 1, round=0), call)
    for run in interpreted(session).runs:
        assert run.rows is not None
        names, parents = run.rows["name"].to_list(), run.rows["parent"].to_list()
        assert len(names) == 1 + 1 + 3 * (1 + 2 + 2)
        above = {name: names[parent] for name, parent in zip(names, parents, strict=True)}
        assert (above["toy::op"], above["block1"], above["ToyModel"]) == (
            "b",
            "ToyModel",
            "predict",
        )


def test_warming_up_counts_only_where_there_is_nothing_else() -> None:
    session, call, _ = toy_session()
    session.visit(PlannedVisit(LAYER), call)
    session.visit(PlannedVisit(OP), call)
    session.visit(PlannedVisit(LAYER, round=0), call)
    assert [(run.rung.name, run.round) for run in interpreted(session).runs] == [
        ("op", -1),
        ("layer", 0),
    ]
    assert [problem.code for problem in interpreted(session).problems] == ["cold-start"]
    session.visit(PlannedVisit(OP, round=0), call)
    assert interpreted(session).problems == ()  # for now it has been seen warm too


def test_the_users_exception_passes_and_everything_is_disarmed() -> None:
    session, call, model = toy_session()
    model.raises_at = 2
    with pytest.raises(ZeroDivisionError, match="the model's own error"):
        session.visit(PlannedVisit(LAYER, 3, round=0), call)
    assert interpreted(session).runs == ()
    assert session.visit(PlannedVisit(LAYER, round=0), call) == [model.latency_ns]


class Failing(FakeProvider):
    def __init__(self, clock: FakeClock, at: str) -> None:
        super().__init__(clock, [Kind.LAYER], name="failing")
        self.at = at

    def start(self, clock: Clock, request: Request) -> None:
        if self.at == "start":
            raise RuntimeError("no start today")
        super().start(clock, request)

    def stop(self) -> Records:
        if self.at == "stop":
            raise RuntimeError("no stop today")
        return super().stop()

    def spans(self, records: Records) -> SpanRows:
        if self.at == "spans":
            raise RuntimeError("no spans today")
        return super().spans(records)


@pytest.mark.parametrize("at", ["start", "stop", "spans"])
def test_a_provider_that_fails_is_named_and_costs_only_itself(at: str) -> None:
    clock = FakeClock()
    toy = Toy(clock, kinds=(Kind.OP,))
    session = Session([Failing(clock, at), toy], clock)
    call = ModelCall(ToyModel(toy), subject="ToyModel")
    for _ in range(3):
        session.visit(PlannedVisit(OP, round=0), call)
    found = interpreted(session)
    assert [set(run.rows["kind"]) for run in found.runs if run.rows is not None] == [
        {"pipeline", "op"}
    ] * 3
    [problem] = (*session.problems, *found.problems)
    assert problem.code == "provider-failed"
    assert "failing" in problem.message
    assert f"no {at} today" in problem.message


def test_dropped_records_and_providers_problems_are_named() -> None:
    clock = FakeClock()
    lossy = FakeProvider(clock, [Kind.LAYER], name="lossy")
    replay = ReplayProvider(lossy, [Records((), dropped=3, problems=("the buffer was full",))])
    session = Session([replay], clock)
    session.visit(PlannedVisit(LAYER, round=0), ModelCall(lambda: clock.advance(5)))
    found = interpreted(session)
    assert found.problems == (Problem("provider", "the buffer was full"),)
    assert found.counts == (ProblemCount("dropped", "layer", 3, "lossy-replay"),)


def test_what_is_missing_is_counted_by_rung_and_provider() -> None:
    clock = FakeClock()
    lossy = FakeProvider(clock, [Kind.LAYER], name="lossy")
    lossy.spans = lambda records: span_rows(  # type: ignore[method-assign]
        {
            "kind": ["layer"],
            "name": ["a"],
            "start_ns": [records.data],
            "end_ns": [records.data + 1],
            "thread": -1,
        }
    )
    replay = ReplayProvider(lossy, [Records(5 * n, dropped=n + 1) for n in range(3)])
    session = Session([replay], clock)
    for number, rung in enumerate((LAYER, LAYER, OP)):
        session.visit(PlannedVisit(rung, round=number), ModelCall(lambda: clock.advance(5)))
    assert set(interpreted(session).counts) == {
        ProblemCount("dropped", "layer", 1, "lossy-replay"),
        ProblemCount("dropped", "layer", 2, "lossy-replay"),
        ProblemCount("dropped", "op", 3, "lossy-replay"),
        ProblemCount("orphans", "layer", 2),
        ProblemCount("orphans", "op", 1),
    }
    assert interpret((), session.providers) == Interpretation((), (), ())


@pytest.mark.parametrize(
    "spoilt", [{"end_ns": 0}, {"start_ns": None}, {"name": None}, {"end_ns": None}, {"id": "a"}]
)
def test_rows_that_cannot_be_placed_cost_their_provider_alone(spoilt: dict[str, Any]) -> None:
    class Spoiling(FakeProvider):
        def spans(self, records: Records) -> SpanRows:
            frame = super().spans(records)
            return frame.with_columns(
                pl.lit(value).cast(ROW_SCHEMA[name] if name != "id" else pl.String).alias(name)
                for name, value in spoilt.items()
            )

    clock = FakeClock(1_000)
    bad, good = Spoiling(clock, [Kind.LAUNCH], name="bad"), FakeProvider(clock, name="good")
    session = Session([bad, good], clock)

    def work() -> None:
        with good.span("fc"), bad.span("launched", Kind.LAUNCH):
            clock.advance(10)

    session.visit(PlannedVisit(ladder(Kind)[-1], round=0), ModelCall(work, whole_model=False))
    [run] = interpreted(session).runs
    assert run.rows is not None
    assert run.rows["name"].to_list() == ["predict", "fc"]
    [problem] = interpreted(session).problems
    assert problem.code == "provider-failed"
    assert "the records of bad" in problem.message


def test_ids_of_different_providers_are_kept_apart() -> None:
    class Stating(FakeProvider):
        def spans(self, records: Records) -> SpanRows:
            frame = super().spans(records)
            return frame.with_columns(
                id=pl.Series([1, 2], dtype=pl.Int64), parent_id=pl.Series([2, 0], dtype=pl.Int64)
            )

    clock = FakeClock()
    providers = [Stating(clock, [Kind.PIPELINE], name=name) for name in ("one", "two")]
    session = Session(providers, clock)

    def work() -> None:
        for provider in providers:
            with provider.span(f"{provider.name}.a", Kind.PIPELINE):
                clock.advance(1)
            with provider.span(f"{provider.name}.b", Kind.PIPELINE):
                clock.advance(1)

    session.visit(PlannedVisit(PIPELINE, round=0), ModelCall(work, whole_model=False))
    [run] = interpreted(session).runs
    assert run.rows is not None
    names, parents = run.rows["name"].to_list(), run.rows["parent"].to_list()
    above = {name: names[parent] for name, parent in zip(names, parents, strict=True)}
    assert (above["one.a"], above["two.a"]) == ("one.b", "two.b")
    assert above["one.b"] == above["two.b"] == "predict"


def test_rows_by_hand_are_refused_when_they_are_not_rows() -> None:
    assert rows().height == 0
    with pytest.raises(ValueError, match="kind name start end"):
        rows("op aten::add 1")


def test_a_rung_is_asked_for_detail_and_told_whether_it_is_the_deepest() -> None:
    clock = FakeClock()
    asked: list[Request] = []

    class Asking(FakeProvider):
        def start(self, clock: Clock, request: Request) -> None:
            asked.append(request)
            super().start(clock, request)

    session = Session([Asking(clock)], clock, kinds=OP.kinds)
    for rung in (Rung(LAYER.kinds, detail=True), OP):
        step = PlannedVisit(rung, round=0)
        session.visit(step, ModelCall(lambda: clock.advance(1), whole_model=False))
    assert asked == [
        Request(LAYER.kinds, detail=True, measured=OP.kinds),
        Request(OP.kinds, measured=OP.kinds),
    ]


def test_runs_know_what_the_host_waited_for_devices_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(1_000)
    toy = Toy(clock)
    monkeypatch.setattr(toy, "synchronize", lambda: clock.advance(500))
    session, call = Session([toy], clock), ModelCall(ToyModel(toy), (1,))
    session.visit(PlannedVisit(PIPELINE, 2, 1, round=0), call)
    waited = [run.latency_ns - (run.host_ns or 0) for run in interpreted(session).runs]
    assert waited == [500] * 2


def counts(played: SpanRows) -> tuple[ProblemCount, ...]:
    """Return what is counted where one evaluation, from 1,000 ns on, saw these rows."""
    clock = FakeClock(1_000)
    provider = FakeProvider(clock, (Kind.LAYER, Kind.OP, Kind.LAUNCH, Kind.KERNEL))
    rung = ladder(provider.kinds)[-1]
    here = threading.get_ident()
    on_host = pl.when(pl.col("thread").is_not_null()).then(pl.lit(here)).alias("thread")
    original = ReplayProvider(provider, [Records(None)])
    original.spans = lambda records: played.with_columns(on_host)  # type: ignore[method-assign]
    session = Session([original], clock)
    session.visit(PlannedVisit(rung, round=0), ModelCall(lambda: clock.advance(500)))
    return interpreted(session).counts


def test_a_kernel_without_a_launch_is_a_problem_of_its_own() -> None:
    kernel = {"kind": ["kernel"], "name": ["gemm"], "start_ns": [1_100], "end_ns": [1_200]}
    seen = counts(span_rows({**kernel, "device": 0, "correlation_id": 5}))
    assert seen == (ProblemCount("no-launch", "kernel", 1),)


def test_a_launch_that_may_belong_to_two_layers_is_ambiguous() -> None:
    rows = {
        "kind": ["layer", "layer", "launch"],
        "name": ["first", "second", "cudaLaunchKernel"],
        "start_ns": [1_010, 1_050, 1_060],
        "end_ns": [1_100, 1_200, 1_070],
        "correlation_id": [None, None, 5],
    }
    assert counts(span_rows({**rows, "thread": 1})) == (ProblemCount("ambiguous", "kernel", 1),)
