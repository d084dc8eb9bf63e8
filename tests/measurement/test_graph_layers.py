"""A framework that runs graphs on a pool of threads, from the provider to the printed tree."""

from __future__ import annotations

import threading
from pathlib import Path

import polars as pl
import pytest

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.measurement.build import build_trace
from xsp.measurement.callable import interpret_session
from xsp.measurement.repeat import carry_out
from xsp.provider import ModelCall, Records, Request, SpanRows, no_rows, span_rows
from xsp.session.plan import Plan
from xsp.session.recorder import Session
from xsp.session.selection import select
from xsp.session.settings import settings_of
from xsp.testing import FakeClock, only_providers
from xsp.trace import Trace, load
from xsp_levels.framework.scope import layered

GLUE_NS, OP_NS, COST_NS = 1_000, 40_000, 600


class Graph:
    """A graph of two branches of `length` operators at once, and one layer after them."""

    name, level = "graph", Level.FRAMEWORK
    kinds = frozenset({Kind.LAYER, Kind.OP})

    def __init__(self, clock: FakeClock, length: int = 3) -> None:
        self.clock, self.length = clock, length
        self._recording = False
        self._turn = 0
        self._kept: list[tuple[int, str, str, str, int, int, int]] = []

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Clock, request: Request) -> None:
        self._recording, self._kept = Kind.OP in request.kinds, []

    def stop(self) -> Records:
        self._recording = False
        return Records(tuple(self._kept))

    def spans(self, records: Records) -> SpanRows:
        if not records.data:
            return no_rows()
        turn, layer, name, node, start, end, thread = zip(*records.data, strict=True)
        ops = span_rows(
            {"kind": "op", "name": name, "start_ns": start, "end_ns": end, "thread": thread,
             "parent_id": 0, "attr.node": node}
        )  # fmt: skip
        scopes = pl.Series([["net", each] for each in layer])
        return layered(
            ops,
            scopes,
            steps=pl.Series(turn),
            describe=lambda path: {"module_class": path[-1].title()},
        )

    def run(self) -> None:
        """Evaluate: the branches take turns in being first, and on which thread they are."""
        self._turn += 1
        self.clock.advance(GLUE_NS)
        begin = self.clock.now()
        ends = [self._branch(f"branch{i}", begin, (i + self._turn) % 2) for i in range(2)]
        self.clock.advance(max(ends) - begin)
        self.clock.advance(self._branch("head", max(ends), 0, 1) - max(ends) + GLUE_NS)

    def _branch(self, layer: str, at: int, place: int, length: int | None = None) -> int:
        cost = COST_NS if self._recording else 0
        for number in range(length or self.length):
            at += cost // 2
            if self._recording:
                thread = threading.get_ident() + place
                node = f"{layer}/dot.{number}"
                self._kept.append((self._turn, layer, "dot", node, at, at + OP_NS, thread))
            at += OP_NS + cost // 2
        return at


@pytest.fixture(scope="module")
def trace() -> Trace:
    clock = FakeClock(10**9)
    graph = Graph(clock)
    settings = settings_of(2, runs=8)
    with only_providers(graph):
        selection = select(settings.levels)
        session = Session(selection.providers, clock)
        plan = Plan(selection.rungs, settings, repeatable=True)
        carry_out(plan, session, ModelCall(graph.run, subject="Graph"), lambda fraction: None)
        found = build_trace([interpret_session(session, selection, "Graph")], settings)
    found.check()
    return found


def latencies(trace: Trace) -> dict[str, float]:
    spans = trace.spans.filter(pl.col("kind") != "op")
    return dict(zip(spans["name"].to_list(), spans["latency_ns"].to_list(), strict=True))


def test_layers_have_the_latencies_of_their_operators_without_what_recording_cost(
    trace: Trace,
) -> None:
    branch, head = 3 * OP_NS, OP_NS
    found = latencies(trace)
    assert found["predict"] == pytest.approx(branch + head + 2 * GLUE_NS)
    assert found["net"] == pytest.approx(branch + head, rel=2e-3)
    assert found["branch0"] == found["branch1"] == pytest.approx(branch, rel=2e-3)
    assert found["head"] == pytest.approx(head)


def test_schedule_of_the_pool_is_no_other_structure(trace: Trace) -> None:
    codes = {problem["code"] for problem in trace.metadata["problems"]}
    assert not codes & {"structure-varies", "unmatched", "prediction", "orphans", "scaled"}
    assert trace.spans["runs"].n_unique() == 1


def test_trace_says_once_that_its_layers_are_made_of_operators(trace: Trace) -> None:
    assert trace.metadata["made_of"] == {"layer": "op"}
    lines = trace.tree(width=140).splitlines()
    said = [line for line in lines if "made of their operators" in line]
    assert len(said) == 1
    assert "=" not in "".join(lines[:-2])
    assert "made from the spans inside" not in "".join(lines)


def test_no_share_is_beyond_the_whole_unsaid(trace: Trace) -> None:
    line = next(line for line in trace.tree(width=140).splitlines() if "─ net" in line)
    assert "1.8 at once inside" in line
    spans = trace.spans
    assert (spans["latency_ns"] <= spans["latency_ns"][0]).all()


def test_statement_is_in_the_saved_trace(trace: Trace, tmp_path: Path) -> None:
    file = tmp_path / "graph.xsp"
    trace.save(file)
    assert load(file).metadata["made_of"] == {"layer": "op"}
