"""Operations and bytes of spans: every piece once, from the best source there is."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hand_made import row, trace_of

from xsp.analyses.tree import Tree
from xsp.analyses.work.call_work import call_bytes
from xsp.analyses.work.operator_work import operator_work
from xsp.analyses.work.span_work import subtree_sum, work_of
from xsp.trace import Trace

IMAGES, WEIGHTS, RESULT = [8, 3, 32, 32], [16, 3, 3, 3], [8, 16, 32, 32]
CONVOLVED = 2 * 8 * 32 * 32 * 16 * 3 * 3 * 3
SHAPES = {"input_shapes": [IMAGES, WEIGHTS], "input_dtypes": ["float32", "float32"]}
KEPT = {"allocated_bytes": 8 * 16 * 32 * 32 * 4 + 640, "freed_bytes": 640}
CHAIN = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::mkldnn_convolution")


def chain(*below: Any) -> list[Any]:
    """Return a convolution as PyTorch records it: operators that call each other."""
    rows = [row(None, "pipeline", "predict", 9_000), row(0, "layer", "conv", 8_000)]
    rows += [row(at, "op", name, 7_000, **SHAPES, **KEPT) for at, name in enumerate(CHAIN, 1)]
    return [*rows, row(5, "op", "aten::empty", 10), *below]


def flops(trace: Trace) -> list[int | None]:
    return work_of(Tree.of(trace))["flops"].to_list()


def test_a_convolution_of_operators_that_call_each_other_is_counted_once() -> None:
    work = work_of(Tree.of(trace_of(chain())))
    assert work["flops"].to_list() == [None, None, 0, 0, 0, CONVOLVED, 0]
    assert work["write_bytes"].to_list() == [None, None, 0, 0, 0, 8 * 16 * 32 * 32 * 4, 0]
    assert set(work["work_source"].drop_nulls()) == {"analytical"}


def test_work_of_a_layer_is_the_sum_of_its_subtree() -> None:
    tree = Tree.of(trace_of(chain()))
    own = work_of(tree)["flops"].cast(pl.Float64).fill_null(0.0).to_numpy()
    assert subtree_sum(tree, own)[:3].tolist() == [CONVOLVED] * 3


def test_a_library_call_has_the_work_of_the_operator_around() -> None:
    call = row(5, "call", "convolution", 6_000, flops=CONVOLVED - 7)
    trace = trace_of(chain(call))
    assert flops(trace) == [None, None, 0, 0, 0, 0, 0, CONVOLVED - 7]
    assert work_of(Tree.of(trace))["work_source"][-1] == "library"


def test_a_reorder_does_not_stand_for_the_convolution_around() -> None:
    assert flops(trace_of(chain(row(5, "call", "reorder", 900, flops=0))))[5] == CONVOLVED


def test_what_a_device_counted_is_believed_first() -> None:
    call = row(5, "call", "cudnnConvolutionForward", 6_000, flops=CONVOLVED)
    counted = {"flops": 123, "dram_read_bytes": 4, "dram_write_bytes": 5, "correlation_id": 3}
    launch = row(7, "launch", "cudaLaunchKernel", 100, **counted)
    work = work_of(Tree.of(trace_of(chain(call, launch, row(7, "kernel", "conv", 50, **counted)))))
    assert work["flops"].to_list()[5:] == [0, 0, 0, None, 123]
    assert work.row(-1) == (123, 4, 5, "counted")


def test_counters_of_a_launch_without_its_kernel_stay_at_the_launch() -> None:
    launch = row(5, "launch", "cudaLaunchKernel", 100, flops=123)
    assert flops(trace_of(chain(launch)))[5:] == [0, 0, 123]


def test_a_row_of_several_calls_has_the_work_of_all() -> None:
    rows = chain()
    rows[5]["calls"] = 10
    assert flops(trace_of(rows))[5] == 10 * CONVOLVED


def test_a_convolution_whose_result_nobody_tells_has_no_known_work() -> None:
    rows = chain()
    for found in rows[2:6]:
        found |= {"allocated_bytes": None}
    assert flops(trace_of(rows))[2:6] == [0, 0, 0, None]


@pytest.mark.parametrize("following", [row(1, "op", "aten::batch_norm", 5), None])
def test_the_result_of_a_convolution_is_also_seen_after_it_or_around_it(following: Any) -> None:
    rows = chain()
    for found in rows[2:6]:
        found |= {"allocated_bytes": None}
    if following is None:
        rows[1] |= {"output_shapes": [RESULT]}
    else:
        given = {"input_shapes": [RESULT, [16]], "input_dtypes": ["float32"] * 2}
        rows.append(following | given)
    assert flops(trace_of(rows))[5] == CONVOLVED


def test_copies_read_and_write_the_memory_of_the_device_alone() -> None:
    ways = [("memcpy", "HtoD"), ("memcpy", "DtoH"), ("memcpy", "DtoD"), ("memset", None)]
    rows = [
        row(0, kind, f"{kind} {way}", 5, direction=way, transfer_bytes=100) for kind, way in ways
    ]
    work = work_of(Tree.of(trace_of([row(None, "pipeline", "predict", 100), *rows])))
    assert work["read_bytes"].to_list() == [None, 0, 100, 100, 0]
    assert work["write_bytes"].to_list() == [None, 100, 0, 100, 100]


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


def test_of_a_table_only_the_rows_asked_for_are_read() -> None:
    given = ([[50_000, 8], [2, 3]], ["float32", "int64"])
    found = operator_work("aten::embedding", *given, kept_bytes=2 * 3 * 8 * 4)
    assert found == (0, 192 + 48, 192)


@pytest.mark.parametrize(
    ("name", "shapes", "types", "expected"),
    [
        ("aten::mul", [[4, 8], [], [4, 8]], ["float32", "float64", "float32"], (32, 136, 128)),
        ("aten::clamp_min", [[4, 8], [], [4, 8]], ["float32", "Int", "float32"], (0, 128, 128)),
        (
            "aten::add",
            [[4, 8], [8], [], [4, 8]],
            [*["float16"] * 2, "Int", "float16"],
            (32, 80, 64),
        ),
    ],
)
def test_a_place_for_the_result_is_not_read_and_a_number_makes_no_result_wider(
    name: str, shapes: Any, types: Any, expected: Any
) -> None:
    assert operator_work(name, shapes, types) == expected


def test_nobody_knows_what_operators_of_other_packages_read_of_a_cache() -> None:
    cache = [4_213_816, 16, 1, 64]
    found = operator_work("_C_cache_ops::reshape_and_cache", [[8, 64], cache], ["bfloat16"] * 2)
    assert found.read_bytes is None
