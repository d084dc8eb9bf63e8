from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from xsp.level import Kind
from xsp.measuring.call import recording
from xsp.measuring.call.callable import interpret_session
from xsp.measuring.call.repeat import carry_out
from xsp.provider.watching import ModelCall
from xsp.reading.runs.build import build_trace
from xsp.reading.runs.process_runs import ProcessRuns
from xsp.record.session.plan import Plan
from xsp.record.session.recorder import Session
from xsp.record.session.selection import Selection, select
from xsp.record.session.settings import settings_of
from xsp.testing import FakeClock, FakeProvider, only_providers
from xsp.trace.document import Trace

SETTINGS = settings_of(2, runs=30)
OWN_NS = {"Net": 1_000, "fc": 4_000, "linear": 2_000, "addmm": 6_000, "relu": 3_000}
LATENCY_NS = {"Net": 16_000, "fc": 12_000, "linear": 8_000, "addmm": 6_000, "relu": 3_000}


class Net:
    """A layer in a layer, an operator in an operator, and one beside it."""

    def __init__(self, clock: FakeClock, provider: FakeProvider, noise: float) -> None:
        self.clock, self.span, self.noise = clock, provider.span, noise
        self.random = np.random.default_rng(0)

    def __call__(self) -> None:
        with self.span("Net"):
            self.work("Net")
            with self.span("fc"):
                self.work("fc")
                with self.span("linear", Kind.OP):
                    self.work("linear")
                    with self.span("addmm", Kind.OP):
                        self.work("addmm")
            with self.span("relu", Kind.OP):
                self.work("relu")

    def work(self, name: str) -> None:
        factor = 1 + self.noise * self.random.standard_normal()
        self.clock.advance(round(OWN_NS[name] * factor))


def measured(*, inside_ns: int, noise: float = 0.0) -> tuple[Session, Selection]:
    clock = FakeClock(10**9)
    provider = FakeProvider(clock, [Kind.LAYER, Kind.OP], cost_ns=300, inside_ns=inside_ns)
    with only_providers(provider):
        selection = select(SETTINGS.levels)
    session = Session(selection.providers, clock)
    plan = Plan(selection.passes, SETTINGS)
    carry_out(plan, session, ModelCall(Net(clock, provider, noise)), lambda done: None)
    return session, selection


def process_runs(*, inside_ns: int, noise: float = 0.0) -> ProcessRuns:
    return interpret_session(*measured(inside_ns=inside_ns, noise=noise), "Net")


def latencies(trace: Trace) -> dict[str, float]:
    spans = trace.spans.filter(pl.col("kind") != "region")
    return dict(zip(spans["name"], spans["latency_ns"], strict=True))


def uncalibrated(runs: ProcessRuns) -> ProcessRuns:
    """Return runs of which nobody measured what recording costs inside."""
    bare = (
        run if run.rows is None else replace(run, rows=run.rows.drop("^inside_.+$"))
        for run in runs.runs
    )
    return replace(runs, runs=tuple(bare))


def test_what_recording_costs_inside_is_taken_off_each_span_once() -> None:
    trace = build_trace([process_runs(inside_ns=500)], SETTINGS)
    trace.check()
    assert latencies(trace) == pytest.approx(LATENCY_NS, rel=1e-3)
    assert trace.spans["latency_ns"][0] == sum(OWN_NS.values())


def test_without_calibration_every_span_is_too_long() -> None:
    trace = build_trace([uncalibrated(process_runs(inside_ns=500))], SETTINGS)
    too_long = {name: took + 500 for name, took in LATENCY_NS.items()}
    assert latencies(trace) == pytest.approx(too_long, rel=1e-3)
    assert {pass_["inside_cost_ns"] for pass_ in trace.metadata["passes"]} == {None}


def test_processes_each_take_off_their_own_cost() -> None:
    runs = [process_runs(inside_ns=inside_ns) for inside_ns in (400, 600)]
    trace = build_trace(runs, SETTINGS)
    assert latencies(trace) == pytest.approx(LATENCY_NS, rel=1e-3)
    assert {pass_["inside_cost_ns"] for pass_ in trace.metadata["passes"][2:4]} == {500}


def test_saved_runs_and_recordings_keep_the_cost(tmp_path: Path) -> None:
    session, selection = measured(inside_ns=500)
    runs = interpret_session(session, selection, "Net")
    runs.save(tmp_path / "runs")
    loaded = build_trace([ProcessRuns.load(tmp_path / "runs")], SETTINGS)
    assert latencies(loaded) == pytest.approx(LATENCY_NS, rel=1e-3)
    kept = recording.recording_of(
        session, levels=selection.levels, subject="Net", settings=SETTINGS
    )
    path = kept.save(tmp_path / "net.xsprec")
    assert recording.load(path, kept.providers).inside_costs == session.inside_costs()
