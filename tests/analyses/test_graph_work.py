"""Operators of TensorFlow, ONNX and XLA have the operations that PyTorch's counter has."""

from __future__ import annotations

from typing import Any

import pytest
from samples import Node, op, pipeline, trace

from xsp.analyses import layer_type_work
from xsp.answer.analyses.work.formula import flops_of
from xsp.answer.analyses.work.graph_formula import graph_flops

# A convolution of 3 to 16 channels by 3 × 3, and a matrix product, as PyTorch counts them.
CONVOLUTION = flops_of("aten::convolution", [[8, 3, 32, 32], [16, 3, 3, 3]], [[8, 16, 30, 30]])
PRODUCT = flops_of("aten::mm", [[8, 64], [64, 10]], [])
BATCHED = flops_of("aten::bmm", [[6, 4, 8], [6, 8, 5]], [])


@pytest.mark.parametrize(
    ("framework", "name", "given", "made"),
    [
        ("tensorflow", "Conv2D", [[8, 32, 32, 3], [3, 3, 3, 16]], [8, 30, 30, 16]),
        ("tensorflow", "_FusedConv2D", [[8, 32, 32, 3], [3, 3, 3, 16], [16]], [8, 30, 30, 16]),
        ("tensorflow", "_MklNativeFusedConv2D", [[8, 32, 32, 3], [3, 3, 3, 16]], [8, 30, 30, 16]),
        ("tensorflow", "_MklNativePadWithConv2D", [[8, 30, 30, 3], [3, 3, 3, 16]], [8, 30, 30, 16]),
        (
            "tensorflow", "Conv2DBackpropInput",
            [[4], [3, 3, 3, 16], [8, 30, 30, 16]], [8, 32, 32, 3],
        ),
        (
            "tensorflow", "Conv2DBackpropFilter",
            [[8, 32, 32, 3], [4], [8, 30, 30, 16]], [3, 3, 3, 16],
        ),
        ("onnxruntime", "Conv", [[8, 3, 32, 32], [16, 3, 3, 3], [16]], [8, 16, 30, 30]),
        ("onnxruntime", "FusedConv", [[8, 3, 32, 32], [16, 3, 3, 3]], [8, 16, 30, 30]),
        ("jax", "conv_general_dilated", [[8, 32, 32, 3], [3, 3, 3, 16]], [8, 30, 30, 16]),
        ("jax", "convolution", [[8, 3, 32, 32], [16, 3, 3, 3]], [8, 16, 30, 30]),
    ],
)  # fmt: skip
def test_convolutions_have_the_operations_of_pytorch(
    framework: str, name: str, given: list[list[int]], made: list[int]
) -> None:
    assert graph_flops(name, framework, given, [made]) == CONVOLUTION


@pytest.mark.parametrize(
    ("framework", "name", "given"),
    [
        ("tensorflow", "MatMul", [[8, 64], [64, 10]]),
        ("tensorflow", "_MklNativeFusedMatMul", [[8, 64], [64, 10], [10]]),
        ("onnxruntime", "Gemm", [[8, 64], [10, 64], [10]]),
        ("onnxruntime", "Gemm", [[64, 8], [64, 10]]),
        ("onnxruntime", "MatMul", [[8, 64], [64, 10]]),
        ("jax", "dot", [[8, 64], [64, 10]]),
        ("jax", "dot", [[8, 64], [10, 64]]),
    ],
)
def test_products_have_the_operations_of_pytorch(
    framework: str, name: str, given: list[list[int]]
) -> None:
    assert graph_flops(name, framework, given, [[8, 10]]) == PRODUCT


@pytest.mark.parametrize(
    ("framework", "name"),
    [("tensorflow", "BatchMatMulV2"), ("onnxruntime", "MatMul"), ("jax", "dot_general")],
)
def test_batched_products_count_each_matrix(framework: str, name: str) -> None:
    assert graph_flops(name, framework, [[6, 4, 8], [6, 8, 5]], [[6, 4, 5]]) == BATCHED


@pytest.mark.parametrize("given", [[], [[8]], [[0, 4], [4, 2]]])
def test_tensors_that_do_not_fit_have_no_operations(given: list[list[int]]) -> None:
    assert graph_flops("Conv", "onnxruntime", given, []) is None
    assert graph_flops("dot", "jax", given, [[]]) is None


def shaped(framework: str | None, name: str, given: list[list[int]], made: list[int]) -> Node:
    known: dict[str, Any] = {"framework": framework, "input_shapes": given, "output_shapes": [made]}
    node = op(name)
    node.attributes = known | {"input_dtypes": ["float32"] * len(given)}
    return node


def test_one_architecture_has_the_same_operations_in_all_frameworks() -> None:
    first = [
        shaped(None, "aten::addmm", [[16], [8, 64], [64, 16]], [8, 16]),
        shaped("tensorflow", "_FusedMatMul", [[8, 64], [64, 16], [16]], [8, 16]),
        shaped("onnxruntime", "Gemm", [[8, 64], [16, 64], [16]], [8, 16]),
        shaped("jax", "dot", [[8, 64], [64, 16]], [8, 16]),
    ]
    tables = [layer_type_work(trace(pipeline("predict", node))) for node in first]
    assert {table["flops"][0] for table in tables} == {2 * 8 * 64 * 16}
    assert {table["layer_type"][0] for table in tables} == {"matmul"}
