"""The system level of a block: windows that record it, and rows that are charged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_system import FakeSystem
from toy import Toy, ToyModel

import xsp
from xsp.record.program import Lottery
from xsp.record.program import Records as Recorded
from xsp.testing import FakeClock, only_providers

FAULTS, READS = 3, 2


class System(FakeSystem):
    """The operating system of a program that tells what it does."""

    def __init__(self) -> None:
        super().__init__(time.monotonic_ns)

    @contextmanager
    def blocked(self, call: str) -> Iterator[None]:
        """Mark the time in which the thread waits in a system call."""
        begin = self.now()
        yield
        end = self.now()
        self.account("blocked", begin, end, call, float(end - begin))
        self.call(call, begin, end)

    def faults(self) -> None:
        now = self.now()
        self.account("page_fault", now, now, None, 1.0)


class Reader(ToyModel):
    """A toy model that reads twice, and touches three new pages, in each call."""

    system: System

    def forward(self, x: Any = 0) -> Any:
        for _ in range(READS):
            with self.system.blocked("read"):
                time.sleep(0.0002)
        for _ in range(FAULTS):
            self.system.faults()
        return super().forward(x)


@pytest.fixture
def watched() -> Iterator[tuple[System, Reader]]:
    toy, system = Toy(FakeClock()), System()
    model = Reader(toy)
    model.system = system
    with only_providers(toy, system):
        yield system, model


def test_a_row_is_charged_what_its_calls_were_charged_in_windows(
    watched: tuple[System, Reader],
) -> None:
    system, model = watched
    with xsp.profile(levels=5) as prof:
        for _ in range(60):
            model(1)
    assert 3 <= system.visits < 60
    prof.trace.check()
    for trace in (prof.trace, *prof.groups.values()):
        named = [path for path in trace.spans["path"] if path.rpartition("/")[2] == "ToyModel"]
        span = trace.span(named[0])  # not the first call, which may be a row of its own
        known = span.attributes
        assert known["page_faults"] == pytest.approx(FAULTS)
        assert known["blocked_in"] == "read"
        states = known["running_ns"] + known["runnable_ns"] + known["blocked_ns"]
        assert span.latency_ns is not None
        assert states == pytest.approx(span.latency_ns / known["calls"])
        assert 0 < known["blocked_ns"] <= states
        [read] = [each for each in trace.children(span) if each.kind == "syscall"]
        assert read.name == "read"
        assert 0 < (read.latency_ns or 0) <= span.latency_ns
    root = prof.trace.root
    states = [root.attributes[f"{state}_ns"] for state in ("running", "runnable", "blocked")]
    assert sum(states) == pytest.approx(root.latency_ns)
    assert "MainThread" in {each["name"] for each in root.attributes["thread_states"]}


def test_what_a_program_does_outside_of_calls_is_not_told_by_windows_of_calls(
    watched: tuple[System, Reader],
) -> None:
    _, model = watched
    with xsp.profile(levels=5) as prof:
        begin = time.thread_time()
        while time.thread_time() - begin < 0.4:  # runs, while nothing is watched
            pass
        for _ in range(60):
            model(1)
    root = prof.trace.root
    assert root.attributes["running_ns"] >= 0.39e9
    named = [path for path in prof.trace.spans["path"] if path.rpartition("/")[2] == "ToyModel"]
    calls = prof.trace.span(named[0])
    [read] = [each for each in prof.trace.children(calls) if each.kind == "syscall"]
    assert read.attributes["calls"] == READS * calls.attributes["calls"]


def test_without_the_system_level_no_window_records_it(watched: tuple[System, Reader]) -> None:
    system, model = watched
    with xsp.profile(levels=2) as prof:
        for _ in range(20):
            model(1)
    assert system.visits == 0
    assert "page_faults" not in prof.trace.root.attributes
    assert not prof.trace.spans["kind"].is_in(["syscall"]).any()


@pytest.mark.parametrize("cost", [0.001, None])
def test_windows_of_the_system_are_drawn_beside_those_of_operators(cost: float | None) -> None:
    lottery = Lottery(7, layers=True, operators=True, system=True)
    drawn = [lottery.draw(1_000_000 * number, cost) for number in range(40)]
    assert drawn[:3] == [Recorded.LAYERS, Recorded.OPERATORS, Recorded.SYSTEM]
    assert drawn.count(Recorded.SYSTEM) >= 5
    assert drawn.count(Recorded.LAYERS) > drawn.count(Recorded.SYSTEM)
    again = lottery.anew()
    assert [again.draw(1_000_000 * number, cost) for number in range(40)] == drawn
