"""The system level of a block: windows that record it, and rows that are charged."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import pytest
from toy import Toy, ToyModel

import xsp
from xsp.level import Kind, Level
from xsp.provider import (
    ACCOUNT_SCHEMA,
    Accounts,
    Records,
    Request,
    SpanRows,
    Watched,
    no_rows,
    span_rows,
)
from xsp.record.program import Lottery
from xsp.record.program import Records as Recorded
from xsp.testing import FakeClock, only_providers

FAULTS, READS = 3, 2


class System:
    """A provider of the system level that is told what the operating system does."""

    name = "system"
    level = Level.SYSTEM
    kinds = frozenset({Kind.SYSCALL})

    def __init__(self) -> None:
        self.began_ns = 0
        self.visits = 0
        self.accounted: list[tuple[Any, ...]] = []
        self.called: list[tuple[Any, ...]] = []

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Any, request: Request) -> None:
        self.accounted, self.called = [], []
        self.visits += 1
        self.began_ns = time.monotonic_ns()

    def stop(self) -> Records:
        began, now, self.began_ns = self.began_ns, time.monotonic_ns(), 0
        for source in Watched:
            self._account(began, now, "watched", source.value, 0.0)
        return Records((self.accounted, self.called))

    def spans(self, records: Records) -> SpanRows:
        called = records.data[1]
        if not called:
            return no_rows()
        name, start, end, thread, process = zip(*called, strict=True)
        return span_rows(
            {
                "kind": "syscall",
                "name": name,
                "start_ns": start,
                "end_ns": end,
                "thread": thread,
                "attr.process_name": pl.Series(process, dtype=pl.String),
            }
        )

    def accounts(self, records: Records) -> Accounts:
        return pl.DataFrame(records.data[0], schema=ACCOUNT_SCHEMA, orient="row")

    def _account(self, begin: int, end: int, what: str, cause: str | None, amount: float) -> None:
        row = (begin, end, threading.get_ident(), "main", what, cause, amount, 0, True)
        self.accounted.append(row)

    @contextmanager
    def blocked(self, call: str) -> Iterator[None]:
        """Mark the time in which the thread waits in a system call."""
        begin = time.monotonic_ns()
        yield
        end = time.monotonic_ns()
        if self.began_ns:
            self._account(begin, end, "blocked", call, float(end - begin))
            self.called.append((call, begin, end, threading.get_ident(), None))

    def faults(self) -> None:
        now = time.monotonic_ns()
        if self.began_ns:
            self._account(now, now, "page_fault", None, 1.0)


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
