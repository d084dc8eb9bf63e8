from __future__ import annotations

import cProfile
import threading
from typing import Any

import polars as pl
import pytest
from toy import Toy, ToyModel

from xsp.clock import Clock
from xsp.level import Kind
from xsp.matching.run import ladder
from xsp.provider.contract import Records, Request
from xsp.provider.row import ROW_SCHEMA, SpanRows, span_rows
from xsp.provider.watching import ModelCall
from xsp.reading.runs.interpretation import Interpretation, interpret
from xsp.record.session.recorder import Session
from xsp.record.session.visit import PlannedVisit
from xsp.testing import FakeClock, FakeProvider, ReplayProvider, rows
from xsp.warning import TraceWarning, WarningCount

BARE, REGION, LAYER, OP = ladder({Kind.REGION, Kind.LAYER, Kind.OP})


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


def test_who_watches_the_process_is_a_warning_said_once() -> None:
    session, call, _ = toy_session()
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        for pass_ in (BARE, REGION):
            session.visit(PlannedVisit(pass_, round=0), call)
    finally:
        profiler.disable()
    (warning,) = session.warnings
    assert warning.code == "observed"
    assert "cProfile" in warning.message


def test_nobody_watches_a_quiet_process() -> None:
    session, call, _ = toy_session()
    session.visit(PlannedVisit(BARE, round=0), call)
    assert session.warnings == ()


def test_each_pass_records_its_kinds_and_no_more() -> None:
    session, call, _ = toy_session()
    for pass_ in (BARE, REGION, LAYER, OP):
        session.visit(PlannedVisit(pass_, round=0), call)
    kinds = [
        set(run.rows["kind"]) if run.rows is not None else set()
        for run in interpreted(session).runs
    ]
    assert kinds == [set(), {"region"}, {"region", "layer"}, {"region", "layer", "op"}]


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
        {"region", "op"}
    ] * 3
    [warning] = (*session.warnings, *found.warnings)
    assert warning.code == "provider-failed"
    assert "failing" in warning.message
    assert f"no {at} today" in warning.message


def test_dropped_records_and_providers_warnings_are_named() -> None:
    clock = FakeClock()
    lossy = FakeProvider(clock, [Kind.LAYER], name="lossy")
    replay = ReplayProvider(lossy, [Records((), dropped=3, warnings=("the buffer was full",))])
    session = Session([replay], clock)
    session.visit(PlannedVisit(LAYER, round=0), ModelCall(lambda: clock.advance(5)))
    found = interpreted(session)
    assert found.warnings == (TraceWarning("provider", "the buffer was full"),)
    assert found.counts == (WarningCount("dropped", "layer", 3, "lossy-replay"),)


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
    [warning] = interpreted(session).warnings
    assert warning.code == "provider-failed"
    assert "the records of bad" in warning.message


def test_rows_by_hand_are_refused_when_they_are_not_rows() -> None:
    assert rows().height == 0
    with pytest.raises(ValueError, match="kind name start end"):
        rows("op aten::add 1")


def counts(played: SpanRows) -> tuple[WarningCount, ...]:
    """Count the warnings of one step, from 1,000 ns on, with these rows."""
    clock = FakeClock(1_000)
    provider = FakeProvider(clock, (Kind.LAYER, Kind.OP, Kind.LAUNCH, Kind.KERNEL))
    pass_ = ladder(provider.kinds)[-1]
    here = threading.get_ident()
    on_host = pl.when(pl.col("thread").is_not_null()).then(pl.lit(here)).alias("thread")
    original = ReplayProvider(provider, [Records(None)])
    original.spans = lambda records: played.with_columns(on_host)  # type: ignore[method-assign]
    session = Session([original], clock)
    session.visit(PlannedVisit(pass_, round=0), ModelCall(lambda: clock.advance(500)))
    return interpreted(session).counts


def test_a_kernel_without_a_launch_is_a_warning_of_its_own() -> None:
    kernel = {"kind": ["kernel"], "name": ["gemm"], "start_ns": [1_100], "end_ns": [1_200]}
    seen = counts(span_rows({**kernel, "device": 0, "correlation_id": 5}))
    assert seen == (WarningCount("no-launch", "kernel", 1),)
