"""Layers and operators of traces get the types of docs/layer-types.md, whatever the framework."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from samples import Node, layer, op, pipeline, trace

from xsp.analyses import layer_type_work
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.tree import Tree


def of(framework: str, node: Node, **more: Any) -> Node:
    node.attributes |= {"framework": framework, **more}
    return node


def scope(name: str, *children: Node) -> Node:
    return Node("layer", name, 100, list(children), {"framework": "jax"})


def types(root: Node) -> dict[str, str | None]:
    tree = Tree.of(trace(root))
    return dict(zip(tree.spans["name"], layer_types(tree), strict=True))


def keras_net() -> Node:
    inside = [
        of("keras", layer("conv1_pad", "ZeroPadding2D")),
        of("keras", layer("conv1_conv", "Conv2D", own_ns=9_000)),
        of("keras", layer("conv1_bn", "BatchNormalization")),
    ]
    return pipeline("predict", of("keras", layer("resnet50", "Functional", *inside)))


def torch_net() -> Node:
    inside = [layer("conv1", "Conv2d", own_ns=8_000), layer("bn1", "BatchNorm2d")]
    return pipeline("predict", layer("ResNet", "ResNet", *inside))


def test_layers_of_two_frameworks_have_the_same_types() -> None:
    assert list(types(torch_net()).values()) == [None, "container", "convolution", "normalization"]
    assert list(types(keras_net()).values()) == [
        None, "container", "data movement", "convolution", "normalization",
    ]  # fmt: skip


def test_what_a_span_states_itself_wins() -> None:
    node = layer("mine", "Conv2d", layer_type="spectral")
    assert types(pipeline("predict", node))["mine"] == "spectral"


def test_scope_is_what_its_main_operator_is_where_times_are_equal() -> None:
    both = scope("both", of("jax", op("add.1", own_ns=0)), of("jax", op("dot.1", own_ns=0)))
    assert types(pipeline("predict", both))["both"] == "matmul"


def test_time_by_layer_type_sums_to_that_of_the_layers() -> None:
    inside = [layer("a", "Conv2d", own_ns=700), layer("b", "Conv1d", own_ns=200)]
    root = pipeline("predict", layer("net", "Net", *inside, own_ns=100), own_ns=0)
    table = layer_type_work(trace(root))
    assert table.select("layer_type", "classes", "calls", "own_ns", "share_pct").rows() == [
        ("convolution", "Conv2d, Conv1d", 2, 900.0, pytest.approx(90.0)),
        ("container", "Net", 1, 100.0, pytest.approx(10.0)),
    ]


def test_trace_without_layers_and_operators_has_no_rows() -> None:
    table = layer_type_work(trace(pipeline("predict")))
    assert table.is_empty()
    assert table.schema["own_ns"] == pl.Float64
