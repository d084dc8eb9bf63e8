from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import Toy, ToyModel

import xsp
from xsp.level import Kind
from xsp.measurement.callable import interpret_session, visit_all
from xsp.measurement.own_time import MOST_CALLS, MOST_FUNCTIONS, calls, partings, with_own_time
from xsp.measurement.process_runs import ProcessRuns
from xsp.provider import SAMPLE_SCHEMA, Records, Request, Samples, SpanRows, no_rows
from xsp.session import settings_of
from xsp.testing import FakeClock, only_providers
from xsp.trace.coverage import own_functions

OWN = ["attr.own_functions", "attr.own_lines", "attr.own_shares", "attr.own_samples"]


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
    ("pipeline", "predict", 0, 100, -1),
    ("layer", "net", 10, 90, 0),
    ("op", "aten::mm", 30, 50, 1),
)


def own(frame: pl.DataFrame) -> dict[str, Any]:
    named = frame.filter(pl.col("attr.own_samples").is_not_null())
    return {row[0]: row[1:] for row in named.select("name", *OWN).rows()}


def test_a_sample_belongs_to_the_innermost_span_and_is_named_where_python_runs() -> None:
    taken = samples((5, "run"), (15, "f"), (20, "f"), (40, "f"), (70, "g"), (95, "run"), (200, "x"))
    ((at, frame),) = with_own_time([tree(*LAYER)], taken)
    assert at == 0
    assert frame.drop(*OWN).equals(tree(*LAYER))
    assert own(frame) == {
        "predict": (["run"], ["a.py:7"], [1.0], 2),
        "net": (["f", "g"], ["a.py:7", "a.py:7"], [pytest.approx(2 / 3), pytest.approx(1 / 3)], 3),
    }


def test_samples_of_another_thread_are_not_mixed_in() -> None:
    taken = pl.concat([samples((15, "f")), samples((20, "g"), (25, "g"), thread=2)])
    ((_, frame),) = with_own_time([tree(*LAYER)], taken)
    assert own(frame) == {"net": (["f"], ["a.py:7"], [1.0], 1)}


def test_evaluations_of_one_structure_are_one_and_others_stay_apart() -> None:
    frames = [tree(*LAYER), tree(*LAYER[:2], at=1000), tree(*LAYER, at=2000)]
    taken = samples((15, "f"), (1015, "g"), (2015, "f"), (2020, "h"))
    found = with_own_time(frames, taken)
    assert [at for at, _ in found] == [0, 1]
    assert own(found[0][1])["net"][0] == ["f", "h"]
    assert own(found[0][1])["net"][3] == 3
    assert own(found[1][1])["net"][0] == ["g"]


def test_the_line_is_the_one_that_a_function_was_seen_in_most_and_only_some_are_named() -> None:
    rows = [(20, 1, "f", "a.py", line, None) for line in (3, 9, 9)]
    rows += [(20, 1, f"f{n}", "a.py", 1, None) for n in range(10)]
    taken = pl.DataFrame(rows, schema=SAMPLE_SCHEMA, orient="row")
    ((_, frame),) = with_own_time([tree(*LAYER)], taken)
    functions, lines, shares, count = own(frame)["net"]
    assert (functions[0], lines[0], shares[0], count) == ("f", "a.py:9", 3 / 13, 13)
    assert len(functions) == len(lines) == len(shares) == MOST_FUNCTIONS


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
    ((_, frame),) = with_own_time([tree(*LAYER)], pl.DataFrame(rows, schema=SAMPLE_SCHEMA))
    shares = [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert own(frame) == {
        "predict": (["step", "load"], ["train.py:1", "train.py:2"], shares, 3),
        "net": (["add"], ["train.py:1"], [1.0], 2),
    }


def ways(*stacks: str, lasts: tuple[int, ...] = ()) -> list[tuple[str, str, float]]:
    found = calls([tuple(place(call) for call in stack.split()) for stack in stacks], lasts)
    assert found["own_samples"] == (sum(lasts) or len(stacks))
    columns = (found[f"own_{name}"] for name in ("functions", "lines", "shares"))
    return list(zip(*columns, strict=True))


def test_time_is_told_by_the_calls_where_its_ways_part() -> None:
    assert ways("main:3 forward mul", "main:3 forward exp", "main:5 step sqrt") == [
        ("forward", "train.py:3", 2 / 3),
        ("step", "train.py:5", 1 / 3),
    ]


def test_time_of_the_function_itself_is_its_own() -> None:
    assert ways("main:3", "main:3", "main:4 step") == [
        ("main", "train.py:3", 2 / 3),
        ("step", "train.py:4", 1 / 3),
    ]


def test_a_large_way_is_parted_again_unless_one_call_is_nearly_all_of_it() -> None:
    two = ["main:3 step:9 train:1", "main:3 step:9 train:2", "main:3 step:8 norm"]
    assert [name for name, _, _ in ways(*two, *["main:4 load"] * 2)] == ["train", "load", "norm"]
    one = ["main:3 step:9 train:1"] * 3 + ["main:4 load"] * 2
    assert [name for name, _, _ in ways(*one)] == ["step", "load"]


def test_a_decorator_from_elsewhere_is_not_what_was_called() -> None:
    inside = "no_grad.<locals>.wrapper@grad.py:3 SGD.step@sgd.py:8"
    assert [name for name, _, _ in ways(f"main:3 {inside}", "main:5 run.<locals>.inner f")] == [
        "SGD.step",
        "run.<locals>.inner",
    ]
    alone = ways("main:3 no_grad.<locals>.wrapper@grad.py:3", "main:5 f")
    assert alone[0][0] == "no_grad.<locals>.wrapper"


def test_ways_that_part_into_small_pieces_alone_are_told_by_the_call_before() -> None:
    stacks = [f"main:3 post:{line} f{line}:{line}" for line in range(10, 22)]
    assert ways(*stacks) == [("post", "train.py:3", 1.0)]


def test_small_pieces_are_told_together_by_the_call_before() -> None:
    stacks = [f"main:3 f{line}:{line} g:{line}" for line in range(100, 180)]
    found = ways(*stacks, *["main:3 make:7 exec:8"] * 20)
    assert found == [("main", "train.py:3", 0.8), ("exec", "train.py:7", 0.2)]


def test_a_function_without_source_is_no_way_of_its_own() -> None:
    assert ways("main:3 step:9", "main:3 step:9 abs:9", "main:3 step:9 abs:9") == [
        ("step", "train.py:9", 1.0)
    ]
    assert ways("main:3 step:9 abs:9", "main:3 step:9 abs:9") == [("abs", "train.py:9", 1.0)]


LIBRARY = "/x/site-packages/lib.py"


def test_where_all_go_one_way_it_is_told_by_the_users_code_that_a_library_calls() -> None:
    stacks = [f"main:3 fetch@{LIBRARY}:7 Data.get:20 augment:30 burn:{line}" for line in (40, 40)]
    (named,) = calls([tuple(place(call) for call in stack.split()) for stack in stacks], around=1)[
        "own_functions"
    ]
    assert named == "augment"
    frames = [called(5, *stacks[0].split()), called(6, *stacks[0].split()), called(7, "main:4")]
    two = (*LAYER, ("pipeline", "save", 101, 110, -1))
    rows = [*frames[:2], called(105, "main:4", "save:50"), called(107, "main:4", "save:50")]
    found = with_own_time([tree(*two)], pl.DataFrame(rows, schema=SAMPLE_SCHEMA))
    functions = {name: values[:2] for name, values in own(found[0][1]).items()}
    assert functions["predict"] == (["augment"], ["train.py:20"])
    assert functions["save"] == (["save"], ["train.py:50"])


def test_the_users_code_around_is_not_what_a_row_went_to() -> None:
    stack = f"run@{LIBRARY}:2 main:3 fetch@{LIBRARY}:7 read@{LIBRARY}:9"
    made = [tuple(place(call) for call in stack.split())]
    assert calls(made, around=2)["own_functions"] == ["read"]
    assert calls(made, around=0)["own_functions"] == ["fetch"]


def test_a_decorator_in_the_same_file_is_passed_over_as_well() -> None:
    found = ways("main:3 timed.<locals>.wrapper:3 augment:9 f:10", "main:5 g:1")
    assert [name for name, _, _ in found] == ["augment", "g"]


def test_only_the_longest_ways_are_kept() -> None:
    stacks = [f"main:{line} f{line}" for line in range(1, MOST_CALLS + 5)]
    found = ways(*stacks, lasts=tuple(range(1, MOST_CALLS + 5)))
    assert [name for name, _, _ in found] == [f"f{n}" for n in range(MOST_CALLS + 4, 4, -1)]


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), min_size=1, max_size=30),
    st.data(),
)
def test_ways_are_the_same_whatever_the_order_and_none_is_lost(
    stacks: list[list[str]], data: st.DataObject
) -> None:
    made = [tuple(place(call) for call in stack) for stack in stacks]
    order = data.draw(st.permutations(range(len(made))))
    depths = partings(made, [1] * len(made))
    assert all(0 <= depth < len(stack) for depth, stack in zip(depths, made, strict=True))
    assert partings([made[at] for at in order], [1] * len(made)) == [depths[at] for at in order]
    assert sum(calls(made)["own_shares"]) == pytest.approx(1.0)


def test_without_samples_the_trees_are_as_they_were() -> None:
    ((_, frame),) = with_own_time([tree(*LAYER)], samples())
    assert frame.drop(*OWN).equals(tree(*LAYER))
    assert own(frame) == {}
    assert with_own_time([], samples()) == []


@pytest.mark.parametrize("seed", range(10))
def test_any_tree_gives_samples_to_the_spans_that_a_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[tuple[str, str, int, int, int]] = [("pipeline", "0", 0, 1000, -1)]
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
    ((_, frame),) = with_own_time([tree(*rows)], taken)
    found = {name: values[3] for name, values in own(frame).items()}
    assert found == {name: count for name, count in expected.items() if count}


class Sampling:
    """A sampler whose samples all lie in the first layer's own time, or cannot be read."""

    name = "sampling"
    level = Kind.PIPELINE.level
    kinds = frozenset({Kind.PIPELINE})

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
    monkeypatch.setattr("xsp.session.recorder.SystemClock", lambda: clock)
    return clock


def test_own_time_is_named_in_the_trace_its_tree_and_its_file(
    tmp_path: Path, clock: FakeClock
) -> None:
    toy, sampling = Toy(clock), Sampling(clock)
    with only_providers(toy, sampling):
        trace = xsp.measure(ToyModel(toy), levels=2, runs=5)
    trace.check()
    assert sampling.asked == 1
    assert [rung["rung"] for rung in trace.metadata["rungs"]][-2:] == ["detail", "stack"]
    named = trace.spans.unnest("attributes").filter(pl.col("own_samples") > 0)
    assert set(named["name"]) >= {"a", "b", "block0"}
    assert named["own_functions"].to_list() == [["encode"]] * named.height
    assert "own time 100 % in encode (a.py:7)" in trace.tree(rows=None, width=120)
    kept = xsp.load(trace.save(tmp_path / "toy.xsp"))
    assert kept.tree() == trace.tree()
    assert kept.spans.equals(trace.spans)


def test_samples_that_cannot_be_read_cost_their_names_only(clock: FakeClock) -> None:
    toy = Toy(clock)
    with only_providers(toy, Sampling(clock, breaks=True)):
        trace = xsp.measure(ToyModel(toy), levels=2, runs=5)
    (problem,) = [one for one in trace.problems if one.code == "provider-failed"]
    assert "sampling on the stack rung" in problem.message
    assert "ValueError: torn" in problem.message
    assert trace.spans["latency_ns"].is_not_null().all()


def test_without_a_sampler_there_is_no_rung_of_samples(clock: FakeClock) -> None:
    toy = Toy(clock)
    with only_providers(toy):
        trace = xsp.measure(ToyModel(toy), levels=2, runs=5)
    assert "stack" not in [rung["rung"] for rung in trace.metadata["rungs"]]
    assert "own_functions" not in trace.spans.unnest("attributes").columns


def test_runs_with_own_time_are_the_same_from_a_folder(tmp_path: Path, clock: FakeClock) -> None:
    toy = Toy(clock)
    with only_providers(toy, Sampling(clock)):
        visited = visit_all(ToyModel(toy), settings=settings_of(2, runs=2), rungs=["detail"])
        runs = interpret_session(*visited)
    assert {run.rung.name for run in runs.runs} == {"bare", "detail", "stack"}
    runs.save(tmp_path / "runs")
    kept = ProcessRuns.load(tmp_path / "runs")
    sampled = [run for run in kept.runs if run.rung.sampled]
    assert [run.rung for run in kept.runs] == [run.rung for run in runs.runs]
    assert sampled[0].rows is not None
    assert sampled[0].rows["attr.own_samples"].sum() > 0


def test_names_are_of_the_group_that_a_row_stands_for() -> None:
    spans = pl.DataFrame(
        {
            "attributes": [
                {"own_functions": [first], "own_lines": ["/x/a.py:3"], "own_shares": [share],
                 "own_samples": count}
                for first, share, count in (("A.f", 0.5, 8), ("A.f", 1.0, 12), ("g", 1.0, 19))
            ]
        }
    )  # fmt: skip
    found = own_functions(spans, np.array([0, 0, 1]))
    assert list(found) == [0]
    ((name, share, reach),) = found[0]
    assert (name, share) == ("f (a.py:3)", 0.8)
    assert reach == pytest.approx(0.175, abs=1e-3)


def test_nothing_is_named_where_nothing_stands_out() -> None:
    attributes = {"own_functions": ["f"], "own_lines": ["a.py:3"], "own_shares": [0.05]}
    spans = pl.DataFrame({"attributes": [attributes | {"own_samples": 100}]})
    assert own_functions(spans, np.array([0])) == {}
