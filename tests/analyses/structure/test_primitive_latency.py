"""Library calls by primitive, on known answers and on a tiny real model."""

from __future__ import annotations

from typing import Any

import pytest
from samples import Node, op, pipeline, trace

import xsp
from xsp.analyses import primitive_latency


def call(name: str, own_ns: int, *children: Node, **attributes: Any) -> Node:
    return Node("call", name, own_ns, list(children), {"library": "oneDNN 3.4", **attributes})


def test_rates_are_those_of_the_calls_whose_work_is_known() -> None:
    counted = call("matmul", 1_000, implementation="jit:avx2", flops=4_000, tensor_bytes=500)
    unknown = call("matmul", 9_000, implementation="jit:avx2")
    table = primitive_latency(trace(pipeline("predict", op("aten::mm", counted, unknown, counted))))
    row = table.row(0, named=True)
    assert (row["calls"], row["own_ns"], row["flops"]) == (3, 11_000, 8_000)
    assert row["flops_per_s"] == pytest.approx(4e9)
    assert row["bytes_per_s"] == pytest.approx(0.5e9)


def test_a_reference_implementation_shows() -> None:
    slow, quick = (
        call("convolution", time, implementation=name)
        for time, name in ((9_000, "ref:any"), (2_000, "jit:avx512_core"))
    )
    blas = Node("call", "SGEMM", 500, [], {"library": "MKL"})
    table = primitive_latency(trace(pipeline("predict", slow, quick, blas)))
    assert table["reference"].to_list() == [True, False, None]


def test_calls_inside_of_calls_count_once() -> None:
    outer = call("inner_product", 100, Node("call", "SGEMM", 900, [], {"library": "MKL"}))
    table = primitive_latency(trace(pipeline("predict", outer)))
    assert table["own_ns"].to_list() == [900, 100]
    assert table["latency_ns"].to_list() == [900, 1_000]


def test_a_trace_without_calls_is_refused() -> None:
    with pytest.raises(xsp.AnalysisError, match="no library calls: measure with levels=3"):
        primitive_latency(trace(pipeline("predict", op("aten::mm"))))
