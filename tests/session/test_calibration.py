from __future__ import annotations

import pytest

from xsp.clock import Clock, SystemClock
from xsp.level import Kind
from xsp.matching.run import ladder
from xsp.provider.contract import Calibrating, EmptySpan, Records, Request
from xsp.provider.row import SpanRows
from xsp.provider.watching import ModelCall
from xsp.record.session.calibration import InsideCost, calibrate, inside_cost
from xsp.record.session.recorder import Session
from xsp.record.session.visit import PlannedVisit
from xsp.testing import FakeClock, FakeProvider
from xsp_levels.model import Model

BARE, REGION, LAYER, OP = ladder({Kind.REGION, Kind.LAYER, Kind.OP})


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


def test_spans_that_were_not_recorded_leave_the_cost_unknown() -> None:
    clock = FakeClock()

    class Deaf(Counting):
        def stop(self) -> Records:
            super().stop()
            return Records(())

    made = calibrate(Deaf(clock), Kind.OP, clock)
    assert made is not None
    assert inside_cost(made) is None


@pytest.mark.parametrize("where", ["make", "spans"])
def test_a_provider_that_fails_is_disarmed_and_named(where: str) -> None:
    clock = FakeClock()
    provider = Failing(clock, where)
    session = Session([provider], clock)
    session.visit(PlannedVisit(LAYER), ModelCall(lambda: clock.advance(5)))
    assert session.inside_costs() == ()
    assert not provider.armed
    [warning] = session.warnings
    assert warning.code == "provider-failed"
    assert warning.message.startswith("fake failed to make empty layer spans")
    assert session.visits[0].records  # the visit itself recorded all the same


@pytest.mark.timing
@pytest.mark.parametrize("kind", [Kind.REGION, Kind.LAYER, Kind.CALL, Kind.LAUNCH])
def test_spans_of_the_user_cost_something_inside(kind: Kind) -> None:
    model = Model()
    assert isinstance(model, Calibrating)
    made = calibrate(model, kind, SystemClock())
    assert made is not None
    cost = inside_cost(made)
    assert cost is not None
    assert 0 < cost.cost_ns < 100_000
