"""Layers made of operators that ran on several threads at once, from rows to the merged tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import unhurried

from xsp.level import Kind
from xsp.matching import Run, ladder
from xsp.provider import SpanRows, span_rows
from xsp.reading.correlation import correlate
from xsp.reading.merge import Merged, merge
from xsp.scope import layered
from xsp.trace import integrity

_RUNGS = ladder({Kind.REGION, Kind.LAYER, Kind.OP})
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
    """Return operators, their scopes and the end of a step that begins at 0.

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
                {"kind": "region", "name": "predict", "start_ns": [began],
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
    assert {warning.code for warning in merged.warnings} <= {"wide-interval"}


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
    codes = {warning.code for warning in merged.warnings}
    assert not codes & {"structure-varies", "unmatched", "prediction", "child-longer"}
    if not cost:
        truth = {b.name: sum(b.operators) for stage in stages for b in stage}
        assert {name: latency[f"predict/net/{name}"] for name in truth} == truth
        shown = {path: runs for path, runs in by_path(merged, "runs").items() if "/" in path}
        assert set(shown.values()) == {_RUNS}


@settings(unhurried, max_examples=8)
@given(staged(), st.integers(0, 200))
def test_no_layer_is_shorter_than_what_is_drawn_in_it(stages: list[Stage], cost: int) -> None:
    spans = merged_of(stages, cost, inside=True).spans
    layers = spans.unnest("attributes").filter(kind="layer")
    assert layers["scaled_ns"].fill_null(0).le(len(spans)).all()  # by rounding alone
