from __future__ import annotations

import polars as pl
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from xsp.show.export.picture import Picture, identity
from xsp.show.export.reduction import reduce
from xsp.trace.document import Trace


def model(**metadata: object) -> Trace:
    conv = samples.layer("conv", "Conv2d", samples.op("aten::conv2d"), module_path="features.conv")
    return samples.trace(
        samples.pipeline("predict", samples.layer("Net", "Net", conv, module_path="")),
        **({"name": "Net", "began_unix_ns": 1_700_000_000_000_000_000} | metadata),
    )


def picture(trace: Trace, most: int | None = None, **more: object) -> Picture:
    return Picture(reduce(trace.spans, most), trace.metadata, **more)  # type: ignore[arg-type]


def only(one: Picture) -> pl.DataFrame:
    (piece,) = one.slices()
    return piece.spans


def test_names_are_what_a_person_searches_for() -> None:
    names = only(picture(model()))["name"].to_list()
    assert names == ["predict Net", "Net", "features.conv Conv2d", "aten::conv2d"]


def test_times_are_wall_clock_and_exact() -> None:
    trace = model()
    spans = only(picture(trace))
    origin = 1_700_000_000_000_000_000
    assert (spans["start_unix_ns"] - origin).to_list() == trace.spans["start_ns"].to_list()
    assert (spans["end_unix_ns"] - origin).to_list() == trace.spans["end_ns"].to_list()
    assert spans["attr.xsp.end_ns"].to_list() == trace.spans["end_ns"].to_list()
    assert spans["attr.xsp.start_ns"].to_list() == trace.spans["start_ns"].to_list()


def test_each_kind_is_a_service_and_all_are_on_one_host() -> None:
    trace = model(environment={"host": "node7", "host_id": "abc"})
    services = picture(trace).services
    assert [service.name for service in services] == ["xsp", "layer", "op"]
    for service in services:
        assert service.attributes["service.name"] == service.name
        assert service.attributes["service.namespace"] == "xsp"
        assert service.attributes["ip"]
        assert service.attributes["host.id"] == "abc"
        assert service.attributes["host.name"] == "node7"
    assert only(picture(trace))["service"].to_list() == [0, 1, 1, 2]


def test_same_trace_has_the_same_ids_and_another_has_others() -> None:
    first, again = picture(model()), picture(model())
    assert first.trace_id == again.trace_id
    assert only(first)["span_id"].equals(only(again)["span_id"])
    other = picture(model(created="2026-01-02T03:04:05+00:00"))
    assert other.trace_id != first.trace_id
    assert not set(only(other)["span_id"]) & set(only(first)["span_id"])


@given(st.lists(st.integers(1, 2**64 - 1), unique=True, min_size=1, max_size=50))
def test_ids_stay_apart_and_grow_in_the_order_of_the_spans(ids: list[int]) -> None:
    own = pl.Series(ids, dtype=pl.UInt64)
    nowhere = pl.Series(ids, dtype=pl.Int64, strict=False).fill_null(0)
    spans = pl.DataFrame({"span_id": own, "start_ns": nowhere, "end_ns": nowhere})
    known = identity(spans, {})
    outside = known.span_ids(own)
    assert outside.dtype == pl.UInt64
    assert (outside.diff().drop_nulls() == 1).all()
    assert not (outside == 0).any()
    absent = next(i for i in range(1, 60) if i not in ids)
    assert known.span_ids(pl.Series([None, absent], dtype=pl.UInt64)).is_null().all()


def test_attributes_are_those_of_the_page_and_the_users_own() -> None:
    own = samples.layer(
        "a", "Linear", module_path="a", input_shapes=[[1, 3], []], parameter_bytes=8
    )
    spans = only(picture(samples.trace(samples.pipeline("step", own))))
    row = spans.row(1, named=True)
    assert row["attr.xsp.module_class"] == "Linear"
    assert row["attr.xsp.input_shapes"] == "1x3, -"
    assert row["attr.xsp.parameter_bytes"] == 8
    assert row["attr.xsp.kind"] == "layer"
    assert row["attr.xsp.latency"] == "2.00 ± 0.020 µs · 50.0 %"
    assert row["attr.xsp.share_pct"] == pytest.approx(50.0)
    assert spans["attr.xsp.rolled.count"].to_list() == [None, None]
    assert spans["attr.error.type"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([3], pl.Int16, 3),
        ([2**63], pl.UInt64, str(2**63)),
        ([1.5], pl.Float32, 1.5),
        ([float("nan")], pl.Float64, "NaN"),
        ([float("-inf")], pl.Float64, "-inf"),
        (["é" * 9000], pl.String, "é" * 8192 + "… (cut: 9000 characters)"),
        ([["é" * 9000]], pl.List(pl.String), "é" * 8192 + "… (cut: 9000 characters)"),
        ([[1, 2]], pl.List(pl.Int64), ["1", "2"]),
        ([b"\x00"], pl.Binary, "b'\\x00'"),
        ([["a"]], pl.List(pl.String), ["a"]),
    ],
)
def test_odd_types_become_what_an_attribute_can_be(
    values: list[object], dtype: pl.DataType, expected: object
) -> None:
    trace = samples.trace(samples.pipeline("step"))
    struct = pl.DataFrame({"user.odd": pl.Series(values, dtype=dtype)}).to_struct()
    spans = trace.spans.with_columns(attributes=struct)
    assert only(picture(Trace(spans, trace.metadata)))["attr.odd"].to_list() == [expected]


def test_warnings_of_the_trace_are_events_of_its_root() -> None:
    warning = {"code": "residual", "message": "the machine drifted"}
    (piece,) = picture(model(warnings=[warning])).slices()
    assert piece.events.select("row", "name", "message").rows() == [
        (0, "residual", "the machine drifted")
    ]
    assert piece.spans["error"].is_null().all()


def test_spans_with_warnings_have_events_and_errors() -> None:
    trace = samples.trace(
        samples.pipeline(
            "step",
            samples.layer("a", "A", error="ValueError"),
            samples.layer("b", "B", exact=False),
            samples.layer("c", "C", scaled_ns=500.0),
            samples.layer(
                "d", "D", **samples.inexact("warm_up_only", "few_samples", "unstable", "inferred")
            ),
            samples.layer("e", "E", **samples.inexact("includes_overhead", "few_samples")),
        )
    )
    (piece,) = picture(trace).slices()
    assert piece.spans["error"].to_list() == [None, "raised ValueError", *[None] * 4]
    assert piece.events.select("row", "name").rows() == [
        (2, "overhead-left"),
        (3, "children-exceed"),
        (5, "overhead-left"),
    ]
    assert piece.events["unix_ns"].to_list() == [
        piece.spans["start_unix_ns"][row] for row in (2, 3, 5)
    ]


def test_span_without_a_latency_is_an_error() -> None:
    trace = samples.trace(samples.pipeline("step", samples.op("lost")))
    gone = {name: pl.when(pl.col("name") != "lost").then(name) for name in _LATENCY}
    spans = only(picture(Trace(trace.spans.with_columns(**gone), trace.metadata)))
    assert spans["error"].to_list() == [None, "its latency could not be measured"]
    assert spans["attr.xsp.latency"][1] is None


_LATENCY = ("latency_ns", "latency_low_ns", "latency_high_ns", "self_ns", "overhead_ns")


def test_kernel_links_to_its_innermost_launch() -> None:
    inner = samples.Node("launch", "cuLaunchKernel", 5)
    trace = samples.trace(
        samples.pipeline("step", samples.Node("launch", "cudaLaunchKernel", 10, [inner])),
    )
    spans = trace.spans.with_columns(correlation_id=pl.Series([None, 7, 7], dtype=pl.Int64))
    kernel = spans.row(1, named=True) | {
        "span_id": 9,
        "kind": "kernel",
        "name": "gemm",
        "path": "step/gemm",
        "thread": None,
        "device": 0,
    }
    row = pl.DataFrame([kernel], schema=spans.schema)
    whole = Trace(pl.concat([spans, row]), trace.metadata)
    (piece,) = picture(whole).slices()
    (link,) = piece.links.rows(named=True)
    assert link["row"] == 3
    assert link["relation"] == "launch"
    assert link["span_id"] == piece.spans["span_id"][2]
    assert link["trace_id"] == picture(whole).trace_id
