"""The system level of a measurement: states, faults and calls of a program whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from fake_system import FakeSystem

import xsp
from xsp.level import Kind
from xsp.provider import Accounts, Records, Watched
from xsp.testing import FakeClock, FakeProvider, only_providers


class System(FakeSystem):
    """An operating system on a clock of its own, and the provider that records it."""

    def __init__(self, clock: FakeClock, **more: Any) -> None:
        super().__init__(clock.now, **more)
        self.clock = clock

    def passes(self, ns: int, what: str = "", cause: str | None = None) -> None:
        """Let time pass in a state of the thread; `""`: running."""
        begin = self.clock.now()
        self.clock.advance(ns)
        if what:
            self.account(what, begin, self.clock.now(), cause, float(ns))

    def happens(self, what: str, cause: str | None = None, amount: float = 1.0) -> None:
        self.account(what, self.clock.now(), self.clock.now(), cause, amount)

    def calls(self, name: str, ns: int, size: int | None = None, error: str | None = None) -> None:
        begin = self.clock.now()
        self.clock.advance(ns)
        self.call(name, begin, self.clock.now(), size, error)

    def worker_calls(self, name: str, begin: int, ns: int, process: int) -> None:
        row = (name, begin, begin + ns, -process, None, None, f"pt_data_worker {process}")
        self.called.append(row)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(10**9)
    monkeypatch.setattr("xsp.record.session.recorder.SystemClock", lambda: clock)
    return clock


def measured(program: Callable[[], object], *providers: Any, levels: Any = 5) -> xsp.Trace:
    with only_providers(*providers):
        return xsp.measure(program, levels=levels, runs=5)


def program(system: System, toy: FakeProvider) -> None:
    """Run 10 µs, of which 1 µs is spent in `read`; then two layers, one with an operator."""
    system.passes(2_000)
    system.calls("read", 1_000, size=64)
    system.passes(3_000, "blocked", "read")
    system.happens("woken", "pt_worker")
    system.passes(4_000)
    with toy.span("linear"):
        system.passes(5_000)
        system.happens("page_fault", amount=3.0)
        with toy.span("aten::mm", Kind.OP):
            system.passes(20_000, "runnable")
            system.happens("preempted")
            system.happens("migration")
            system.passes(10_000)
            system.calls("futex", 2_000, error="EAGAIN")
    with toy.span("relu"):
        system.passes(7_000)


def spans_of(trace: xsp.Trace) -> list[xsp.Span]:
    return [trace.span(path) for path in trace.spans["path"].to_list()]


def attributes(trace: xsp.Trace, name: str) -> dict[str, Any]:
    [span] = [span for span in spans_of(trace) if span.name == name]
    return {key: value for key, value in span.attributes.items() if value is not None}


def test_states_of_each_span_are_those_of_its_thread_and_sum_to_its_time(clock: FakeClock) -> None:
    toy = FakeProvider(clock, [Kind.LAYER, Kind.OP], cost_ns=500)
    system = System(clock)
    trace = measured(lambda: program(system, toy), system, toy)
    linear, mm, relu = (attributes(trace, name) for name in ("linear", "aten::mm", "relu"))
    assert linear["running_ns"] == 5_000 + 10_000 + 2_000
    assert (linear["runnable_ns"], linear["blocked_ns"]) == (20_000, 0)
    assert (linear["preempted"], linear["migrations"], linear["page_faults"]) == (1, 1, 3)
    assert (mm["running_ns"], mm["runnable_ns"], mm["page_faults"]) == (12_000, 20_000, 0)
    assert (relu["running_ns"], relu["preempted"], relu["page_faults"]) == (7_000, 0, 0)
    root = dict(trace.root.attributes)
    assert (root["blocked_ns"], root["blocked_in"], root["woken_by"]) == (
        3_000,
        "read",
        "pt_worker",
    )
    states = root["running_ns"] + root["runnable_ns"] + root["blocked_ns"]
    assert states == trace.root.latency_ns == 54_000
    [thread] = root["thread_states"]
    assert (thread["name"], thread["running_ns"]) == ("main", root["running_ns"])


def test_system_calls_are_one_row_for_each_name_below_the_span_around(clock: FakeClock) -> None:
    toy, system = FakeProvider(clock, [Kind.LAYER, Kind.OP]), System(clock)
    trace = measured(lambda: program(system, toy), system, toy)
    calls = {span.name: span for span in spans_of(trace) if span.kind == "syscall"}
    assert list(calls) == ["read", "futex"]
    by_id = {span.span_id: span for span in spans_of(trace)}
    read, futex = calls["read"], calls["futex"]
    assert by_id[read.parent_id or 0] is not None
    assert by_id[read.parent_id or 0].name == trace.root.name
    assert by_id[futex.parent_id or 0].name == "aten::mm"
    assert (read.latency_ns, futex.latency_ns) == (1_000, 2_000)
    assert read.attributes["calls_per_step"] == 1.0
    assert read.attributes["io_bytes"] == 64.0
    assert futex.attributes["failed_calls"] == 1.0
    assert trace.root.self_ns == 2_000 + 3_000 + 4_000  # without the call
    mm = by_id[futex.parent_id or 0]
    assert mm.self_ns == 30_000
    for span in (read, futex):
        around = by_id[span.parent_id or 0]
        assert around.start_ns <= span.start_ns <= span.end_ns <= around.end_ns


def test_calls_that_occur_in_some_steps_only_are_kept_with_their_share(clock: FakeClock) -> None:
    system, numbers = System(clock), iter(range(10**6))

    def now_and_then() -> None:
        system.passes(10_000)
        if next(numbers) % 2:
            system.calls("brk", 1_000)

    trace = measured(now_and_then, system)
    [brk] = [span for span in spans_of(trace) if span.kind == "syscall"]
    assert 0 < brk.attributes["steps_share"] < 1
    assert brk.attributes["calls_per_step"] == brk.attributes["steps_share"]
    assert brk.latency_ns == pytest.approx(1_000 * brk.attributes["steps_share"])


def test_each_call_of_one_step_is_in_the_typical_run(clock: FakeClock) -> None:
    system = System(clock)

    def reads() -> None:
        for size in range(7):
            system.passes(100)
            system.calls("read", 10 + size)

    trace = measured(reads, system)
    [row] = [span for span in spans_of(trace) if span.kind == "syscall"]
    assert row.attributes["calls"] == 7
    run = trace.typical_runs.filter(pl.col("pass") == "syscall")
    assert run.filter(pl.col("kind") == "syscall")["name"].to_list() == ["read"] * 7
    took = run.filter(pl.col("kind") == "syscall").select(pl.col("end_ns") - pl.col("start_ns"))
    assert took.to_series().to_list() == list(range(10, 17))


def test_what_was_not_watched_is_unknown_not_zero(clock: FakeClock) -> None:
    system = System(clock, sources=(Watched.SWITCHES,))
    toy = FakeProvider(clock, [Kind.LAYER, Kind.OP])
    trace = measured(lambda: program(system, toy), system, toy)
    linear = attributes(trace, "linear")
    assert linear["runnable_ns"] == 20_000
    assert "page_faults" not in linear
    assert "io_read_bytes" not in linear


def test_sums_over_a_visit_are_told_of_steps_alone(clock: FakeClock) -> None:
    system = System(clock, exact=False, sources=(Watched.SWITCHES,))
    toy = FakeProvider(clock, [Kind.LAYER, Kind.OP])

    def step() -> None:
        with toy.span("linear"):
            system.passes(10_000)

    trace = measured(step, system, toy)
    assert trace.root.attributes["running_ns"] == 10_000
    assert "running_ns" not in attributes(trace, "linear")


def test_latencies_are_those_of_the_passes_without_the_system_level(clock: FakeClock) -> None:
    toy, system = FakeProvider(clock, [Kind.LAYER, Kind.OP], cost_ns=700), System(clock)
    with_system = measured(lambda: program(system, toy), system, toy)
    alone = measured(lambda: program(system, toy), toy, levels=2)
    names = ("linear", "aten::mm", "relu")
    assert with_system.root.latency_ns == alone.root.latency_ns
    for name in names:
        [one] = [span for span in spans_of(with_system) if span.name == name]
        [two] = [span for span in spans_of(alone) if span.name == name]
        assert (one.latency_ns, one.start_ns) == (two.latency_ns, two.start_ns)


def test_calls_of_workers_are_as_long_as_those_of_one(clock: FakeClock) -> None:
    system = System(clock)

    def step() -> None:
        begin = clock.now()
        system.passes(10_000)
        for process in (7, 8):
            system.worker_calls("read", begin + 1_000, 4_000, process)

    trace = measured(step, system)
    [read] = [span for span in spans_of(trace) if span.kind == "syscall"]
    assert read.attributes["process_name"] == "pt_data_worker"
    assert read.latency_ns == 4_000
    assert read.attributes["calls_per_step"] == 2.0
    assert trace.root.self_ns == trace.root.latency_ns  # which the other processes take nothing of


def test_a_system_level_that_fails_costs_its_numbers_only(clock: FakeClock) -> None:
    class Broken(System):
        def accounts(self, records: Records) -> Accounts:
            raise RuntimeError("no such record")

    system = Broken(clock)
    trace = measured(lambda: system.passes(10_000), system)
    assert trace.root.latency_ns == 10_000
    assert "running_ns" not in trace.root.attributes or trace.root.attributes["running_ns"] is None
    assert any("no such record" in warning.message for warning in trace.warnings)


def test_a_trace_with_the_system_level_is_saved_loaded_and_printed(
    clock: FakeClock, tmp_path: Any
) -> None:
    toy, system = FakeProvider(clock, [Kind.LAYER, Kind.OP]), System(clock)
    trace = measured(lambda: program(system, toy), system, toy)
    trace.save(tmp_path / "a.xsp")
    assert xsp.load(tmp_path / "a.xsp").spans.equals(trace.spans)
    assert "futex" in trace.tree(rows=None)


@pytest.mark.parametrize("name", ["a.otlp.json", "a.perfetto.json", "a.folded", "a.parquet"])
def test_a_trace_with_the_system_level_goes_wherever_others_go(
    clock: FakeClock, tmp_path: Any, name: str
) -> None:
    toy, system = FakeProvider(clock, [Kind.LAYER, Kind.OP]), System(clock)
    trace = measured(lambda: program(system, toy), system, toy)
    done = trace.export(tmp_path / name)
    assert done.accepted == len(trace)
    assert "futex" in (tmp_path / name).read_bytes().decode("utf-8", "replace")
