from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from toy import Toy, ToyModel

import xsp
from xsp.level import Kind
from xsp.measuring.call.callable import interpret_session, visit_all
from xsp.provider import SAMPLE_SCHEMA, Records, Request, Samples, SpanRows, no_rows
from xsp.reading.runs.process_runs import ProcessRuns
from xsp.reading.runs.self_time import with_self_time
from xsp.record.session import settings_of
from xsp.testing import FakeClock, only_providers
from xsp.trace.coverage import self_functions

OWN = ["attr.self_functions", "attr.self_lines", "attr.self_shares", "attr.self_samples"]


def tree(*rows: tuple[str, str, int, int, int], at: int = 0, thread: int = 1) -> pl.DataFrame:
    """Return a tree of rows (kind, name, start, end, parent) that begins at a time."""
    kind, name, start, end, parent = zip(*rows, strict=True)
    return pl.DataFrame(
        {
            "kind": pl.Series(kind, dtype=pl.Enum([one.value for one in Kind])),
            "name": name,
            "start_ns": [at + time for time in start],
            "end_ns": [at + time for time in end],
            "thread": thread,
            "parent": parent,
        }
    )


def samples(*rows: tuple[int, str], thread: int = 1) -> Samples:
    return pl.DataFrame(
        [(time, thread, function, "a.py", 7, None) for time, function in rows],
        schema=SAMPLE_SCHEMA,
        orient="row",
    )


LAYER = (
    ("region", "predict", 0, 100, -1),
    ("layer", "net", 10, 90, 0),
    ("op", "aten::mm", 30, 50, 1),
)


def own(frame: pl.DataFrame) -> dict[str, Any]:
    named = frame.filter(pl.col("attr.self_samples").is_not_null())
    return {row[0]: row[1:] for row in named.select("name", *OWN).rows()}


def test_a_sample_belongs_to_the_innermost_span_and_is_named_where_python_runs() -> None:
    taken = samples((5, "run"), (15, "f"), (20, "f"), (40, "f"), (70, "g"), (95, "run"), (200, "x"))
    ((at, frame),) = with_self_time([tree(*LAYER)], taken)
    assert at == 0
    assert frame.drop(*OWN).equals(tree(*LAYER))
    assert own(frame) == {
        "predict": (["run"], ["a.py:7"], [1.0], 2),
        "net": (["f", "g"], ["a.py:7", "a.py:7"], [pytest.approx(2 / 3), pytest.approx(1 / 3)], 3),
    }


def test_samples_of_another_thread_are_not_mixed_in() -> None:
    taken = pl.concat([samples((15, "f")), samples((20, "g"), (25, "g"), thread=2)])
    ((_, frame),) = with_self_time([tree(*LAYER)], taken)
    assert own(frame) == {"net": (["f"], ["a.py:7"], [1.0], 1)}


def called(time: int, *made: str) -> dict[str, Any]:
    """Return a sample of calls, the outermost first, each a function and the line it was at."""
    *callers, (function, file, line) = [place(each) for each in made]
    told = {"function": function, "file": file, "line": line, "callers": json.dumps(callers)}
    return {"time_ns": time, "thread": 1, **told}


def place(call: str) -> tuple[str, str, int]:
    """Return the place of a call, given as `function:line` or `function@file:line`."""
    where, _, line = call.partition(":")
    name, _, file = where.partition("@")
    return name, file or "train.py", int(line or 1)


def test_pipeline_spans_are_named_by_calls_and_layers_by_functions() -> None:
    rows = [called(5, "main:1", "step:8", "sqrt")] * 2 + [called(95, "main:2", "load:3", "read")]
    rows += [called(20, "main:1", "step:8", "net:4", "add")] * 2
    ((_, frame),) = with_self_time([tree(*LAYER)], pl.DataFrame(rows, schema=SAMPLE_SCHEMA))
    shares = [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert own(frame) == {
        "predict": (["step", "load"], ["train.py:1", "train.py:2"], shares, 3),
        "net": (["add"], ["train.py:1"], [1.0], 2),
    }


@pytest.mark.parametrize("seed", range(10))
def test_any_tree_gives_samples_to_the_spans_that_a_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[tuple[str, str, int, int, int]] = [("region", "0", 0, 1000, -1)]
    for number in range(1, 30):
        parent = int(rng.integers(len(rows)))
        low = max([rows[parent][2], *(row[3] for row in rows[1:] if row[4] == parent)])
        ends = sorted(rng.integers(low, max(rows[parent][3], low + 1), 2).tolist())
        if rows[parent][0] != "op" and rows[parent][3] >= ends[1]:
            rows.append((str(rng.choice(["layer", "op"])), str(number), *ends, parent))
    # Parents before children, by time, as correlation hands trees over.
    times = rng.integers(0, 1100, 200).tolist()
    expected: dict[str, int] = {}
    for time in times:
        around = [row for row in rows if row[2] <= time <= row[3]]
        if around and around[-1][0] != "op" and not any(row[2] == time for row in around[1:]):
            depth = max(around, key=lambda row: (row[2], -row[3]))
            if depth[0] != "op" and time not in {row[3] for row in rows}:
                expected[depth[1]] = expected.get(depth[1], 0) + 1
    edges = {edge for row in rows for edge in row[2:4]}
    taken = samples(*((time, "f") for time in times if time not in edges))
    ((_, frame),) = with_self_time([tree(*rows)], taken)
    found = {name: values[3] for name, values in own(frame).items()}
    assert found == {name: count for name, count in expected.items() if count}


class Sampling:
    """A sampler whose samples all lie in the first layer's self time, or cannot be read."""

    name = "sampling"
    level = Kind.REGION.level
    kinds = frozenset({Kind.REGION})

    def __init__(self, clock: FakeClock, *, breaks: bool = False) -> None:
        self.clock, self.breaks, self.asked = clock, breaks, 0

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Any, request: Request) -> None:
        self.asked += request.sampled
        self.begun, self.sampled = clock.now(), request.sampled

    def stop(self) -> Records:
        return Records((self.begun, self.clock.now()) if self.sampled else None)

    def spans(self, records: Records) -> SpanRows:
        return no_rows()

    def samples(self, records: Records) -> Samples:
        if self.breaks:
            raise ValueError("torn")
        begin, end = records.data
        thread = threading.get_ident()
        return samples(*((time, "encode") for time in range(begin, end, 500)), thread=thread)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(10**9)
    monkeypatch.setattr("xsp.record.session.recorder.SystemClock", lambda: clock)
    return clock


def test_self_time_is_named_in_the_trace_its_tree_and_its_file(
    tmp_path: Path, clock: FakeClock
) -> None:
    toy, sampling = Toy(clock), Sampling(clock)
    with only_providers(toy, sampling):
        trace = xsp.measure(ToyModel(toy), levels=2, runs=5)
    trace.check()
    assert sampling.asked == 1
    assert [pass_["pass"] for pass_ in trace.metadata["passes"]][-2:] == ["detail", "stack"]
    named = trace.spans.unnest("attributes").filter(pl.col("self_samples") > 0)
    assert set(named["name"]) >= {"a", "b", "block0"}
    assert named["self_functions"].to_list() == [["encode"]] * named.height
    assert "self time  100 % in encode (a.py:7)" in trace.tree(rows=None, width=120)
    kept = xsp.load(trace.save(tmp_path / "toy.xsp"))
    assert kept.tree() == trace.tree()
    assert kept.spans.equals(trace.spans)


def test_samples_that_cannot_be_read_cost_their_names_only(clock: FakeClock) -> None:
    toy = Toy(clock)
    with only_providers(toy, Sampling(clock, breaks=True)):
        trace = xsp.measure(ToyModel(toy), levels=2, runs=5)
    (warning,) = [one for one in trace.warnings if one.code == "provider-failed"]
    assert "sampling in the stack pass" in warning.message
    assert "ValueError: torn" in warning.message
    assert trace.spans["latency_ns"].is_not_null().all()


def test_without_a_sampler_there_is_no_pass_of_samples(clock: FakeClock) -> None:
    toy = Toy(clock)
    with only_providers(toy):
        trace = xsp.measure(ToyModel(toy), levels=2, runs=5)
    assert "stack" not in [pass_["pass"] for pass_ in trace.metadata["passes"]]
    assert "self_functions" not in trace.spans.unnest("attributes").columns


def test_runs_with_self_time_are_the_same_from_a_folder(tmp_path: Path, clock: FakeClock) -> None:
    toy = Toy(clock)
    with only_providers(toy, Sampling(clock)):
        visited = visit_all(ToyModel(toy), settings=settings_of(2, runs=2))
        runs = interpret_session(*visited)
    assert {run.pass_.name for run in runs.runs} >= {"bare", "detail", "stack"}
    runs.save(tmp_path / "runs")
    kept = ProcessRuns.load(tmp_path / "runs")
    sampled = [run for run in kept.runs if run.pass_.sampled]
    assert [run.pass_ for run in kept.runs] == [run.pass_ for run in runs.runs]
    assert sampled[0].rows is not None
    assert sampled[0].rows["attr.self_samples"].sum() > 0


def test_nothing_is_named_where_nothing_stands_out() -> None:
    attributes = {"self_functions": ["f"], "self_lines": ["a.py:3"], "self_shares": [0.05]}
    spans = pl.DataFrame({"attributes": [attributes | {"self_samples": 100}]})
    assert self_functions(spans, np.array([0])) == {}
