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


def test_call_outside_of_every_operator_explains_none() -> None:
    astray = pipeline("predict", op("aten::mm", call("SGEMM", 300), own_ns=300), call("DDOT", 100))
    found = coverage(frame(astray))
    assert found is not None
    assert found.under_operator_pct == pytest.approx(75)
    assert found.in_calls_pct == pytest.approx(50)
    said = headline(frame(astray), {})
    assert "library calls: 50 % of the operators' time (most of the rest: mm 50.0 %)" in said
    assert "25.0 % of their time is under no operator" in said


@pytest.mark.parametrize(
    "root", [pipeline("predict"), pipeline("predict", op("aten::add")), call("SGEMM", 5)]
)
def test_without_calls_or_operators_nothing_is_claimed(root: Node) -> None:
    assert coverage(frame(root)) is None
    assert "library calls:" not in headline(frame(root), {})


def test_a_call_longer_than_its_operator_makes_up_for_no_time_elsewhere() -> None:
    tree = pipeline("predict", op("aten::mm", call("SGEMM", 1_000), own_ns=0), op("aten::cat"))
    short = pl.when(pl.col("name") == "aten::mm").then(980.0)
    longer = pl.when(pl.col("name") == "SGEMM").then(1_900.0)
    spans = frame(tree).with_columns(pl.coalesce(short, longer, "latency_ns").alias("latency_ns"))
    assert coverage(spans) == Coverage(100.0, 100 * 1_900 / 1_980)
    assert "library calls: 49 % of the operators' time (most of the rest: cat 50.5 %)" in headline(
        spans, {}
    )


def test_unknown_latencies_are_not_guessed() -> None:
    spans = frame(TREE).with_columns(latency_ns=pl.lit(None, pl.Float64))
    assert coverage(spans) is None
    assert outside_calls(spans)["own_ns"].sum() == 0
