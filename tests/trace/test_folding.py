from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from xsp.evaluation.ancestry import generations
from xsp.trace import folding
from xsp.trace.folding import (
    Folding,
    agreed,
    alike,
    fold,
    neighbours,
    occurrences,
    parent_rows,
    shapes,
    steps,
    sums,
)
from xsp.trace.outline import outline
from xsp.trace.row import Outline, Row

NAMES = st.sampled_from(["a", "b", "0", "1"])
LEAVES = st.builds(samples.op, NAMES, own_ns=st.integers(0, 9))


def layers_of(below: st.SearchStrategy[samples.Node]) -> st.SearchStrategy[samples.Node]:
    return st.builds(
        lambda name, module, children: samples.layer(name, module, *children, own_ns=0),
        NAMES,
        st.sampled_from(["Linear", "Block"]),
        st.lists(below, max_size=4),
    )


def spans_of(below: st.SearchStrategy[samples.Node]) -> st.SearchStrategy[samples.Node]:
    kinds, children = st.sampled_from(["op", "call", "kernel"]), st.lists(below, max_size=4)
    inside = st.builds(samples.Node, kinds, NAMES, children=children)
    return layers_of(below) | inside


TREES = st.recursive(LEAVES, layers_of, max_leaves=30)
RUNS = st.lists(TREES, min_size=1, max_size=4).map(
    lambda trees: samples.pipeline("predict", *trees, own_ns=0)
)


def naive(node: samples.Node) -> Any:
    """Return what two look-alikes have in common, the slow way."""
    what = node.attributes.get("module_class") or node.name
    return node.kind, what, sorted(told_by(node), key=str)


def told_by(node: samples.Node) -> list[Any]:
    """Return what is inside a node that tells it from others: see `shapes`."""
    inside, place = [], 0
    for child in node.children:
        if child.kind == "call" or (child.kind == node.kind == "op"):
            inside += told_by(child)
        else:
            inside.append((place, child.name, naive(child)))
            place += 1
    return inside


def in_order(node: samples.Node) -> list[samples.Node]:
    return [node, *(below for child in node.children for below in in_order(child))]


def tree(spans: pl.DataFrame) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    parent = parent_rows(spans)
    return parent, list(generations(parent))


def shapes_of(spans: pl.DataFrame) -> list[int]:
    return list(shapes(spans, *tree(spans)).tolist())


def folded(spans: pl.DataFrame) -> Folding:
    """Return the groups of neighbours, as the rows of a tree are made of."""
    parent, levels = tree(spans)
    own = neighbours(shapes(spans, parent, levels), steps(spans), parent)
    return fold(own, parent, levels)


@given(st.recursive(LEAVES, spans_of, max_leaves=30))
@settings(max_examples=200, deadline=None)
def test_shapes_are_equal_exactly_where_subtrees_look_alike(top: samples.Node) -> None:
    root = samples.pipeline("predict", top)
    found = shapes_of(samples.frame(root))
    looks = [str(naive(node)) for node in in_order(root)]
    assert len(set(zip(found, looks, strict=True))) == len(set(found)) == len(set(looks))


def test_order_of_rows_that_are_not_depth_first_does_not_matter() -> None:
    spans = samples.frame(samples.resnet())
    depth = spans["path"].str.count_matches("/")
    wide = spans.with_columns(depth=depth).sort("depth", maintain_order=True).drop("depth")
    by_path = dict(zip(wide["path"], shapes_of(wide), strict=True))
    assert shapes_of(spans) == [by_path[path] for path in spans["path"]]


def test_phase_and_parameters_tell_shapes_apart_and_so_do_exceptions() -> None:
    more: list[dict[str, Any]] = [
        {},
        {"phase": "backward"},
        {"parameter_bytes": 4},
        {"error": "ValueError"},
    ]
    layers = [samples.layer("fc", "Linear", **extra) for extra in more]
    assert len(set(shapes_of(samples.frame(samples.pipeline("predict", *layers))))) == 5


def test_what_operators_do_inside_tells_nothing_apart_but_for_their_kernels() -> None:
    kernel = samples.Node("kernel", "gemm")
    inner = [
        (),
        (samples.op("expand"), samples.op("mm")),
        (samples.op("mm"), samples.Node("call", "SGEMM")),
        (samples.op("mm", kernel),),
        (samples.op("expand"), samples.op("mm", kernel)),
    ]
    layers = [samples.layer("fc", "Linear", samples.op("addmm", *each)) for each in inner]
    spans = samples.frame(samples.pipeline("predict", *layers))
    kinds = zip(spans["kind"], shapes_of(spans), strict=True)
    found = [shape for kind, shape in kinds if kind == "layer"]
    without, with_kernel = found[0], found[-1]
    assert found == [without] * 3 + [with_kernel] * 2
    assert without != with_kernel


def test_layers_are_alike_by_class_and_operators_by_name() -> None:
    spans = samples.frame(
        samples.pipeline(
            "predict",
            samples.layer("0", "ReLU"),
            samples.layer("1", "ReLU"),
            samples.op("0"),
            samples.op("1"),
        )
    )
    keys = alike(spans)
    assert keys[1] == keys[2]
    assert len(set(keys.tolist())) == 4
    assert len(set(alike(spans, named=False).tolist())) == 3


@pytest.mark.parametrize("parents", [[3, 1, 1], [1, 3, 4], [1, 9, 2], [2, 3, 2], [1, 3, 2]])
def test_every_span_leads_up_to_the_root_whatever_parents_a_trace_names(
    parents: list[int],
) -> None:
    spans = samples.frame(samples.pipeline("predict", *(samples.layer(n, n) for n in "abc")))
    named = pl.Series("parent_id", [None, *parents], dtype=pl.UInt64)
    parent = parent_rows(spans.with_columns(named))
    assert parent[0] == -1
    assert all(0 <= above < row for row, above in enumerate(parent.tolist()) if row)
    drawn = outline(spans.with_columns(named))
    assert sum(row.count for row in drawn.rows if row.kind != "own") == 4


@given(RUNS)
@settings(max_examples=60, deadline=None)
def test_members_of_a_group_hang_in_one_group(top: samples.Node) -> None:
    spans = samples.frame(top)
    parent, found = parent_rows(spans), folded(spans)
    assert found.of[found.first].tolist() == list(range(len(found.first)))
    assert found.count.tolist() == np.bincount(found.of).tolist()
    assert found.of[parent[1:]].tolist() == found.parent[found.of[1:]].tolist()


@given(RUNS, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_groups_add_up_to_what_all_spans_do(top: samples.Node, chance: Any) -> None:
    spans = samples.frame(top, overhead=2)  # whole numbers: their sums are exact in any order
    known = pl.Series([chance.random() < 0.8 for _ in range(spans.height)])
    spans = spans.with_columns(
        pl.when(known).then(pl.col("latency_ns")).alias("latency_ns"),
    )
    found = sums(spans.hstack(occurrences(spans)), folded(spans).of)
    assert found["count"].sum() == spans.height
    for name in folding.SUMMED:
        assert found[name].sum() == spans[name].sum()
    assert found["least_ns"].min() == spans["latency_ns"].min()
    assert found["most_ns"].max() == spans["latency_ns"].max()


def test_what_is_not_known_is_no_zero() -> None:
    spans = samples.frame(samples.pipeline("predict", *map(samples.op, "aab")))
    latency, low = [9.0, None, None, float("nan")], [8.0, None, None, None]
    spans = spans.with_columns(
        pl.Series("latency_ns", latency), pl.Series("latency_low_ns", low, dtype=pl.Float64)
    )
    found = sums(spans.hstack(occurrences(spans)), folded(spans).of)
    assert found["latency_ns"].to_list() == [9.0, None, None]
    assert found["latency_low_ns"].to_list() == [8.0, None, None]


def test_members_agree_where_all_have_the_same() -> None:
    spans = samples.frame(samples.pipeline("predict", *map(samples.op, "aabb")))
    values = pl.Series("x", [1, 2, 2, 3, None])
    rows = np.arange(spans.height)
    assert agreed(values, folded(spans), rows).to_list() == [1, 2, None]


def families(drawn: Outline) -> Iterator[tuple[Row, list[Row]]]:
    """Yield every row that has rows below it, with those right below it."""
    for place, row in enumerate(drawn.rows):
        if row.parent:
            below = []
            for other in drawn.rows[place + 1 :]:
                if other.depth <= row.depth:
                    break
                if other.depth == row.depth + 1:
                    below.append(other)
            yield row, below


@given(RUNS, st.integers(1, 60), st.sampled_from([0.0, 0.01, 0.3]))
@settings(max_examples=100, deadline=None)
def test_rows_of_any_outline_add_up_to_the_row_above(
    top: samples.Node, rows: int, smallest: float
) -> None:
    # Only the innermost spans have time of their own, and it is counted here in whole numbers.
    for row, below in families(outline(samples.frame(top), rows=rows, smallest=smallest)):
        assert sum(child.latency_ns or 0.0 for child in below) == row.latency_ns
        assert sum(child.overhead_ns or 0.0 for child in below) == pytest.approx(row.overhead_ns)


@given(st.lists(st.sampled_from("abc"), max_size=60), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_rows_of_any_outline_stand_for_every_span_of_a_list(names: list[str], rows: int) -> None:
    drawn = outline(samples.frame(samples.pipeline("predict", *map(samples.op, names))), rows=rows)
    shown = sum(row.count for row in drawn.rows if row.kind != "own")
    assert shown == len(names) + 1 or len(drawn.rows) == 1
