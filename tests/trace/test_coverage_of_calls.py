from __future__ import annotations

import polars as pl
import pytest
from samples import Node, frame, layer, op, pipeline

from xsp.trace.coverage import Coverage, coverage, outside_calls
from xsp.trace.heading import headline


def call(name: str, own_ns: int, *children: Node) -> Node:
    return Node("call", name, own_ns, list(children))


TREE = pipeline(
    "predict",
    layer(
        "fc",
        "Linear",
        op("aten::linear", op("aten::addmm", call("SGEMM", 800), own_ns=200), own_ns=0),
    ),
    layer("act", "ReLU", op("aten::relu", own_ns=600)),
)


def test_share_of_the_operators_time_is_that_of_the_outermost_ones() -> None:
    found = coverage(frame(TREE))
    assert found is not None
    assert found.in_calls_pct == pytest.approx(50)
    assert found.under_operator_pct == 100


def test_calls_within_calls_count_once() -> None:
    nested = pipeline("predict", op("aten::lstm", call("rnn", 300, call("SGEMM", 700)), own_ns=0))
    found = coverage(frame(nested))
    assert found is not None
    assert found.in_calls_pct == 100


def test_call_outside_of_every_operator_explains_none() -> None:
    astray = pipeline("predict", op("aten::mm", call("SGEMM", 300), own_ns=300), call("DDOT", 100))
    found = coverage(frame(astray))
    assert found is not None
    assert found.under_operator_pct == pytest.approx(75)
    assert found.in_calls_pct == pytest.approx(50)
    said = headline(frame(astray), {})
    assert "library calls: 50 % of the operators' time (most of the rest: mm 50.0 %)" in said
    assert "25.0 % of theirs lies under no operator" in said


@pytest.mark.parametrize(
    "root", [pipeline("predict"), pipeline("predict", op("aten::add")), call("SGEMM", 5)]
)
def test_without_calls_or_operators_nothing_is_claimed(root: Node) -> None:
    assert coverage(frame(root)) is None
    assert "library calls:" not in headline(frame(root), {})


def test_a_share_that_cannot_be_is_not_claimed() -> None:
    noisy = pipeline("predict", op("aten::mm", call("SGEMM", 300), own_ns=0))
    spans = frame(noisy).with_columns(
        latency_ns=pl.when(pl.col("kind") == "op").then(100.0).otherwise("latency_ns")
    )
    said = headline(spans, {})
    assert "library calls: longer than the operators around them" in said
    assert "300 %" not in said


def test_calls_of_another_tool_that_lie_in_no_operator_are_not_held_against_operators() -> None:
    apart = pipeline("predict", call("Execute", 900), op("conv", call("Launch", 100)))
    within = pipeline("predict", call("Execute", 100), op("conv", call("GEMM", 900)))
    told = {"imported": {"tool": "JAX's profiler"}}
    assert "library calls" not in headline(frame(apart), told)
    assert "library calls" in headline(frame(apart), {})
    assert "10.0 % of theirs lies under no operator" in headline(frame(within), told)


def test_a_call_longer_than_its_operator_makes_up_for_no_time_elsewhere() -> None:
    tree = pipeline("predict", op("aten::mm", call("SGEMM", 1_000), own_ns=0), op("aten::cat"))
    short = pl.when(pl.col("name") == "aten::mm").then(980.0)
    longer = pl.when(pl.col("name") == "SGEMM").then(1_900.0)
    spans = frame(tree).with_columns(pl.coalesce(short, longer, "latency_ns").alias("latency_ns"))
    assert coverage(spans) == Coverage(100.0, 100 * 1_900 / 1_980)
    assert "library calls: 49 % of the operators' time (most of the rest: cat 50.5 %)" in headline(
        spans, {}
    )


def test_what_is_left_is_listed_by_operator() -> None:
    found = outside_calls(frame(TREE))
    assert found.select("name", "count", "own_ns", "call_ns", "rest_ns").rows() == [
        ("aten::relu", 1, 600, 0, 600),
        ("aten::addmm", 1, 1_000, 800, 200),
        ("aten::linear", 1, 0, 0, 0),
    ]
    assert found["in_calls_pct"].to_list() == [0, 80, None]
    assert found["own_ns"].sum() == 1_600


def test_operators_in_layers_in_a_mark_count_once() -> None:
    inner = layer("fc", "Linear", op("aten::mm", call("SGEMM", 800), own_ns=200), own_ns=50)
    marked = frame(pipeline("predict", op("encoder", inner, own_ns=0)))
    found = coverage(marked)
    assert found is not None
    assert found.in_calls_pct == pytest.approx(80)
    assert outside_calls(marked).select("name", "own_ns", "rest_ns").rows() == [
        ("aten::mm", 1_000, 200),
        ("encoder", 0, 0),
    ]


def test_unknown_latencies_are_not_guessed() -> None:
    spans = frame(TREE).with_columns(latency_ns=pl.lit(None, pl.Float64))
    assert coverage(spans) is None
    assert outside_calls(spans)["own_ns"].sum() == 0
