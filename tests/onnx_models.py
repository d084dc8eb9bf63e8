"""Tiny models in ONNX's format, as PyTorch's older exporter names their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def model_bytes(
    nodes: Sequence[Any],
    weights: dict[str, Any],
    inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str],
    name: str = "tiny",
) -> bytes:
    """Return a model of float32 tensors, as the bytes of its file."""
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(each, FLOAT, list(shape)) for each, shape in inputs.items()],
        [helper.make_tensor_value_info(each, FLOAT, None) for each in outputs],
        [numpy_helper.from_array(np.asarray(value), each) for each, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def residual() -> bytes:
    """Return two convolutions, a sum and activations: ONNX Runtime makes two nodes of these six."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((16, 16, 3, 3)).astype(np.float32),
        "w2": random.standard_normal((16, 16, 3, 3)).astype(np.float32),
        "b": np.zeros(16, np.float32),
    }
    conv = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["c1"], name="/block/conv1/Conv", **conv),
        helper.make_node("Relu", ["c1"], ["r1"], name="/block/relu/Relu"),
        helper.make_node("Conv", ["r1", "w2", "b"], ["c2"], name="/block/conv2/Conv", **conv),
        helper.make_node("Add", ["c2", "r1"], ["a"], name="/block/Add"),
        helper.make_node("Relu", ["a"], ["y"], name="/block/relu_1/Relu"),
    ]
    return model_bytes(nodes, weights, {"x": ["n", 16, 8, 8]}, ["y"], name="residual")


def dense(name: str = "dense") -> bytes:
    """Return a matrix product and an activation."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="/fc/MatMul"),
        helper.make_node("Sigmoid", ["m"], ["y"], name="/act/Sigmoid"),
    ]
    weights = {"w": np.eye(8, dtype=np.float32)}
    return model_bytes(nodes, weights, {"x": ["n", 8]}, ["y"], name=name)


def branches(count: int = 3) -> bytes:
    """Return products that do not depend on each other, and their sum."""
    nodes = [
        helper.make_node("MatMul", ["x", f"w{at}"], [f"m{at}"], name=f"/branch{at}/MatMul")
        for at in range(count)
    ]
    nodes += [helper.make_node("Sum", [f"m{at}" for at in range(count)], ["y"], name="/Sum")]
    weights = {f"w{at}": np.eye(8, dtype=np.float32) * (at + 1) for at in range(count)}
    return model_bytes(nodes, weights, {"x": ["n", 8]}, ["y"], name="branches")


def looped(rounds: int = 4) -> bytes:
    """Return a loop that adds one."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "one"], ["after"], name="/loop/Add"),
            helper.make_node("Identity", ["go"], ["go_on"], name="/loop/Identity"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", FLOAT, [8]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", FLOAT, [8]),
        ],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="/act/Relu"),
        helper.make_node("Loop", ["rounds", "", "r"], ["y"], name="/loop/Loop", body=body),
    ]
    weights = {"rounds": np.array(rounds), "one": np.ones(8, np.float32)}
    return model_bytes(nodes, weights, {"x": [8]}, ["y"], name="looped")
