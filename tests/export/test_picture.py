from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from timelines import frame, row

from xsp.export.picture import LINK_SCHEMA, Linked, Picture, identity, launches
from xsp.export.reduction import reduce
from xsp.trace.document import SPAN_SCHEMA, Trace

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


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


def test_root_that_bears_the_subjects_name_is_named_once() -> None:
    trace = samples.trace(samples.pipeline("work"))
    assert picture(trace).name == "work"


def test_backward_layer_says_so() -> None:
    back = samples.layer("fc", "Linear", module_path="fc", phase="backward")
    trace = samples.trace(samples.pipeline("step", back))
    assert only(picture(trace))["name"][1] == "fc Linear backward"


def test_span_without_a_name_has_one_outside() -> None:
    trace = samples.trace(samples.pipeline("step", samples.op("")))
    assert only(picture(trace))["name"][1] == "(no name)"


def test_times_are_wall_clock_and_exact() -> None:
    trace = model()
    spans = only(picture(trace))
    origin = 1_700_000_000_000_000_000
    assert (spans["start_unix_ns"] - origin).to_list() == trace.spans["start_ns"].to_list()
    assert (spans["end_unix_ns"] - origin).to_list() == trace.spans["end_ns"].to_list()
    assert spans["attr.xsp.end_ns"].to_list() == trace.spans["end_ns"].to_list()
    assert spans["attr.xsp.start_ns"].to_list() == trace.spans["start_ns"].to_list()


def test_span_of_no_length_ends_a_nanosecond_later_for_others() -> None:
    spans = only(picture(samples.trace(samples.pipeline("step", samples.op("view", own_ns=0)))))
    lengths = spans["end_unix_ns"] - spans["start_unix_ns"]
    assert lengths.to_list() == [2_000, 1]
    assert spans["attr.xsp.start_ns"][1] == spans["attr.xsp.end_ns"][1]


def test_old_trace_begins_when_it_was_created() -> None:
    trace = model(began_unix_ns=None, created="2026-01-02T03:04:05+00:00")
    assert only(picture(trace))["start_unix_ns"][0] == 1_767_323_045_000_000_000


def test_parents_are_the_ids_of_the_spans_above() -> None:
    spans = only(picture(model()))
    assert spans["parent_span_id"].to_list() == [0, *spans["span_id"].to_list()[:-1]]


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


def test_service_is_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    services = picture(model()).services
    assert [service.name for service in services] == ["shop", "layer", "op"]
    assert {service.attributes["service.namespace"] for service in services} == {"shop"}


def test_root_hangs_under_the_callers_span() -> None:
    one = picture(model(traceparent=PARENT, tracestate="vendor=1"))
    assert one.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert one.trace_state == "vendor=1"
    assert only(one)["parent_span_id"][0] == 0x00F067AA0BA902B7


def test_parent_that_is_given_wins_over_the_one_that_was_measured_inside_of() -> None:
    other = PARENT.replace("00f067aa0ba902b7", "00f067aa0ba902b8")
    assert only(picture(model(), parent=other))["parent_span_id"][0] == 0x00F067AA0BA902B8
    one = picture(model(traceparent=PARENT, tracestate="vendor=1"), parent=other)
    assert only(one)["parent_span_id"][0] == 0x00F067AA0BA902B8
    assert one.trace_state == ""


def test_same_trace_has_the_same_ids_and_another_has_others() -> None:
    first, again = picture(model()), picture(model())
    assert first.trace_id == again.trace_id
    assert only(first)["span_id"].equals(only(again)["span_id"])
    other = picture(model(created="2026-01-02T03:04:05+00:00"))
    assert other.trace_id != first.trace_id
    assert not set(only(other)["span_id"]) & set(only(first)["span_id"])


def test_picture_cut_otherwise_is_another_trace() -> None:
    assert picture(model(), most=2).trace_id != picture(model()).trace_id


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


def test_root_says_what_was_measured() -> None:
    assert only(picture(model()))["attr.xsp.subject"].to_list() == ["Net", None, None, None]


def test_long_names_are_cut_and_say_so() -> None:
    trace = samples.trace(samples.pipeline("step", samples.op("n" * 100_000)))
    row = only(picture(trace)).row(1, named=True)
    assert row["name"] == "n" * 8192 + "… (cut: 100000 characters)"


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


def test_users_attributes_keep_their_names_and_never_hide_ours() -> None:
    trace = samples.trace(samples.pipeline("step"))
    struct = pl.Series([{"exact": True, "user.batch": 8, "user.xsp.kind": "mine", "user.": 2.5}])
    spans = trace.spans.with_columns(attributes=struct)
    row = only(picture(Trace(spans, trace.metadata))).row(0, named=True)
    assert row["attr.batch"] == 8
    assert row["attr.xsp.kind"] == "pipeline"
    assert row["attr.xsp.kind'"] == "mine"
    assert row["attr.user"] == 2.5


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


def test_users_attribute_of_the_name_of_the_subject_stands_beside_it() -> None:
    trace = model()
    struct = pl.Series([{"user.xsp.subject": "mine"}] * trace.spans.height)
    row = only(picture(Trace(trace.spans.with_columns(attributes=struct), trace.metadata))).row(
        0, named=True
    )
    assert (row["attr.xsp.subject"], row["attr.xsp.subject'"]) == ("Net", "mine")


def test_long_subjects_and_messages_are_cut() -> None:
    long = "é" * 9000
    (piece,) = picture(model(name=long, problems=[{"code": "c", "message": long}])).slices()
    cut = "é" * 8192 + "… (cut: 9000 characters)"
    assert piece.spans["attr.xsp.subject"][0] == piece.events["message"][0] == cut


def test_problems_of_the_trace_are_events_of_its_root() -> None:
    problem = {"code": "residual", "message": "the machine drifted"}
    (piece,) = picture(model(problems=[problem])).slices()
    assert piece.events.select("row", "name", "message").rows() == [
        (0, "residual", "the machine drifted")
    ]
    assert piece.spans["error"].is_null().all()


def test_spans_with_problems_have_events_and_errors() -> None:
    trace = samples.trace(
        samples.pipeline(
            "step",
            samples.layer("a", "A", error="ValueError"),
            samples.layer("b", "B", exact=False),
            samples.layer("c", "C", scaled_ns=500.0),
            samples.layer("d", "D", **samples.inexact("cold", "few", "varies", "derived")),
            samples.layer("e", "E", **samples.inexact("carried", "few")),
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


def test_spans_of_several_occurrences_say_so_and_what_ran_at_once() -> None:
    served = samples.layer("m", "GPT", own_ns=8_000, calls=39, busy_ns=2_000.0)
    (piece,) = picture(samples.trace(samples.pipeline("block", served, own_ns=2_000))).slices()
    assert piece.spans["name"][1] == "39 \u00d7 GPT"
    assert piece.spans["attr.xsp.latency"][1] == "8.00 ± 0.080 µs · 20.0 % · 4.0 at once"
    assert piece.spans["attr.xsp.share_pct"][1] == 20.0
    assert piece.spans["attr.xsp.calls"].to_list() == [None, 39]


def test_a_stopped_recomputation_is_no_error() -> None:
    early = samples.layer("a", "Sequential", error="_StopRecomputationError")
    (piece,) = picture(samples.trace(samples.pipeline("step", early))).slices()
    assert piece.spans["error"].is_null().all()


def test_what_was_cut_is_said_at_the_root() -> None:
    (piece,) = picture(model(), most=3).slices()
    (name, message) = piece.events.select("name", "message").row(0)
    assert name == "span-budget"
    assert "shown: 3 spans for the 4 of the trace" in message
    assert "every op" in message


def test_span_without_a_latency_is_an_error() -> None:
    trace = samples.trace(samples.pipeline("step", samples.op("lost")))
    gone = {name: pl.when(pl.col("name") != "lost").then(name) for name in _LATENCY}
    spans = only(picture(Trace(trace.spans.with_columns(**gone), trace.metadata)))
    assert spans["error"].to_list() == [None, "its latency could not be measured"]
    assert spans["attr.xsp.latency"][1] is None


_LATENCY = ("latency_ns", "latency_low_ns", "latency_high_ns", "self_ns", "overhead_ns")


def test_slices_hold_every_span_once_and_in_order() -> None:
    many = samples.trace(samples.pipeline("step", *(samples.op(f"o{i}") for i in range(25))))
    pieces = list(picture(many).slices(rows=7))
    assert [piece.spans.height for piece in pieces] == [7, 7, 7, 5]
    assert [name for piece in pieces for name in piece.spans["name"]][1:] == [
        f"o{i}" for i in range(25)
    ]
    assert {column for piece in pieces for column in piece.links.columns} == set(LINK_SCHEMA)


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


def test_spans_below_the_root_link_to_the_same_spans_of_a_run() -> None:
    trace = model()
    other = identity(trace.spans, {"another": 1})
    linked = Linked(("pipeline", "layer"), other)
    (piece,) = picture(trace, linked=(linked,)).slices()
    assert piece.links["row"].to_list() == [1, 2]
    assert piece.links["span_id"].equals(other.span_ids(trace.spans["span_id"][1:3]))


def test_trace_of_no_spans_has_no_slices() -> None:
    empty = pl.DataFrame(schema=SPAN_SCHEMA).with_columns(
        attributes=pl.Series([], dtype=pl.Struct({"exact": pl.Boolean}))
    )
    one = Picture(reduce(empty, None), {})
    assert list(one.slices()) == []
    assert (one.height, one.name) == (0, "")


def test_large_trace_is_never_built_beside_itself() -> None:
    count = 50_000
    many = samples.trace(samples.pipeline("step", *(samples.op("aten::add") for _ in range(count))))
    heights = np.array([piece.spans.height for piece in picture(many).slices(rows=1000)])
    assert heights.max() == 1000
    assert heights.sum() == count + 1


def test_the_innermost_call_with_the_same_id_is_the_launch() -> None:
    spans = frame(
        row(1, None, 0, 9),
        row(2, 1, 1, 4, kind="launch", correlation_id=7),
        row(3, 2, 2, 3, kind="launch", correlation_id=7),
        row(4, 1, 5, 8, kind="kernel", device=0, correlation_id=7),
        row(5, 1, 8, 9, kind="memset", device=0, correlation_id=7),
        row(6, 1, 8, 9, kind="kernel", device=0, correlation_id=8),
        row(7, 3, 5, 9, kind="layer", device=0, correlation_id=7),  # replayed by a graph
    )
    assert launches(spans).rows() == [(2, 3), (2, 4)]
