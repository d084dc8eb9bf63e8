from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import samples
from hypothesis import given, settings

from xsp.errors import TraceFormatError
from xsp.trace.document import SPAN_SCHEMA, Trace


@pytest.fixture
def resnet() -> Trace:
    return samples.trace(samples.resnet(), name="ResNet", plan={"rounds": 30})


def changed(trace: Trace, row: int, **values: Any) -> Trace:
    """Return the trace with some values of one row replaced."""
    spans = trace.spans.with_row_index("row")
    for name, value in values.items():
        put = pl.when(pl.col("row") == row).then(pl.lit(value)).otherwise(pl.col(name))
        spans = spans.with_columns(put.cast(SPAN_SCHEMA[name]).alias(name))
    return Trace(spans.drop("row"), trace.metadata)


@pytest.mark.parametrize(
    "tree", [samples.resnet(), samples.transformer(), samples.wide(3_000), samples.hostile()]
)
def test_samples_pass_the_check(tree: samples.Node) -> None:
    samples.trace(tree).check()


@given(samples.TREES)
@settings(max_examples=15, deadline=None)
def test_every_well_formed_tree_passes_the_check_and_can_be_printed(tree: samples.Node) -> None:
    trace = samples.trace(samples.pipeline("predict", tree))
    trace.check()
    assert str(trace)
    assert trace._repr_html_()


@pytest.mark.parametrize(
    ("row", "values", "breach"),
    [
        (5, {"name": None}, "has no name"),
        (0, {"parent_id": 7}, "comes first but is not the root"),
        (5, {"parent_id": None}, "is a second root"),
        (5, {"parent_id": 10_000}, "names a parent that is not there"),
        (5, {"parent_id": 50}, "comes before its parent"),
        (5, {"span_id": 5}, "shares its span_id"),
        (5, {"path": "predict"}, "shares its path"),
        (5, {"kind": "thing"}, "is of an unknown kind"),
        (5, {"level": "model"}, "is not of its kind's level"),
        (0, {"start_ns": 5}, "does not start at 0"),
        (7, {"start_ns": 10**9}, "ends before it starts"),
        (2, {"end_ns": 10**12}, "is drawn outside of its parent"),
        (5, {"latency_ns": -1.0}, "has a negative latency"),
        (5, {"latency_ns": float("nan")}, "has a latency_ns that is not a number"),
        (5, {"overhead_ns": float("inf")}, "has a overhead_ns that is not a number"),
        (5, {"latency_high_ns": 0.0}, "has an interval that misses its latency"),
        (5, {"latency_low_ns": 1e12}, "has an interval that misses its latency"),
        (5, {"latency_ns": None}, "has an interval without a latency"),
        (5, {"self_ns": -1.0}, "has a negative self_ns"),
        (5, {"self_ns": 1e9}, "has a self_ns that is not its latency less its children's"),
        (5, {"runs": -1}, "has negative runs"),
    ],
)
def test_check_names_the_breach_and_the_span(
    resnet: Trace, row: int, values: dict[str, Any], breach: str
) -> None:
    with pytest.raises(TraceFormatError, match=rf"^span '.*' \(id \d+\) {breach}"):
        changed(resnet, row, **values).check()


def test_kernels_may_end_after_the_operator_that_launched_them() -> None:
    kernel = samples.Node("kernel", "gemm", own_ns=500)
    trace = samples.trace(samples.pipeline("predict", samples.op("aten::mm", kernel)))
    late = changed(trace, 2, end_ns=90_000, device=0, thread=None)
    changed(late, 1, self_ns=1_500.0).check()


def test_a_span_without_a_latency_passes_the_check(resnet: Trace) -> None:
    row = resnet.spans.height - 1
    nothing = dict.fromkeys(("latency_ns", "latency_low_ns", "latency_high_ns", "self_ns"))
    changed(resnet, row, **nothing).check()


def kernels(**second: Any) -> Trace:
    """Return two kernels of 500 ns on one stream, the second one changed."""
    nodes = [samples.Node("kernel", name, own_ns=500) for name in ("a", "b")]
    trace = samples.trace(samples.pipeline("predict", *nodes))
    for row in (1, 2):
        trace = changed(trace, row, device=0, stream=7, thread=None, self_ns=500.0)
    return changed(changed(trace, 2, **second), 0, self_ns=3_000.0)


def test_kernels_that_overlap_on_their_stream_are_refused() -> None:
    kernels().check()
    with pytest.raises(TraceFormatError, match=r"'predict/b'.*overlaps what comes before it on"):
        kernels(start_ns=400).check()
