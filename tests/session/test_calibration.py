from __future__ import annotations

import pytest
from toy import Toy, ToyModel

from xsp.clock import Clock, SystemClock
from xsp.evaluation.run import ladder
from xsp.level import Kind
from xsp.provider.contract import Calibrating, EmptySpan, Records, Request
from xsp.provider.row import SpanRows
from xsp.provider.watching import ModelCall
from xsp.session.calibration import InsideCost, calibrate, inside_cost
from xsp.session.recorder import Session
from xsp.session.visit import PlannedVisit
from xsp.testing import FakeClock, FakeProvider
from xsp_levels.model import Model

BARE, PIPELINE, LAYER, OP = ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP})


class Counting(FakeProvider):
    """Keeps the requests that it was armed with."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, [Kind.LAYER, Kind.OP], cost_ns=300, inside_ns=500)
        self.requests: list[Request] = []
        self.armed = False

    def start(self, clock: Clock, request: Request) -> None:
        super().start(clock, request)
        self.armed = True
        self.requests.append(request)

    def stop(self) -> Records:
        self.armed = False
        return super().stop()


class Failing(Counting):
    """Fails where it is told to, after it was armed."""

    def __init__(self, clock: FakeClock, where: str) -> None:
        super().__init__(clock)
        self.where = where

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        empty = super().empty_span(kind)
        fails = empty is not None and self.where == "make"
        return EmptySpan("empty", self.fail, None) if fails else empty

    def spans(self, records: Records) -> SpanRows:
        return self.fail() if self.where == "spans" else super().spans(records)

    def fail(self) -> SpanRows:
        raise ZeroDivisionError("the provider's own error")


def test_empty_spans_show_what_recording_costs_inside() -> None:
    clock = FakeClock()
    made = calibrate(FakeProvider(clock, [Kind.OP], cost_ns=300, inside_ns=500), Kind.OP, clock)
    assert made is not None
    assert inside_cost(made) == InsideCost("fake", Kind.OP, 500.0, 0.0)


def test_what_lies_outside_of_the_span_is_no_part_of_it() -> None:
    clock = FakeClock()

    class Roundabout(FakeProvider):
        def empty_span(self, kind: Kind) -> EmptySpan | None:
            def call() -> None:
                clock.advance(70)
                with self.span("empty", kind):
                    clock.advance(40)

            return EmptySpan("empty", call, bare=call, apart=lambda: clock.advance(70))

    made = calibrate(Roundabout(clock, [Kind.OP], inside_ns=20), Kind.OP, clock)
    assert made is not None
    assert inside_cost(made) == InsideCost("fake", Kind.OP, 20.0, 0.0)


def test_a_provider_without_an_empty_span_is_never_armed() -> None:
    clock = FakeClock()
    assert calibrate(FakeProvider(clock, [Kind.OP]), Kind.OP, clock) is None
    assert clock.now() == 0


def test_spans_that_were_not_recorded_leave_the_cost_unknown() -> None:
    clock = FakeClock()

    class Deaf(Counting):
        def stop(self) -> Records:
            super().stop()
            return Records(())

    made = calibrate(Deaf(clock), Kind.OP, clock)
    assert made is not None
    assert inside_cost(made) is None


def test_a_session_calibrates_while_warming_up_and_once_for_each_kind() -> None:
    clock = FakeClock()
    provider = Counting(clock)
    session = Session([provider], clock)
    call = ModelCall(lambda: clock.advance(5))
    session.visit(PlannedVisit(OP, round=0), call)
    assert (len(provider.requests), session.inside_costs()) == (1, ())
    session.visit(PlannedVisit(LAYER), call)
    assert [(cost.kind, cost.cost_ns) for cost in session.inside_costs()] == [(Kind.LAYER, 500.0)]
    asked = {request.kinds for request in provider.requests}
    assert asked == {OP.kinds, LAYER.kinds, frozenset({Kind.LAYER})}
    session.visit(PlannedVisit(OP), call)
    before = len(provider.requests)
    session.visit(PlannedVisit(OP), call)
    assert len(provider.requests) == before + 1
    assert [cost.kind for cost in session.inside_costs()] == [Kind.LAYER, Kind.OP]
    assert not provider.armed


@pytest.mark.parametrize("where", ["make", "spans"])
def test_a_provider_that_fails_is_disarmed_and_named(where: str) -> None:
    clock = FakeClock()
    provider = Failing(clock, where)
    session = Session([provider], clock)
    session.visit(PlannedVisit(LAYER), ModelCall(lambda: clock.advance(5)))
    assert session.inside_costs() == ()
    assert not provider.armed
    [problem] = session.problems
    assert problem.code == "provider-failed"
    assert problem.message.startswith("fake failed to make empty layer spans")
    assert session.visits[0].records  # the visit itself recorded all the same


def test_the_evaluation_does_not_hold_the_empty_spans() -> None:
    clock = FakeClock()
    toy = Toy(clock)
    session = Session([toy, Counting(clock)], clock)
    model = ToyModel(toy)
    assert session.visit(PlannedVisit(OP), ModelCall(model)) == [model.latency_ns]


@pytest.mark.parametrize("kind", [Kind.PIPELINE, Kind.LAYER, Kind.CALL, Kind.LAUNCH])
def test_spans_of_the_user_cost_something_inside(kind: Kind) -> None:
    model = Model()
    assert isinstance(model, Calibrating)
    made = calibrate(model, kind, SystemClock())
    assert made is not None
    cost = inside_cost(made)
    assert cost is not None
    assert 0 < cost.cost_ns < 100_000


def test_no_span_of_the_user_is_an_operator() -> None:
    assert Model().empty_span(Kind.OP) is None
