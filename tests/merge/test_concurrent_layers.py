"""Layers made of operators that ran on several threads at once, from rows to the merged tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import unhurried

from xsp.correlation import correlate
from xsp.evaluation import Run, Rung, ladder, with_inside_costs
from xsp.level import Kind
from xsp.merge import Merged, merge
from xsp.provider import SpanRows, span_rows
from xsp.trace import Trace, integrity
from xsp_levels.framework.scope import layered

_RUNGS = ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP})
_MAIN = 1
_RUNS = 6


@dataclass(frozen=True)
class Branch:
    """A layer: operators that run one after the other on one thread."""

    name: str
    operators: tuple[int, ...]


Stage = tuple[Branch, ...]  # branches that run at once, each on its own thread


def evaluation(
    stages: Sequence[Stage], cost: int, turn: int, *, recorded: bool, inside: bool = False
) -> tuple[SpanRows, pl.Series, int]:
    """Return operators, their scopes and the end of an evaluation that begins at 0.

    Recording costs `cost` around each operator, half of it before, or inside of it. Threads of
    the pool take the branches in another order in every `turn`.
    """
    now, rows, scopes = 10, [], []
    cost = cost if recorded else 0
    for stage in stages:
        ends = []
        for place, branch in enumerate(stage):
            thread, at = _MAIN + (place + turn) % len(stage), now + (place + turn) % 2
            for number, length in enumerate(branch.operators):
                at += 0 if inside else cost // 2
                done = at + length + (cost if inside else 0)
                rows.append(("mul", f"{branch.name}/{number}", at, done, thread))
                scopes.append(["net", branch.name])
                at = done + (0 if inside else cost - cost // 2)
            ends.append(at)
        now = max(ends) + 10
    names, nodes, start, end, threads = zip(*rows, strict=True)
    order = np.argsort(start, kind="stable")
    ops = span_rows(
        {
            "kind": Kind.OP.value,
            "name": names,
            "start_ns": start,
            "end_ns": end,
            "thread": threads,
            "parent_id": 0,
            "attr.node": nodes,
        }
    )[order]
    return ops, pl.Series(scopes)[order], now


def runs_of(stages: Sequence[Stage], cost: int, *, inside: bool = False) -> list[Run]:
    found = []
    for turn in range(_RUNS):
        for rung in _RUNGS:
            recorded = Kind.OP in rung.kinds
            ops, scopes, end = evaluation(stages, cost, turn, recorded=recorded, inside=inside)
            began = 10**6 * turn
            root = span_rows(
                {"kind": "pipeline", "name": "predict", "start_ns": [began],
                 "end_ns": [began + end], "thread": _MAIN}
            )  # fmt: skip
            moved = ops.with_columns(pl.col("start_ns", "end_ns") + began)
            rows = layered(moved, scopes) if recorded else moved.clear()
            trees = correlate(root, rows)
            assert trees.orphans == trees.outside == 0
            frame = trees.frames[0] if rung.kinds else None
            found.append(Run(rung, end, frame, round=turn, began_ns=began))
    return found


def merged_of(stages: Sequence[Stage], cost: int = 0, *, inside: bool = False) -> Merged:
    merged = merge(runs_of(stages, cost, inside=inside))
    integrity.check(merged.spans)
    return merged


def by_path(merged: Merged, column: str) -> dict[str, float]:
    return dict(zip(merged.spans["path"].to_list(), merged.spans[column].to_list(), strict=True))


TWINS = ((Branch("a", (400, 400)), Branch("b", (400, 400))), (Branch("c", (300,)),))


def test_branches_at_once_have_their_latencies_and_leave_what_neither_covers() -> None:
    merged = merged_of(TWINS)
    latency, own = by_path(merged, "latency_ns"), by_path(merged, "self_ns")
    net = "predict/net"
    assert [latency[f"{net}{each}"] for each in ("/a", "/b", "/c")] == [800, 800, 300]
    assert latency[net] == pytest.approx(1111, abs=1)
    assert own[net] == pytest.approx(10, abs=2)
    assert own[f"{net}/a"] == own[f"{net}/b"] == 0
    assert {problem.code for problem in merged.problems} <= {"wide-interval"}


def test_cost_of_recording_on_two_threads_counts_once_around_both_and_in_full_in_each() -> None:
    merged = merged_of(TWINS, cost=100)
    latency = by_path(merged, "latency_ns")
    bare = evaluation(TWINS, 100, 0, recorded=False)[2]
    assert latency["predict"] == pytest.approx(bare, abs=2)
    assert latency["predict/net/a"] == pytest.approx(800, abs=5)
    assert latency["predict/net/b"] == pytest.approx(800, abs=5)
    assert latency["predict/net"] == pytest.approx(1111, abs=5)
    assert "prediction" not in {problem.code for problem in merged.problems}
    op = merged.rungs.filter(pl.col("rung") == "op")
    assert op["cost_per_span_ns"].item() == pytest.approx(100, abs=1)


def test_time_in_operators_counts_what_ran_at_once_only_once() -> None:
    merged = merged_of(TWINS)
    busy = merged.spans["attributes"].struct.field("operators_ns")
    found = dict(zip(merged.spans["path"].to_list(), busy.to_list(), strict=True))
    assert found["predict/net"] == pytest.approx(1101, abs=2)
    assert found["predict/net/a"] == 800
    assert found["predict"] is None


def test_tree_says_how_many_ran_at_once() -> None:
    merged = merged_of(TWINS)
    tree = Trace(merged.spans, {"name": "net"}).tree(width=140)
    line = next(line for line in tree.splitlines() if "net" in line and "at once" in line)
    assert "1.7 at once inside" in line
    assert "on another thread" not in tree


def test_drawn_branches_stand_side_by_side_in_their_parent() -> None:
    spans = merged_of(TWINS).spans
    drawn = {
        path.rpartition("/")[2]: (start, end)
        for path, start, end in spans.select("path", "start_ns", "end_ns").iter_rows()
    }
    assert drawn["a"][0] < drawn["b"][1]
    assert drawn["b"][0] < drawn["a"][1]
    assert drawn["c"][0] >= max(drawn["a"][1], drawn["b"][1])


@st.composite
def staged(draw: st.DrawFn) -> list[Stage]:
    stages = []
    for number in range(draw(st.integers(1, 4))):
        lengths = st.lists(st.integers(300, 900), min_size=1, max_size=4)
        chains = draw(st.lists(lengths, min_size=1, max_size=3))
        stages.append(
            tuple(Branch(f"l{number}{place}", tuple(c)) for place, c in enumerate(chains))
        )
    return stages


@settings(unhurried, max_examples=12)
@given(staged(), st.sampled_from([0, 0, 10]))
def test_any_branches_make_a_true_tree(stages: list[Stage], cost: int) -> None:
    merged = merged_of(stages, cost)
    latency, own = by_path(merged, "latency_ns"), by_path(merged, "self_ns")
    model = latency["predict"]
    assert model == pytest.approx(evaluation(stages, 0, 0, recorded=False)[2], abs=2)
    assert all(value >= 0 for value in own.values())
    assert all(value <= model + 4 * cost + 1 for value in latency.values())
    codes = {problem.code for problem in merged.problems}
    assert not codes & {"structure-varies", "unmatched", "prediction", "child-longer"}
    if not cost:
        truth = {b.name: sum(b.operators) for stage in stages for b in stage}
        assert {name: latency[f"predict/net/{name}"] for name in truth} == truth
        shown = {path: runs for path, runs in by_path(merged, "runs").items() if "/" in path}
        assert set(shown.values()) == {_RUNS}


def test_equal_operators_keep_their_paths_whichever_thread_is_first() -> None:
    rows = []
    for first, second in (("x", "y"), ("y", "x")):
        ops = span_rows(
            {"kind": "op", "name": "mul", "start_ns": [1, 2], "end_ns": [5, 9], "thread": [1, 2],
             "parent_id": 0, "attr.node": [first, second]}
        )  # fmt: skip
        root = span_rows({"kind": "pipeline", "name": "predict", "start_ns": [0], "end_ns": [10]})
        rows.append(Run(_RUNGS[-1], 10, correlate(root, ops).frames[0]))
    spans = merge(rows).spans
    assert spans["path"].to_list() == ["predict", "predict/mul", "predict/mul#2"]
    assert spans["latency_ns"].to_list()[1:] == [5.5, 5.5]
    nodes = spans["attributes"].struct.field("node").to_list()
    assert nodes[1:] == ["x", "y"]


def run_of(rung: Rung, turn: int, ops: Sequence[tuple[str, int, int]], end: int) -> Run:
    """Return an evaluation of a layer `net`, which holds operators with names, starts and ends."""
    names, starts, ends = zip(*ops, strict=True)
    rows = span_rows(
        {"kind": "op", "name": names, "start_ns": starts, "end_ns": ends, "thread": _MAIN}
    )
    root = span_rows(
        {"kind": "pipeline", "name": "predict", "start_ns": [0], "end_ns": [end], "thread": _MAIN}
    )
    rows = layered(rows, pl.Series([["net"]] * len(ops)))
    rows = rows if Kind.OP in rung.kinds else rows.clear()
    frame = correlate(root, rows).frames[0] if rung.kinds else None
    return Run(rung, end, frame, round=turn)


def test_layer_is_no_shorter_than_its_operators_whose_times_hold_the_cost_of_recording() -> None:
    runs = []
    for turn in range(_RUNS):
        for rung in _RUNGS:
            length = 500 if Kind.OP in rung.kinds else 400
            idle = 200 if turn == (_RUNS - 1) // 2 else 0  # in the layer of the run that is shown
            second = 10 + length + idle
            ops = [("mul", 10, 10 + length), ("add", second, second + length)]
            runs.append(run_of(rung, turn, ops, 220 + 2 * length))
    merged = merge(runs)
    integrity.check(merged.spans)
    latency = by_path(merged, "latency_ns")
    assert latency["predict/net/mul"] == latency["predict/net/add"] == 500
    assert latency["predict/net"] == pytest.approx(1000, abs=1)


def test_layer_holds_its_last_operator_which_some_runs_did_not_record() -> None:
    runs = []
    for turn in range(_RUNS):
        for rung in _RUNGS:
            ops = [("mul", 10, 410), ("add", 410, 510)]
            runs.append(run_of(rung, turn, ops[: 2 if turn % 3 else 1], 520))
    latency = by_path(merge(runs), "latency_ns")
    assert latency["predict/net"] == latency["predict/net/mul"] + latency["predict/net/add"] == 500


@settings(unhurried, max_examples=8)
@given(staged(), st.integers(0, 200))
def test_no_layer_is_shorter_than_what_is_drawn_in_it(stages: list[Stage], cost: int) -> None:
    spans = merged_of(stages, cost, inside=True).spans
    layers = spans.unnest("attributes").filter(kind="layer")
    assert layers["scaled_ns"].fill_null(0).le(len(spans)).all()  # by rounding alone


def test_layers_are_without_what_recording_costs_inside_their_operators() -> None:
    stages = [(Branch("fc", (1_000, 500)),), (Branch("act", (300,)),)]
    runs = [
        run
        if run.rows is None
        else replace(run, rows=with_inside_costs(run.rows, {Kind.OP: (200.0, 1.0)}))
        for run in runs_of(stages, 200, inside=True)
    ]
    latency = by_path(merge(runs), "latency_ns")
    assert latency["predict/net/fc"] == pytest.approx(1_500, abs=2)
    assert latency["predict/net/act"] == pytest.approx(300, abs=2)
