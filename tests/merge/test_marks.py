"""Marks of the user's: spans of any kind around and in spans of any other kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import Machine, Noise, Tree
from strategies import unhurried

from xsp.evaluation.run import Run
from xsp.evaluation.summary import trimmed_mean
from xsp.level import Kind
from xsp.merge.assembly import Merged, merge
from xsp.trace import integrity

COSTS = {Kind.PIPELINE: 500.0, Kind.LAYER: 300.0, Kind.OP: 1_000.0, Kind.CALL: 2_000.0}
MARKED = [Kind.PIPELINE, Kind.LAYER, Kind.OP]


def add(tree: Tree, kind: Kind, name: str, parent: int, own: float = 5_000.0) -> int:
    return tree.add(kind, name, parent=parent, own=own, cost=COSTS[kind])


def marked_model() -> Tree:
    """Return a layer that holds an operator's mark and a mark of kind pipeline, with layers in."""
    tree = Tree()
    root = tree.add(Kind.PIPELINE, "predict", own=20_000)
    model = add(tree, Kind.LAYER, "Model", root, 8_000)
    encoder = add(tree, Kind.OP, "encoder", model, 2_000)
    for name in ("a", "b"):
        layer = add(tree, Kind.LAYER, name, encoder)
        linear = add(tree, Kind.OP, "linear", layer, 2_000)
        add(tree, Kind.OP, "addmm", linear, 90_000)
    decoder = add(tree, Kind.PIPELINE, "decoder", model, 7_000)
    for name in ("c", "d"):
        layer = add(tree, Kind.LAYER, name, decoder)
        within = add(tree, Kind.PIPELINE, f"in {name}", layer, 3_000)
        function = add(tree, Kind.OP, "Function", within, 1_000)
        inner = add(tree, Kind.LAYER, "inner", function, 4_000)
        add(tree, Kind.OP, "linear", inner, 60_000)
        add(tree, Kind.OP, "relu", inner, 10_000)
    return tree


@st.composite
def marked_trees(draw: st.DrawFn) -> Tree:
    """Draw spans of any kinds in spans of any kinds."""
    tree = Tree()
    tree.add(Kind.PIPELINE, "root", own=50_000)
    _grow(draw, tree, 0, depth=5)
    return tree


def _grow(draw: st.DrawFn, tree: Tree, parent: int, depth: int) -> None:
    for _ in range(draw(st.integers(0, 3)) if depth else 0):
        kind = draw(st.sampled_from(MARKED))
        name = draw(st.sampled_from(["x", "y", "z"]))
        _grow(draw, tree, add(tree, kind, name, parent, draw(st.integers(1, 50)) * 1e3), depth - 1)


def merged_of(runs: list[Run]) -> Merged:
    merged = merge(runs)
    integrity.check(merged.spans)
    return merged


def above(merged: Merged) -> list[int]:
    ids = merged.spans["span_id"].to_list()
    return [-1, *(ids.index(each) for each in merged.spans["parent_id"].to_list()[1:])]


def assert_adds_up(merged: Merged) -> None:
    spans = merged.spans
    assert spans["self_ns"].sum() == pytest.approx(spans["latency_ns"][0], rel=1e-3)
    assert "scaled" not in [problem.code for problem in merged.problems]


def test_layers_in_marks_and_marks_in_layers_have_their_latencies() -> None:
    tree = marked_model()
    runs, truth = Machine(tree).measure(3)
    merged = merged_of(runs)
    assert merged.spans["name"].to_list() == tree.name
    assert above(merged) == tree.parent
    assert merged.spans["latency_ns"].to_numpy() == pytest.approx(trimmed_mean(truth), rel=1e-3)
    assert merged.spans["self_ns"].to_numpy() == pytest.approx(tree.own_ns, abs=20)
    assert_adds_up(merged)


@unhurried
@given(marked_trees())
def test_spans_of_any_kinds_in_each_other_have_their_latencies(tree: Tree) -> None:
    kinds = {Kind.PIPELINE, *tree.kind}
    runs, truth = Machine(tree).measure(3, kinds=sorted(kinds, key=lambda kind: kind.order))
    merged = merged_of(runs)
    assert above(merged) == tree.parent
    assert merged.spans["path"].n_unique() == len(tree.kind)
    found = merged.spans["latency_ns"].to_numpy()
    assert found == pytest.approx(trimmed_mean(truth), rel=2e-3, abs=20)
    assert merged.spans["self_ns"].to_numpy() == pytest.approx(tree.own_ns, rel=1e-3, abs=100)


def test_intervals_hold_the_truth_inside_marks_and_around_them() -> None:
    tree = marked_model()
    truth = trimmed_mean(Machine(tree).measure(1)[1])
    held = []
    for seed in range(8):
        noise = Noise(jitter=0.01, span_jitter=0.01)
        spans = merged_of(Machine(tree, noise, seed).measure(30)[0]).spans
        low, high = (spans[f"latency_{end}_ns"].to_numpy() for end in ("low", "high"))
        held.append((low <= truth) & (truth <= high))
    assert np.mean(held) > 0.92


def test_the_same_span_is_found_on_a_rung_that_lacks_the_mark_around_it() -> None:
    runs, _ = Machine(marked_model()).measure(5)
    merged = merged_of(runs)
    exact = merged.spans["attributes"].struct.field("exact")
    assert exact.all()
    assert not [p for p in merged.problems if p.code in ("unmatched", "structure-varies")]
