"""Layers and operators of traces get the types of docs/layer-types.md, whatever the framework."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from samples import Node, layer, op, pipeline, trace

from xsp.analyses import by_layer_type, layer_latency, layer_latency_by_type
from xsp.analyses.layer_type import layer_types
from xsp.analyses.tree import Tree


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
    assert list(types(torch_net()).values()) == [None, "container", "convolution", "normalisation"]
    assert list(types(keras_net()).values()) == [
        None, "container", "data movement", "convolution", "normalisation",
    ]  # fmt: skip


def test_operators_have_the_types_of_their_frameworks() -> None:
    told = types(
        pipeline(
            "predict",
            of("tensorflow", op("_FusedConv2D")),
            of("tensorflow", op("Mean")),
            of("onnxruntime", op("Gemm")),
            op("aten::relu"),
            op("mine::own"),
        )
    )
    assert list(told.values())[1:] == ["convolution", "reduction", "matmul", "activation", None]


def test_what_a_span_states_itself_wins() -> None:
    node = layer("mine", "Conv2d", layer_type="spectral")
    assert types(pipeline("predict", node))["mine"] == "spectral"


def test_scope_without_a_class_is_what_most_of_its_operators_time_is() -> None:
    block = scope(
        "block",
        scope("dense", op("dot.1", own_ns=900), op("add.2", own_ns=100)),
        scope("act", op("tanh.1", own_ns=100), op("add.3", own_ns=400)),
        scope("empty"),
    )
    for each in (*block.children[0].children, *block.children[1].children):
        of("jax", each)
    told = types(pipeline("predict", block))
    assert told["block"] == "container"
    assert (told["dense"], told["act"], told["empty"]) == ("matmul", "elementwise", None)


def test_scope_is_what_its_main_operator_is_where_times_are_equal() -> None:
    both = scope("both", of("jax", op("add.1", own_ns=0)), of("jax", op("dot.1", own_ns=0)))
    assert types(pipeline("predict", both))["both"] == "matmul"


def test_class_of_a_program_is_told_by_its_name_or_by_its_operators() -> None:
    told = types(
        pipeline(
            "predict",
            layer("norm", "LlamaRMSNorm", op("aten::mul")),
            layer("odd", "Odd", op("aten::mm", own_ns=5_000), op("aten::add", own_ns=1)),
            layer("attn", "BertSelfAttention", layer("query", "Linear")),
            layer("block", "LinearBlock", layer("up", "Linear")),
        )
    )
    assert (told["norm"], told["odd"]) == ("normalisation", "matmul")
    assert (told["attn"], told["block"]) == ("attention", "container")


def test_tables_by_class_have_the_type_beside_it() -> None:
    table = layer_latency_by_type(trace(keras_net()))
    told = dict(table.select("type", "layer_type").iter_rows())
    assert told == {
        "Conv2D": "convolution", "BatchNormalization": "normalisation",
        "ZeroPadding2D": "data movement", "Functional": "container",
    }  # fmt: skip
    assert layer_latency(trace(keras_net()))["layer_type"].null_count() == 0


def test_time_by_layer_type_sums_to_that_of_the_layers() -> None:
    inside = [layer("a", "Conv2d", own_ns=700), layer("b", "Conv1d", own_ns=200)]
    root = pipeline("predict", layer("net", "Net", *inside, own_ns=100), own_ns=0)
    table = by_layer_type(trace(root))
    assert table.select("layer_type", "classes", "calls", "own_ns", "share_pct").rows() == [
        ("convolution", "Conv2d, Conv1d", 2, 900.0, pytest.approx(90.0)),
        ("container", "Net", 1, 100.0, pytest.approx(10.0)),
    ]


def test_layer_of_a_graph_takes_as_long_as_its_operators() -> None:
    torn = of("tensorflow", layer("add", "Add", own_ns=9_000), operators_ns=500.0)
    root = pipeline("predict", torn, of("tensorflow", layer("conv", "Conv2D", own_ns=3_000)))
    table = by_layer_type(trace(root))
    assert dict(table.select("layer_type", "own_ns").iter_rows()) == {
        "convolution": 3_000.0,
        "elementwise": 500.0,
    }
    low = table.filter(pl.col("layer_type") == "elementwise")["own_low_ns"][0]
    assert low == pytest.approx(500 * 0.99, rel=1e-3)


def test_operators_stand_for_layers_where_there_are_none() -> None:
    nodes = [of("onnxruntime", op(name)) for name in ("Conv", "FusedConv", "MaxPool")]
    nodes[0].attributes |= {
        "input_shapes": [[1, 3, 8, 8], [4, 3, 3, 3]],
        "input_dtypes": ["float32", "float32"],
        "output_shapes": [[1, 4, 6, 6]],
    }
    table = by_layer_type(trace(pipeline("predict", *nodes)))
    assert table.select("layer_type", "classes", "calls").rows() == [
        ("convolution", "Conv, FusedConv", 2), ("pooling", "MaxPool", 1),
    ]  # fmt: skip


def test_trace_without_layers_and_operators_has_no_rows() -> None:
    table = by_layer_type(trace(pipeline("predict")))
    assert table.is_empty()
    assert table.schema["own_ns"] == pl.Float64
