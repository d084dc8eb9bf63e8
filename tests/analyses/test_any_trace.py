"""Any trace through every analysis: its table comes out, or a reason why there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hand_made import row, trace_of
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import hostile, pipeline, trace
from strategies import unhurried

import xsp
from xsp.analyses import ALL, Analysis
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace

_NAMES = st.one_of(
    st.text(max_size=4),
    st.sampled_from([
        "aten::mm", "aten::conv2d", "aten::mkldnn_convolution", "aten::add", "aten::add_",
        "aten::relu", "aten::softmax", "aten::empty", "autograd::engine::evaluate_function: X",
        "reorder", "convolution", "SGEMM", "ncclDevKernel_AllReduce", "gemm", "data loading",
        "first call of Net: more than the others", "optimizer step", "cudaLaunchKernel",
        "cudaStreamSynchronize", "cudaGraphLaunch", "event record", "<script>",
    ]),
)  # fmt: skip
_SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3)
_SIZES = st.none() | st.integers(0, 1 << 40)
_ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "calls": st.integers(1, 9),
        "process": st.integers(0, 2),
        "rank": st.integers(0, 2),
        "module_class": st.text(max_size=3),
        "module_path": st.sampled_from(["", "0", "0.conv", "a.b.c", "a..b"]),
        "phase": st.sampled_from(["forward", "backward"]),
        "input_shapes": _SHAPES,
        "output_shapes": _SHAPES,
        "input_dtypes": st.lists(st.sampled_from(["float32", "bfloat16", "Int", ""]), max_size=3),
        "parameter_bytes": _SIZES,
        "allocated_bytes": _SIZES,
        "freed_bytes": _SIZES,
        "peak_bytes": _SIZES,
        "transfer_bytes": _SIZES,
        "tensor_bytes": _SIZES,
        "flops": _SIZES,
        "dram_read_bytes": _SIZES,
        "dram_write_bytes": _SIZES,
        "occupancy_pct": st.floats(0, 100),
        "achieved_occupancy_pct": st.floats(0, 100),
        "direction": st.sampled_from(["HtoD", "DtoH", "DtoD", "PtoP"]),
        "source": st.sampled_from(["pageable", "pinned"]),
        "implementation": st.sampled_from(["ref:any", "jit:avx2", ""]),
        "problem": st.sampled_from(["", "mb1ic3oc8", "m2n3k4", "2x3:3x4"]),
        "formats": st.sampled_from(["", "src f32 abcd, dst f32 ABcd16b16a", "dst"]),
        "launched_kernel": st.text(max_size=4),
        "node": st.sampled_from(["a", "b", "c"]),
        "hlo_op": st.sampled_from(["d", "e"]),
        "inputs": st.lists(st.sampled_from(["a", "b", "c", "d", "z"]), max_size=3),
        "threads": st.integers(0, 4),
        "framework": st.sampled_from(["onnxruntime", "tensorflow", "jax"]),
        "collective": st.sampled_from(["allreduce", "broadcast"]),
        "group_size": st.integers(1, 4),
        "in_elements": _SIZES,
        "element_type": st.sampled_from(["Float", "x"]),
        "workers": st.integers(0, 2),
        "queue_delay_ns": _SIZES,
    },
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw a trace whose spans lie anywhere, some without latency or interval."""
    rows = [_span(draw, Kind.REGION, None)]
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(list(Kind)))
        rows.append(_span(draw, kind, draw(st.integers(0, number))))
    return trace_of(rows)


def _span(draw: st.DrawFn, kind: Kind, parent: int | None) -> Any:
    start, length = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    known, exact = draw(st.booleans()), draw(st.booleans())
    latency = float(draw(st.integers(0, 50))) if known else None
    reach = draw(st.integers(0, 9))
    on_device = kind in DEVICE_ACTIVITIES
    where = {
        "device": draw(st.integers(0, 1)) if on_device else None,
        "stream": draw(st.integers(0, 2)) if on_device else None,
        "thread": None if on_device else draw(st.sampled_from([1, 1, 2, None])),
        "correlation_id": draw(st.none() | st.integers(0, 4)),
        "start_ns": start,
        "end_ns": start + length,
        "latency_ns": latency,
        "latency_low_ns": max(latency - reach, 0.0) if latency is not None and exact else None,
        "latency_high_ns": latency + reach if latency is not None and exact else None,
        "device_ns": draw(st.none() | st.floats(0, 50)),
    }
    return row(parent, kind.value, draw(_NAMES)) | where | draw(_ATTRIBUTES)


def _ask(analysis: Analysis[Any], asked: Trace) -> None:
    try:
        table = analysis(asked)
    except xsp.AnalysisError:
        return
    assert table.columns == list(analysis.columns)
    for column in table.iter_columns():
        if column.dtype.is_float():
            assert all(math.isfinite(value) for value in column.drop_nulls()), column.name
        if column.name in ("latency_ns", "own_ns", "count", "calls", "flops"):
            assert (column.drop_nulls() >= 0).all(), column.name


@settings(unhurried, max_examples=10)
@given(traces())
def test_any_trace_gives_each_analysis_a_table_or_a_reason(asked: Trace) -> None:
    for analysis in ALL:
        _ask(analysis, asked)


@pytest.mark.parametrize("analysis", ALL, ids=lambda analysis: analysis.name)
def test_hostile_names_and_a_span_alone_are_answered(analysis: Analysis[Any]) -> None:
    _ask(analysis, trace(hostile()))
    _ask(analysis, trace(pipeline("alone", own_ns=0)))
    _ask(analysis, trace_of([row(None, "region", "", latency_ns=0.0)]))


@pytest.mark.parametrize("analysis", ALL, ids=lambda analysis: analysis.name)
def test_parts_of_a_whole_that_took_no_time_have_no_infinite_shares(
    analysis: Analysis[Any],
) -> None:
    root = row(None, "region", "", latency_ns=0.0)
    parts = (row(0, kind, "part", latency_ns=1.0) for kind in ("layer", "op", "kernel"))
    _ask(analysis, trace_of([root, *parts]))
    ended = row(0, "kernel", "ended with its root", latency_ns=1.0, device=0, start_ns=5, end_ns=5)
    _ask(analysis, trace_of([root | {"start_ns": 5, "end_ns": 5}, ended]))
