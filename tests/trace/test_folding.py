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

from xsp.matching.ancestry import generations
from xsp.trace.folding import (
    Folding,
    fold,
    neighbors,
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
    """Compare two look-alikes the slow way."""
    what = node.attributes.get("module_class") or node.name
    return node.kind, what, sorted(told_by(node), key=str)


def told_by(node: samples.Node) -> list[Any]:
    """List the parts of a node that tell it from others: see `shapes`."""
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
    """Return the groups of neighbors, as the rows of a tree are made of."""
    parent, levels = tree(spans)
    own = neighbors(shapes(spans, parent, levels), steps(spans), parent)
    return fold(own, parent, levels)


@given(st.recursive(LEAVES, spans_of, max_leaves=30))
@settings(max_examples=60, deadline=None)
def test_shapes_are_equal_exactly_where_subtrees_look_alike(top: samples.Node) -> None:
    root = samples.pipeline("predict", top)
    found = shapes_of(samples.frame(root))
    looks = [str(naive(node)) for node in in_order(root)]
    assert len(set(zip(found, looks, strict=True))) == len(set(found)) == len(set(looks))


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


def test_what_is_not_known_is_no_zero() -> None:
    spans = samples.frame(samples.pipeline("predict", *map(samples.op, "aab")))
    latency, low = [9.0, None, None, float("nan")], [8.0, None, None, None]
    spans = spans.with_columns(
        pl.Series("latency_ns", latency), pl.Series("latency_low_ns", low, dtype=pl.Float64)
    )
    found = sums(spans.hstack(occurrences(spans)), folded(spans).of)
    assert found["latency_ns"].to_list() == [9.0, None, None]
    assert found["latency_low_ns"].to_list() == [8.0, None, None]


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
@settings(max_examples=30, deadline=None)
def test_rows_of_any_outline_add_up_to_the_row_above(
    top: samples.Node, rows: int, smallest: float
) -> None:
    # Only the innermost spans have time of their own, and it is counted here in whole numbers. What
    # is less than half of the smallest row, together, has no row.
    drawn = outline(samples.frame(top), rows=rows, smallest=smallest)
    unsaid = smallest / 2 * (drawn.rows[0].latency_ns or 0.0)
    for row, below in families(drawn):
        missing = (row.latency_ns or 0.0) - sum(child.latency_ns or 0.0 for child in below)
        assert 0 <= missing <= unsaid
        rest = (row.overhead_ns or 0.0) - sum(child.overhead_ns or 0.0 for child in below)
        assert abs(rest) <= (unsaid if missing else 1e-9)
