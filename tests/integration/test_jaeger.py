from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
import pytest
import samples
import torch
from jaeger_server import JaegerServer, attributes, tags, warnings

import xsp
from xsp.trace.document import Trace

pytestmark = pytest.mark.slow

Edge = tuple[str, int, int, int | None, int | None]

KERNEL_LATE_NS = 7_301  # a kernel begins well after the operator that asked for it has ended
MIB = 1024 * 1024


def many(spans: int) -> Trace:
    """Return a trace of so many spans, a tenth of them kernels that outlast their parents."""
    layers = (spans - 2) // 10
    left = spans - 2 - layers * 10

    def kernel(number: int) -> samples.Node:
        return samples.Node("kernel", f"gemm_{number % 7}", 1_001 + number % 997)

    def one(number: int) -> samples.Node:
        inner = [samples.op(f"aten::op{i}", own_ns=301 + (number + i) % 911) for i in range(7)]
        chain = samples.op("aten::linear", samples.Node("op", "aten::addmm", 613, [kernel(number)]))
        return samples.layer(f"layer{number}", "Linear", *inner[:6], chain, own_ns=1_999)

    rest = [samples.op("aten::copy_", own_ns=457 + i) for i in range(left)]
    model = samples.layer("Model", "Model", *map(one, range(layers)), *rest)
    return dated(on_device(samples.frame(samples.pipeline("predict", model))))


def on_device(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with their kernels on a stream, later than whoever asked for them."""
    kernels = pl.col("kind") == "kernel"
    return frame.with_columns(
        *(
            pl.when(kernels).then(pl.col(end) + KERNEL_LATE_NS).otherwise(pl.col(end)).alias(end)
            for end in ("start_ns", "end_ns")
        ),
        pl.when(kernels).then(None).otherwise("thread").cast(pl.Int64).alias("thread"),
        pl.when(kernels).then(0).cast(frame.schema["device"]).alias("device"),
        pl.when(kernels).then(7).cast(frame.schema["stream"]).alias("stream"),
        pl.when(kernels).then("span_id").cast(pl.Int64).alias("correlation_id"),
    )


def dated(spans: pl.DataFrame, **more: Any) -> Trace:
    """Return a trace that began a moment ago, at a nanosecond that is no whole microsecond."""
    began = time.time_ns() // 1000 * 1000 + 577
    known = {"name": "Model", "warnings": [], "levels": {"model": "measured"}}
    return Trace(spans, {**known, "began_unix_ns": began, **more})


def edges(trace: Trace) -> Counter[Edge]:
    """Return kind, times and parent's times of every span on the wall clock, as it is sent.

    What has no length ends a nanosecond later there.
    """
    began = trace.metadata["began_unix_ns"]
    times = {
        row: (began + start, began + max(end, start + 1))
        for row, start, end in trace.spans.select("span_id", "start_ns", "end_ns").rows()
    }
    pairs = trace.spans.select("kind", "span_id", "parent_id").rows()
    nothing = (None, None)
    return Counter((kind, *times[row], *times.get(parent, nothing)) for kind, row, parent in pairs)


def edges_of_otlp(found: list[dict[str, Any]]) -> Counter[Edge]:
    times = {
        span["spanId"]: (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
        for span in found
    }
    assert len(times) == len(found), "two spans have one id"
    nothing = (None, None)
    return Counter(
        (
            attributes(span)["xsp.kind"],
            *times[span["spanId"]],
            *times.get(span.get("parentSpanId", ""), nothing),
        )
        for span in found
    )


def edges_of_pages(found: Mapping[str, Any]) -> Counter[Edge]:
    """Return the same of Jaeger's own JSON, which has microseconds, cut and not rounded."""
    times = {span["spanID"]: (span["startTime"], span["duration"]) for span in found["spans"]}
    parents = {
        span["spanID"]: ref["spanID"]
        for span in found["spans"]
        for ref in span["references"][:1]
        if ref["refType"] == "CHILD_OF"
    }
    nothing = (None, None)
    return Counter(
        (
            tags(span)["xsp.kind"],
            *times[span["spanID"]],
            *times.get(parents.get(span["spanID"]), nothing),
        )
        for span in found["spans"]
    )


def microseconds(edge: Edge) -> Edge:
    """Read start and duration of an edge from Jaeger's own JSON, for both ends."""
    kind, start, end, parent_start, parent_end = edge
    own = (start // 1000, (end - start) // 1000)
    if parent_start is None or parent_end is None:
        return (kind, *own, None, None)
    return (kind, *own, parent_start // 1000, (parent_end - parent_start) // 1000)


def check_arrived(jaeger: JaegerServer, trace: Trace, trace_id: str) -> None:
    """Verify that all of a trace is there, to the nanosecond, and nothing is complained of."""
    sent = edges(trace)
    found = jaeger.otlp(trace_id)
    assert edges_of_otlp(found) == sent
    began = trace.metadata["began_unix_ns"]
    for span in found:
        inside = attributes(span)
        assert inside["xsp.start_ns"] == int(span["startTimeUnixNano"]) - began
        end = max(inside["xsp.end_ns"], inside["xsp.start_ns"] + 1)
        assert end == int(span["endTimeUnixNano"]) - began
    shown = jaeger.trace(trace_id)
    assert warnings(shown) == []
    expected: Counter[Edge] = Counter()
    for edge, count in sent.items():
        expected[microseconds(edge)] += count
    assert edges_of_pages(shown) == expected


@pytest.mark.parametrize("spans", [1, 2_345])
def test_every_span_arrives(jaeger: JaegerServer, spans: int) -> None:
    trace = many(spans) if spans > 1 else dated(samples.frame(samples.pipeline("predict")))
    delivery = trace.export(jaeger.http, max_spans=None)
    assert (delivery.sent, delivery.accepted, delivery.rejected) == (spans, spans, 0)
    check_arrived(jaeger, trace, delivery.trace_id)


@pytest.mark.timeout(900)
def test_many_spans_arrive_and_stay_whatever_the_clock_skew_setting(
    own_jaeger: JaegerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")  # where others use the processors
    spans = 30_000
    trace = many(spans)
    delivery = trace.export(own_jaeger.http, max_spans=None)
    assert (delivery.sent, delivery.accepted, delivery.rejected) == (spans, spans, 0)
    check_arrived(own_jaeger, trace, delivery.trace_id)
    own_jaeger.restart(clock_skew="1s")
    check_arrived(own_jaeger, trace, delivery.trace_id)


@pytest.mark.timeout(900)
def test_a_trace_that_a_killed_jaeger_has_in_part_is_sent_again_and_there_once(
    own_jaeger: JaegerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120000")
    spans = 50_000
    trace = many(spans)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(trace.export, own_jaeger.http, max_spans=None)
        while not own_jaeger.services() and not going.done():
            time.sleep(0.01)
        own_jaeger.kill()
        with pytest.raises(xsp.ExportError, match="spans not accepted"):
            going.result(timeout=300)
    own_jaeger.start()
    delivery = trace.export(own_jaeger.http, max_spans=None)
    assert (delivery.sent, delivery.accepted, delivery.rejected) == (spans, spans, 0)
    assert edges_of_otlp(own_jaeger.otlp(delivery.trace_id)) == edges(trace)


def test_a_trace_that_is_sent_twice_is_there_once(jaeger: JaegerServer) -> None:
    trace = many(500)
    first, second = (trace.export(jaeger.http, max_spans=None) for _ in range(2))
    assert first.trace_id == second.trace_id
    check_arrived(jaeger, trace, first.trace_id)


def test_siblings_of_one_microsecond_keep_their_order(jaeger: JaegerServer) -> None:
    names = [f"aten::short{number:02}" for number in range(40)]
    below = [samples.op(name, own_ns=20) for name in names]
    trace = dated(samples.frame(samples.pipeline("predict", *below)))
    # Badger sorts by microsecond, then by id. Jaeger's own JSON has no order at all in 2.13.
    found = jaeger.otlp(trace.export(jaeger.http).trace_id)
    assert [span["name"] for span in found if attributes(span)["xsp.kind"] == "op"] == names


def test_a_search_by_service_and_tag_finds_the_trace(jaeger: JaegerServer) -> None:
    trace = dated(samples.frame(samples.resnet()))
    trace_id = trace.export(jaeger.http, max_spans=None).trace_id
    shown = jaeger.trace(trace_id)
    services = {process["serviceName"] for process in shown["processes"].values()}
    assert services <= set(jaeger.services())
    layers = {
        shown["processes"][span["processID"]]["serviceName"]
        for span in shown["spans"]
        if tags(span)["xsp.kind"] == "layer"
    }
    assert layers == {"layer"}  # as the README says
    assert trace_id in jaeger.search("layer", **{"xsp.module_class": "Conv2d"})
    assert trace_id not in jaeger.search("layer", **{"xsp.module_class": "Conv3d"})


def test_spans_with_an_error_are_marked_and_found(jaeger: JaegerServer) -> None:
    bad = samples.layer("head", "Linear", error="RuntimeError")
    trace = dated(samples.frame(samples.pipeline("predict", bad)))
    trace_id = trace.export(jaeger.http).trace_id
    shown = jaeger.trace(trace_id)
    marked = [span for span in shown["spans"] if tags(span).get("error") is True]
    assert len(marked) == 1
    assert "RuntimeError" in tags(marked[0])["otel.status_description"]
    service = shown["processes"][marked[0]["processID"]]["serviceName"]
    assert trace_id in jaeger.search(service, error="true")


def test_warnings_of_the_trace_are_told_on_its_root(jaeger: JaegerServer) -> None:
    warning = {"code": "unmatched", "message": "2 spans of the deepest run are in no other"}
    trace = dated(samples.frame(samples.pipeline("predict", samples.op("a"))), warnings=[warning])
    (root,) = (
        span
        for span in jaeger.trace(trace.export(jaeger.http).trace_id)["spans"]
        if not span["references"]
    )
    said = [field["value"] for log in root["logs"] for field in log["fields"]]
    assert warning["message"] in said
    assert warning["code"] in said


def test_odd_names_come_back(jaeger: JaegerServer) -> None:
    trace = dated(samples.frame(samples.hostile()))
    delivery = trace.export(jaeger.http, max_spans=None)
    assert delivery.accepted == len(trace)
    shown = jaeger.trace(delivery.trace_id)
    assert warnings(shown) == []
    found = " ".join(span["operationName"] for span in shown["spans"])
    for name in trace.spans["name"]:
        assert name in found


def odd() -> Trace:
    """Return a trace with attributes that encodings break on."""
    fields = {
        "user.quoted": 'say "no" & <b>\\</b>',
        "user.lines": "two\nlines\tand \x00 and \x07",
        "user.script": "層の名前 \u202e \U0001f600",
        "user.most": 2**63 - 1,
        "user.least": -(2**63),
        "user.nothing_known": math.nan,
        "user.endless": math.inf,
        "user.flags": [True, False],
        "user.long": "x" * MIB,
        "user.empty": "",
    }
    spans = samples.frame(samples.pipeline("predict", samples.op("aten::add")))
    more = [pl.Series(name, [value, None]).alias(name) for name, value in fields.items()]
    return dated(
        spans.with_columns(
            pl.struct(pl.col("attributes").struct.unnest(), *more).alias("attributes")
        )
    )


def test_odd_attributes_come_back(jaeger: JaegerServer) -> None:
    delivery = odd().export(jaeger.http)
    assert (delivery.accepted, delivery.rejected) == (2, 0)
    (shown,) = (
        tags(span) for span in jaeger.trace(delivery.trace_id)["spans"] if not span["references"]
    )
    assert shown["quoted"] == 'say "no" & <b>\\</b>'
    assert shown["lines"] == "two\nlines\tand \x00 and \x07"
    assert shown["script"] == "層の名前 \u202e \U0001f600"
    assert int(shown["most"]) == 2**63 - 1
    assert int(shown["least"]) == -(2**63)
    # One number that JSON lacks would make the whole trace unreadable in the pages.
    assert not isinstance(shown["nothing_known"], float)
    assert not isinstance(shown["endless"], float)
    # Badger has no room for 1 MiB: the beginning comes back, and says how much there was.
    assert shown["long"].startswith("x" * 8_000)
    assert not shown["long"].endswith("x")


def test_a_real_model_is_found_by_its_layers(jaeger: JaegerServer) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    batch = torch.ones(2, 8)

    def predict() -> torch.Tensor:
        with torch.inference_mode():
            return model.eval()(batch)

    trace = xsp.measure(predict, levels=2, runs=3)
    delivery = trace.export(jaeger.http, max_spans=None)
    assert delivery.accepted == delivery.sent == len(trace)
    check_arrived(jaeger, trace, delivery.trace_id)
    operations = {span["operationName"] for span in jaeger.trace(delivery.trace_id)["spans"]}
    assert {"0 Linear", "1 ReLU", "2 Linear"} <= operations
    assert "aten::addmm" in operations
