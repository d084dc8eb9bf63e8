"""Operations and bytes of spans: every piece once, from the best source there is."""

from __future__ import annotations

from typing import Any

import pytest
from hand_made import row, trace_of

from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work.operator_work import operator_work
from xsp.answer.analyses.work.span_work import call_bytes, work_of
from xsp.trace import Trace

IMAGES, WEIGHTS, RESULT = [8, 3, 32, 32], [16, 3, 3, 3], [8, 16, 32, 32]
CONVOLVED = 2 * 8 * 32 * 32 * 16 * 3 * 3 * 3
SHAPES = {"input_shapes": [IMAGES, WEIGHTS], "input_dtypes": ["float32", "float32"]}
KEPT = {"allocated_bytes": 8 * 16 * 32 * 32 * 4 + 640, "freed_bytes": 640}
CHAIN = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::mkldnn_convolution")


def chain(*below: Any) -> list[Any]:
    """Return a convolution as PyTorch records it: operators that call each other."""
    rows = [row(None, "region", "predict", 9_000), row(0, "layer", "conv", 8_000)]
    rows += [row(at, "op", name, 7_000, **SHAPES, **KEPT) for at, name in enumerate(CHAIN, 1)]
    return [*rows, row(5, "op", "aten::empty", 10), *below]


def flops(trace: Trace) -> list[int | None]:
    return work_of(Tree.of(trace))["flops"].to_list()


def test_a_convolution_of_operators_that_call_each_other_is_counted_once() -> None:
    work = work_of(Tree.of(trace_of(chain())))
    assert work["flops"].to_list() == [None, None, 0, 0, 0, CONVOLVED, 0]
    assert work["write_bytes"].to_list() == [None, None, 0, 0, 0, 8 * 16 * 32 * 32 * 4, 0]
    assert set(work["work_source"].drop_nulls()) == {"analytical"}


def test_a_library_call_has_the_work_of_the_operator_around() -> None:
    call = row(5, "call", "convolution", 6_000, flops=CONVOLVED - 7)
    trace = trace_of(chain(call))
    assert flops(trace) == [None, None, 0, 0, 0, 0, 0, CONVOLVED - 7]
    assert work_of(Tree.of(trace))["work_source"][-1] == "library"


def test_what_a_device_counted_is_believed_first() -> None:
    call = row(5, "call", "cudnnConvolutionForward", 6_000, flops=CONVOLVED)
    counted = {"flops": 123, "dram_read_bytes": 4, "dram_write_bytes": 5, "correlation_id": 3}
    launch = row(7, "launch", "cudaLaunchKernel", 100, **counted)
    work = work_of(Tree.of(trace_of(chain(call, launch, row(7, "kernel", "conv", 50, **counted)))))
    assert work["flops"].to_list()[5:] == [0, 0, 0, None, 123]
    assert work.row(-1) == (123, 4, 5, "counted")


def test_bytes_of_onednn_calls_are_those_of_what_they_write_and_the_rest() -> None:
    sizes = "mb8_ic64oc128_ih56oh28kh3sh2dh0ph1_iw56ow28kw3sw2dw0pw1"
    source, weights, result = 8 * 64 * 56 * 56 * 4, 128 * 64 * 9 * 4, 8 * 128 * 28 * 28 * 4
    whole = source + weights + result
    formats = "src f32 a, wei f32 b, dst f32 c"

    def bytes_of(names: str, kind: str) -> tuple[int | None, int | None]:
        return call_bytes("convolution", sizes, formats=names, propagation=kind, tensor_bytes=whole)

    assert bytes_of(formats, "forward_inference") == (whole - result, result)
    backward = "diff_src f32 a, wei f32 b, diff_dst f32 c"
    assert bytes_of(backward, "backward_data") == (whole - source, source)
    backward = "src f32 a, diff_wei f32 b, diff_dst f32 c"
    assert bytes_of(backward, "backward_weights") == (whole - weights, weights)


@pytest.mark.parametrize(
    ("name", "problem", "formats", "tensor_bytes", "expected"),
    [
        ("reorder", "64x3x7x7", "src f32 abcd, dst bf16 a", 9408 * 6, (9408 * 4, 9408 * 2)),
        ("pooling", "mb2ic3_ih8oh4kh2sh2ph0", "src f32 a, dst f32 a", 288, (192, 96)),
        ("inner_product", "mb2ic8ih2iw2oc4", "src f32 a, wei f32 b, dst f32 c", 800, (768, 32)),
        ("eltwise", "2x3", "src f32 ab, dst f32 ab", 48, (24, 24)),
        ("concat", "2x3:2x5", "src f32 ab, src f32 ab, dst f32 ab", 128, (64, 64)),
        ("DGEMM", "NT m8 n4 k2", None, None, (192, 256)),
        ("SGEMM_BATCH_STRIDED", "NT m8 n4 k2 batch3", None, None, (288, 384)),
        ("cublasSgemm", "m8 n4 k2 NT", None, None, (96, 128)),
        ("convolution", None, None, None, (None, None)),
        ("cublasLtMatmul", "m8 n4 k2", None, None, (None, None)),
    ],
)
def test_bytes_of_a_call_follow_from_its_sizes(
    name: str, problem: str | None, formats: str | None, tensor_bytes: int | None, expected: Any
) -> None:
    found = call_bytes(name, problem, formats=formats, tensor_bytes=tensor_bytes)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "shapes", "types", "expected"),
    [
        ("aten::add_", [[4, 4], [4, 4]], ["float32"] * 2, (16, 128, 64)),
        ("aten::add", [[4, 1], [1, 8]], ["float32"] * 2, (32, 48, 128)),
        ("aten::add_", [[4], [4]], ["int64"] * 2, (0, 64, 32)),
        ("aten::copy_", [[4], [4]], ["float32", "float64"], (0, 32, 16)),
        ("aten::zero_", [[4]], ["float32"], (0, 0, 16)),
        ("aten::view", [[4]], ["float32"], (0, 0, 0)),
        ("aten::native_batch_norm", [[2, 8, 4, 4], [8], [8]], ["float32"] * 3, (None, 1088, 1024)),
        ("aten::mm", [[2, 3], [3, 5]], ["bfloat16"] * 2, (60, 42, 20)),
        ("aten::mm", [[2, 3], [4, 5]], ["bfloat16"] * 2, (None, 52, 20)),
        ("aten::cat", [None], [None], (0, None, None)),
        ("mine::op", [[4]], ["float32"], (None, None, None)),
        ("triton_poi_fused_add_0", [[4]], ["float32"], (None, 16, None)),
        ("mine::op", None, None, (None, None, None)),
    ],
)
def test_work_of_an_operator_follows_from_its_tensors(
    name: str, shapes: Any, types: Any, expected: Any
) -> None:
    assert operator_work(name, shapes, types) == expected
