"""Layers of one architecture are found in another framework's trace, with a confidence."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from samples import Node, layer, op, pipeline, trace

import xsp
from xsp.comparison.alignment import align_across, nodes_of, units_of
from xsp.level import Kind
from xsp.trace import Trace

# Blocks of a small residual network: channels in, inside, and out; image size; with a shortcut.
BLOCKS = [(64, 64, 256, 56, True), (256, 64, 256, 56, False), (256, 128, 512, 28, True)]
HEAD_BYTES = (512 * 10 + 10) * 4


def torch_layer(name: str, class_: str, parameters: int, *out: int, own_ns: int = 1_000) -> Node:
    return layer(name, class_, own_ns=own_ns, parameter_bytes=parameters, output_shapes=[[8, *out]])


def torch_block(name: str, given: int, inside: int, made: int, size: int, cut: bool) -> Node:
    def convolved(number: int, source: int, target: int, kernel: int) -> list[Node]:
        weights = source * target * kernel**2 * 4
        return [
            torch_layer(f"conv{number}", "Conv2d", weights, target, size, size, own_ns=5_000),
            torch_layer(f"bn{number}", "BatchNorm2d", target * 8, target, size, size),
        ]

    relu = torch_layer("relu", "ReLU", 0, inside, size, size)
    last = torch_layer("relu", "ReLU", 0, made, size, size)
    parts = [
        *convolved(1, given, inside, 1), relu, *convolved(2, inside, inside, 3), relu,
        *convolved(3, inside, made, 1),
    ]  # fmt: skip
    shortcut = layer("downsample", "Sequential", *convolved(0, given, made, 1), own_ns=10)
    return layer(name, "Bottleneck", *parts, *([shortcut] if cut else []), last, own_ns=100)


def torch_net() -> Trace:
    blocks = [torch_block(str(number), *block) for number, block in enumerate(BLOCKS)]
    stem = [
        torch_layer("conv1", "Conv2d", 3 * 64 * 49 * 4, 64, 112, 112, own_ns=9_000),
        torch_layer("bn1", "BatchNorm2d", 512, 64, 112, 112),
        torch_layer("relu", "ReLU", 0, 64, 112, 112),
        torch_layer("maxpool", "MaxPool2d", 0, 64, 56, 56),
    ]
    head = [
        torch_layer("avgpool", "AdaptiveAvgPool2d", 0, 512, 1, 1),
        torch_layer("fc", "Linear", HEAD_BYTES, 10),
    ]
    return trace(pipeline("predict", layer("net", "ResNet", *stem, *blocks, *head)))


def keras_layer(name: str, class_: str, parameters: int, *out: int, own_ns: int = 1_000) -> Node:
    made = torch_layer(name, class_, parameters, *out, own_ns=own_ns)
    made.attributes["framework"] = "keras"
    return made


def keras_block(name: str, given: int, inside: int, made: int, size: int, cut: bool) -> list[Node]:
    """Return layers with biases, channels last, and the shortcut before the last convolution."""

    def conv(number: int, source: int, target: int, kernel: int = 1) -> Node:
        parameters = (source * target * kernel**2 + target) * 4
        title = f"{name}_{number}_conv"
        return keras_layer(title, "Conv2D", parameters, size, size, target, own_ns=5_000)

    def norm(number: int, of: int) -> Node:
        title = f"{name}_{number}_bn"
        return keras_layer(title, "BatchNormalization", of * 16, size, size, of)

    def relu(title: str, of: int) -> Node:
        return keras_layer(f"{name}_{title}", "Activation", 0, size, size, of)

    return [
        conv(1, given, inside), norm(1, inside), relu("1_relu", inside),
        conv(2, inside, inside, 3), norm(2, inside), relu("2_relu", inside),
        *([conv(0, given, made)] if cut else []), conv(3, inside, made),
        *([norm(0, made)] if cut else []), norm(3, made),
        keras_layer(f"{name}_add", "Add", 0, size, size, made), relu("out", made),
    ]  # fmt: skip


def keras_net() -> Trace:
    blocks = [one for n, block in enumerate(BLOCKS) for one in keras_block(f"block{n}", *block)]
    stem = [
        keras_layer("conv1_pad", "ZeroPadding2D", 0, 230, 230, 3),
        keras_layer("conv1_conv", "Conv2D", (3 * 64 * 49 + 64) * 4, 112, 112, 64, own_ns=9_000),
        keras_layer("conv1_bn", "BatchNormalization", 1024, 112, 112, 64),
        keras_layer("conv1_relu", "Activation", 0, 112, 112, 64),
        keras_layer("pool1_pad", "ZeroPadding2D", 0, 114, 114, 64),
        keras_layer("pool1_pool", "MaxPooling2D", 0, 56, 56, 64),
    ]
    head = [
        keras_layer("avg_pool", "GlobalAveragePooling2D", 0, 512),
        keras_layer("predictions", "Dense", HEAD_BYTES, 10),
    ]
    model = keras_layer("resnet", "Functional", 0, 10)
    model.children = [*stem, *blocks, *head]
    model.latency_ns += sum(child.latency_ns for child in model.children)
    return trace(pipeline("predict", model))


def node(name: str, parameters: int, *out: int, own_ns: int = 1_000) -> Node:
    made = op(name, own_ns=own_ns)
    shapes = {"parameter_bytes": parameters, "output_shapes": [[8, *out]]}
    made.attributes = {"framework": "onnxruntime", **shapes}
    return made


def onnx_net() -> Trace:
    """Return operators alone, with normalisations folded and activations fused."""
    nodes = [
        node("FusedConv", (3 * 64 * 49 + 64) * 4, 64, 112, 112),
        node("MaxPool", 0, 64, 56, 56),
    ]
    for given, inside, made, size, cut in BLOCKS:
        nodes += [
            node("FusedConv", (given * inside + inside) * 4, inside, size, size),
            node("FusedConv", (inside * inside * 9 + inside) * 4, inside, size, size),
            node("Conv", (inside * made + made) * 4, made, size, size),
        ]
        if cut:
            nodes.append(node("FusedConv", (given * made + made) * 4, made, size, size))
    nodes += [node("GlobalAveragePool", 0, 512, 1, 1), node("Flatten", 0, 512)]
    return trace(pipeline("predict", *nodes, node("Gemm", HEAD_BYTES, 10)))


def partners(found: xsp.Comparison) -> dict[str, str]:
    pairs = found.table.drop_nulls("confidence").select("path_a", "path_b").iter_rows()
    return {a.removeprefix("predict/net/"): b.removeprefix("predict/") for a, b in pairs}


def test_layers_of_keras_are_found_by_what_they_compute() -> None:
    found = xsp.compare(torch_net(), keras_net(), names=("torch", "keras"))
    told = partners(found)
    assert told["conv1"] == "resnet/conv1_conv"
    assert told["1/conv2"] == "resnet/block1_2_conv"
    assert told["2/downsample/conv0"] == "resnet/block2_0_conv"
    assert told["2/conv3"] == "resnet/block2_3_conv"
    assert told["fc"] == "resnet/predictions"
    layers = torch_net().spans.filter(pl.col("kind") == "layer").height
    assert len(told) == layers - 1 - 3 - 2  # without the model, blocks, and shortcuts


def test_what_has_no_partner_is_listed() -> None:
    found = xsp.compare(torch_net(), keras_net())
    added = found.table.filter(pl.col("change") == "added")
    assert sorted(added["type_b"].to_list()) == ["Add"] * 3
    assert added["confidence"].null_count() == added.height
    assert found.table.filter(pl.col("change") == "removed").is_empty()


def test_padding_is_part_of_the_convolution_that_pads_itself() -> None:
    found = xsp.compare(torch_net(), keras_net())
    split = found.table.filter(pl.col("change") == "split").sort("path_b")
    assert split["more_b"].to_list() == [
        ["predict/resnet/conv1_pad"],
        ["predict/resnet/pool1_pad"],
    ]


def test_folded_normalisations_and_fused_activations_are_part_of_the_convolution() -> None:
    found = xsp.compare(torch_net(), onnx_net(), names=("torch", "onnx"))
    fused = found.table.filter(pl.col("change") == "fused")
    parts = dict(fused.select("path_a", "more_a").iter_rows())
    assert parts["predict/net/conv1"] == ["predict/net/bn1", "predict/net/relu"]
    assert parts["predict/net/1/conv3"] == ["predict/net/1/bn3"]
    assert fused.height == 12
    assert found.kind is Kind.OP
    assert any("15 of 16 layers of onnx" in note for note in found.notes)


def test_differences_of_all_rows_sum_to_that_of_the_whole() -> None:
    for other in (keras_net(), onnx_net()):
        found = xsp.compare(torch_net(), other)
        whole = found.table["difference_ns"][0]
        assert found.table["own_difference_ns"].sum() == pytest.approx(whole)
        assert found.by_layer_type["difference_ns"].sum() == pytest.approx(whole, rel=0.01, abs=3e3)


def test_mapping_is_the_same_from_the_other_side() -> None:
    there, back = xsp.compare(torch_net(), keras_net()), xsp.compare(keras_net(), torch_net())
    pairs = {(a, b) for a, b in there.table.select("path_a", "path_b").iter_rows() if a and b}
    turned = {(b, a) for a, b in back.table.select("path_a", "path_b").iter_rows() if a and b}
    assert len(pairs & turned) >= 0.9 * len(pairs)
    assert there.table["confidence"].mean() == pytest.approx(back.table["confidence"].mean())


def test_layers_that_may_have_changed_places_have_less_confidence() -> None:
    found = xsp.compare(torch_net(), keras_net())
    sure = dict(found.table.drop_nulls("confidence").select("path_a", "confidence").iter_rows())
    # The first shortcut has as many weights, and makes as much, as the last convolution.
    assert sure["predict/net/0/conv3"] < 0.6 < 0.85 < sure["predict/net/1/conv3"]


def test_other_architecture_has_little_confidence() -> None:
    mlp = [torch_layer(f"fc{n}", "Linear", 4_000 * (n + 1), 10 * (n + 1)) for n in range(4)]
    other = trace(pipeline("predict", layer("net", "Mlp", *mlp)))
    found = xsp.compare(other, keras_net())
    (note,) = (note for note in found.notes if "of different frameworks" in note)
    assert float(note.rpartition(" ")[2]) < 0.2


def test_traces_of_one_framework_are_aligned_by_their_names() -> None:
    found = xsp.compare(keras_net(), keras_net())
    assert found.across == ()
    assert found.table["confidence"].count() == 0
    assert set(found.table["change"]) == {"same"}


def test_by_type_stands_beside_each_other_with_verdicts() -> None:
    found = xsp.compare(torch_net(), onnx_net(), names=("torch", "onnx"))
    rows = {row["layer_type"]: row for row in found.by_layer_type.iter_rows(named=True)}
    assert rows["convolution"]["calls_a"] == rows["convolution"]["calls_b"] == 12
    assert rows["convolution"]["verdict"] == "faster"
    assert rows["normalisation"]["own_b_ns"] is None
    assert rows["normalisation"]["verdict"] is None
    assert rows["matmul"]["verdict"] == "not significant"
    assert list(found.by_layer_type.columns) == list(found.type_columns)


def calling(framework: str | None, operator: str, *names: str) -> Trace:
    """Return a trace of one operator that calls primitives."""
    inside = op(operator, *(Node("call", name, 3_000) for name in names))
    inside.attributes = {"framework": framework}
    return trace(pipeline("predict", inside))


def test_by_primitive_stands_beside_each_other() -> None:
    torch = calling(None, "aten::conv2d", "convolution", "reorder")
    onnx = calling("onnxruntime", "Conv", "convolution", "convolution")
    found = xsp.compare(torch, onnx, names=("torch", "onnx"))
    rows = {row["primitive"]: row for row in found.by_primitive.iter_rows(named=True)}
    assert rows["convolution"]["ratio"] == pytest.approx(2.0)
    assert rows["convolution"]["verdict"] == "slower"
    assert rows["reorder"]["calls_b"] is None
    assert list(found.by_primitive.columns) == list(found.primitive_columns)
    assert "by library primitive:" in str(found)


def test_without_library_calls_there_are_no_primitives() -> None:
    assert xsp.compare(torch_net(), keras_net()).by_primitive.is_empty()


def test_text_markdown_and_notebook_have_the_sums_of_two_frameworks() -> None:
    found = xsp.compare(torch_net(), keras_net(), names=("torch", "keras"))
    assert "by layer type:" in str(found)
    assert "| layer type |" in found.markdown()
    assert "<th>layer type</th>" in found._repr_html_()
    same = xsp.compare(torch_net(), torch_net())
    assert "by layer type:" not in str(same)


def test_one_path_in_both_models_decides_even_where_the_order_differs() -> None:
    def net(framework: str | None, *names: str) -> Trace:
        layers = [keras_layer(name, "Conv2d", 4_000, 8, 8, 16) for name in names]
        for each in layers:
            each.attributes |= {"framework": framework, "module_path": f"block.{each.name}"}
        return trace(pipeline("predict", *layers))

    found = xsp.compare(net(None, "conv", "shortcut"), net("onnxruntime", "shortcut", "conv"))
    assert partners(found) == {
        "predict/conv": "conv",
        "predict/shortcut": "shortcut",
    }
    assert sorted(found.table["change"].to_list()) == ["moved", "same", "same"]


def test_weights_put_into_a_graph_are_not_taken_for_the_models_inputs() -> None:
    weights = op("Mul", own_ns=10)
    weights.attributes = {"framework": "tensorflow", "input_shapes": [[1, 1, 1, 64]]}
    graph = trace(pipeline("predict", weights, keras_layer("fc", "Dense", 40, 10)))
    summary = xsp.compare(torch_net(), graph).summary
    assert "throughput_per_s" not in summary["quantity"].to_list()


def test_long_sequences_are_paired_by_ordinal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xsp.comparison.alignment.across._CELLS", 0)
    a, b = torch_net(), keras_net()
    nodes = nodes_of(a, b, Kind.LAYER)
    units = tuple(units_of(one, of, operators=False) for one, of in zip((a, b), nodes, strict=True))
    found = align_across(nodes, (units[0], units[1]))
    assert found.confidence is not None
    assert len(found.a) > 15
    assert np.all(np.diff(found.a) > 0)
    assert math.isnan(found.confidence[0])
