"""Traces of two frameworks are compared by sums, and not span by span."""

from __future__ import annotations

import pytest
from samples import Node, layer, op, pipeline, trace

import xsp
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
    """Return operators alone, with normalizations folded and activations fused."""
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


def test_spans_of_two_frameworks_are_not_matched_and_a_note_says_so() -> None:
    for other in (keras_net(), onnx_net()):
        found = xsp.compare(torch_net(), other, names=("torch", "other"))
        assert found.across == ("other",)
        assert found.table["path_a"].to_list() == ["predict"]
        (note,) = (note for note in found.notes if "of another framework" in note)
        assert "not matched one to one" in note
        assert note in " ".join(found.text(width=1000).split())
        whole = found.table["difference_ns"][0]
        assert found.by_layer_type["difference_ns"].sum() == pytest.approx(whole, rel=0.01, abs=3e3)


def test_by_type_stands_beside_each_other_with_verdicts() -> None:
    found = xsp.compare(torch_net(), onnx_net(), names=("torch", "onnx"))
    rows = {row["layer_type"]: row for row in found.by_layer_type.iter_rows(named=True)}
    assert rows["convolution"]["calls_a"] == rows["convolution"]["calls_b"] == 12
    assert rows["convolution"]["verdict"] == "faster"
    assert rows["normalization"]["own_b_ns"] is None
    assert rows["normalization"]["verdict"] is None
    assert rows["matmul"]["verdict"] == "not significant"
    assert list(found.by_layer_type.columns) == list(found.type_columns)
