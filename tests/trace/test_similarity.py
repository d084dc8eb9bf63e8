from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.trace.similarity import field, structure

NAMES = st.sampled_from(["a", "b", "0", "1"])
TREES = st.recursive(
    st.builds(samples.op, NAMES),
    lambda below: st.builds(
        lambda name, module, children: samples.layer(name, module, *children),
        NAMES,
        st.sampled_from(["Linear", "Block"]),
        st.lists(below, max_size=4),
    ),
    max_leaves=30,
)


def naive(node: samples.Node) -> Any:
    """Return what two look-alikes have in common, the slow way."""
    what = node.attributes.get("module_class") or node.name
    return node.kind, what, tuple((child.name, naive(child)) for child in node.children)


def in_order(node: samples.Node) -> list[samples.Node]:
    return [node, *(below for child in node.children for below in in_order(child))]


@given(TREES)
@settings(max_examples=80, deadline=None)
def test_shapes_are_equal_exactly_where_subtrees_look_alike(tree: samples.Node) -> None:
    root = samples.pipeline("predict", tree)
    shapes = structure(samples.frame(root)).shapes.tolist()
    alike = [naive(node) for node in in_order(root)]
    assert len(set(zip(shapes, map(str, alike), strict=True))) == len(set(shapes))
    assert len(set(shapes)) == len(set(map(str, alike)))


@given(TREES)
@settings(max_examples=40, deadline=None)
def test_children_are_found_in_their_order(tree: samples.Node) -> None:
    root = samples.pipeline("predict", tree)
    found = structure(samples.frame(root))
    nodes = in_order(root)
    for row, node in enumerate(nodes):
        kids = found.children(np.array([row], dtype=np.int64))[0]
        assert [id(nodes[kid]) for kid in kids.tolist()] == [id(kid) for kid in node.children]


def test_order_of_rows_that_are_not_depth_first_does_not_matter() -> None:
    spans = samples.frame(samples.resnet())
    depth = spans["path"].str.count_matches("/")
    wide = spans.with_columns(depth=depth).sort("depth", maintain_order=True).drop("depth")
    first = structure(spans).shapes.tolist()
    by_path = dict(zip(wide["path"], structure(wide).shapes.tolist(), strict=True))
    assert first == [by_path[path] for path in spans["path"]]


def test_phase_and_parameters_tell_shapes_apart() -> None:
    more: list[dict[str, Any]] = [{}, {"phase": "backward"}, {"parameter_bytes": 4}]
    layers = [samples.layer("fc", "Linear", **extra) for extra in more]
    shapes = structure(samples.frame(samples.pipeline("predict", *layers))).shapes
    assert len(set(shapes.tolist())) == 4


def test_field_that_is_missing_or_of_another_type_is_null() -> None:
    spans = pl.DataFrame({"attributes": [{"phase": 3}, {"phase": 4}]})
    assert field(spans, "phase").null_count() == 2
    assert field(spans, "nothing").null_count() == 2
    assert field(spans, "phase", pl.Int64).to_list() == [3, 4]
