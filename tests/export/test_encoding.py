from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
import samples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pictures import (
    SERVICES,
    TEXT,
    TEXTS,
    TRACE_ID,
    VALUES,
    any_value,
    drawn,
    expected,
    key_values,
    plain,
    slice_of,
    slices,
    span,
    written,
)

import xsp
from xsp.export.otlp.encoding import MOST_BYTES, Chunk, attribute, chunks, column, encode_spans
from xsp.export.picture import Picture, Service, Slice
from xsp.export.reduction import reduce
from xsp.trace.attribute import SCHEMA_URL


def received(*sent: Chunk) -> list[tuple[str, Span]]:
    """The spans of chunks with their services, as a receiver reads them."""
    return [
        (resource_spans.resource.attributes[0].value.string_value, one)
        for chunk in sent
        for resource_spans in ExportTraceServiceRequest.FromString(chunk.body).resource_spans
        for scope_spans in resource_spans.scope_spans
        for one in scope_spans.spans
    ]


def numbers(sent: Sequence[Chunk]) -> list[list[int]]:
    return [[int.from_bytes(one.span_id, "big") for _, one in received(chunk)] for chunk in sent]


@settings(deadline=None)
@given(st.lists(slices(), max_size=3), st.sampled_from(["", "vendor=1,other=2"]))
def test_every_field_of_every_span_arrives(parts: list[Slice], trace_state: str) -> None:
    picture = drawn(*parts, trace_state=trace_state)
    sent = list(chunks(picture))
    assert sum(chunk.spans for chunk in sent) == picture.height
    wanted = written(expected(picture))
    order = {service.name: at for at, service in enumerate(SERVICES)}
    by_service = {name: [one for one in wanted if one[0] == name] for name in order}
    came = written(received(*sent))
    assert {name: [one for one in came if one[0] == name] for name in order} == by_service


def test_request_is_the_one_that_protobuf_writes() -> None:
    picture = plain(5, text="same", services=1)
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add(
        resource=Resource(attributes=key_values(dict(SERVICES[0].attributes)))
    )
    scope_spans = resource_spans.scope_spans.add(
        scope=InstrumentationScope(name="xsp", version=xsp.__version__), schema_url=SCHEMA_URL
    )
    scope_spans.spans.extend(one for _, one in expected(picture))
    assert [chunk.body for chunk in chunks(picture)] == [request.SerializeToString()]


def test_services_share_a_request_and_keep_their_resources() -> None:
    (chunk,) = chunks(plain(7))
    request = ExportTraceServiceRequest.FromString(chunk.body)
    assert [len(one.scope_spans[0].spans) for one in request.resource_spans] == [3, 2, 2]
    for one, service in zip(request.resource_spans, SERVICES, strict=True):
        assert list(one.resource.attributes) == key_values(dict(service.attributes))


def test_resource_of_bytes_that_were_not_text_is_readable_by_receivers() -> None:
    service = Service("model", {"service.name": "model", "process.command": "a\udcff"})
    picture = drawn(slice_of([span(1)]), services=(service,))
    request = ExportTraceServiceRequest.FromString(next(chunks(picture)).body)
    assert request.resource_spans[0].resource.attributes[1].value.string_value == "a\\udcff"


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.integers(1, 6_000),
    st.integers(1, 60),
    st.integers(1, 3),
)
def test_chunks_stay_below_the_limit_and_hold_every_span_once_in_order(
    sizes: list[int], most_bytes: int, rows: int, services: int
) -> None:
    spans = [
        span(i + 1, service=i % services, **{"attr.text": "x" * size})
        for i, size in enumerate(sizes)
    ]
    parts = [slice_of(spans[at : at + rows], attributes=TEXTS) for at in range(0, len(spans), rows)]
    sent = list(chunks(drawn(*parts), most_bytes))
    assert all(len(chunk.body) <= most_bytes or chunk.spans == 1 for chunk in sent)
    held = numbers(sent)
    assert [chunk.spans for chunk in sent] == [len(one) for one in held]
    assert [number for one in held for number in sorted(one)] == list(range(1, len(sizes) + 1))


def test_chunks_are_nearly_full() -> None:
    sent = list(chunks(plain(2_000, text="x" * 100), 50_000))
    assert all(len(chunk.body) > 49_000 for chunk in sent[:-1])


def test_span_above_the_limit_has_a_chunk_of_its_own() -> None:
    spans = [span(i, **{"attr.text": "x" * (1_000_000 if i == 3 else 10)}) for i in range(1, 6)]
    sent = list(chunks(drawn(slice_of(spans, attributes=TEXTS)), 100_000))
    assert numbers(sent) == [[1, 2], [3], [4, 5]]


def test_default_limit_is_below_that_of_grpc() -> None:
    sent = list(chunks(plain(9_000, text="y" * 1_000)))
    assert len(sent) > 3
    assert all(len(chunk.body) <= MOST_BYTES < 4 * 2**20 for chunk in sent)


@pytest.mark.parametrize("parts", [(), (slice_of([]),)])
def test_picture_without_spans_gives_no_chunk(parts: tuple[Slice, ...]) -> None:
    assert list(chunks(drawn(*parts))) == []


def test_single_span_is_one_chunk() -> None:
    (chunk,) = chunks(plain(1))
    assert written(received(chunk)) == written(expected(plain(1)))


@settings(deadline=None)
@given(st.integers(2, 40))
def test_span_keeps_its_many_events_in_order(count: int) -> None:
    events = [{"row": 1, "unix_ns": i + 1, "name": "e", "message": str(i)} for i in range(count)]
    (chunk,) = chunks(drawn(slice_of([span(1), span(2)], events)))
    first, second = (one for _, one in received(chunk))
    assert not first.events
    assert [one.attributes[0].value for one in second.events] == [
        AnyValue(string_value=str(i)) for i in range(count)
    ]


def test_memory_is_bounded_by_the_chunk_and_not_by_the_trace() -> None:
    part = slice_of(
        [span(i, **{"attr.text": f"text {i}"}) for i in range(1, 1_001)], attributes=TEXTS
    )
    most_bytes = 100_000

    def peak(slices: int) -> int:
        tracemalloc.start()
        try:
            for chunk in chunks(drawn(*[part] * slices), most_bytes):
                del chunk
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    assert peak(20) < 1.2 * peak(2)


def test_long_texts_are_encoded_a_few_spans_at_a_time() -> None:
    text, count = "x" * 2**20, 96
    part = slice_of(
        [span(i + 1, service=i % 3, **{"attr.text": text}) for i in range(count)],
        [{"row": i, "unix_ns": 1, "name": "e", "message": str(i)} for i in range(count)],
        [{"row": i, "trace_id": bytes(16), "span_id": i + 1} for i in range(count)],
        attributes=TEXTS,
    )
    tracemalloc.start()
    try:
        sent = [received(chunk) for chunk in chunks(drawn(part))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    spans = sorted((int.from_bytes(one.span_id, "big"), one) for part in sent for _, one in part)
    assert [number for number, _ in spans] == list(range(1, count + 1))
    for number, one in spans:
        assert one.events[0].attributes[0].value.string_value == str(number - 1)
        assert one.links[0].span_id == one.span_id
    assert peak < 64 * 2**20


@settings(deadline=None)
@given(slices().filter(lambda part: part.spans.height > 0))
def test_bytes_of_a_span_are_those_that_protobuf_writes(part: Slice) -> None:
    theirs = [one for _, one in written(expected(drawn(part)))]
    assert encode_spans(part, TRACE_ID) == theirs


# Attributes


def attribute_field(key: str, value: Any) -> bytes:
    """What protobuf itself writes for a message whose field 1 is this attribute."""
    if value is None:
        return b""
    written: bytes = Resource(
        attributes=[KeyValue(key=key, value=any_value(value))]
    ).SerializeToString()
    return written


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@settings(deadline=None)
@given(data=st.data(), key=TEXT.filter(bool) | st.just("k" * 200))
def test_column_is_what_protobuf_writes(dtype: Any, data: st.DataObject, key: str) -> None:
    values = data.draw(st.lists(st.none() | VALUES[dtype], min_size=1, max_size=12))
    encoded = column(1, key, pl.Series(values, dtype=dtype))
    assert encoded == [attribute_field(key, value) for value in values]


@settings(deadline=None)
@given(st.one_of(TEXT, st.booleans(), VALUES[pl.Int64], st.floats(), st.lists(TEXT)))
@example(2**63 - 1)
@example(-(2**63))
def test_single_attribute_is_what_protobuf_writes(value: Any) -> None:
    assert attribute(1, "key", value) == attribute_field("key", value)


def test_values_that_are_equal_but_not_the_same_stay_apart() -> None:
    numbers = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0]
    encoded = column(1, "key", pl.Series(numbers))
    assert encoded == [attribute_field("key", number) for number in numbers]
    assert len(set(encoded)) == len(numbers)


def test_megabyte_of_text_with_zero_bytes_arrives_whole() -> None:
    text = "a\0é" * 300_000
    assert column(1, "key", pl.Series([text])) == [attribute_field("key", text)]


def test_reasons_why_a_latency_is_not_exact_are_sent() -> None:
    unsure = samples.op("unsure")
    unsure.attributes |= samples.inexact("carried", "few")
    trace = samples.trace(samples.pipeline("net", samples.op("sure"), unsure))
    sent = received(*chunks(Picture(reduce(trace.spans, None), trace.metadata)))
    told = [
        (span.name, one.value.string_value)
        for _, span in sent
        for one in span.attributes
        if one.key == "xsp.inexact"
    ]
    assert told == [("unsure", "carried, few")]
