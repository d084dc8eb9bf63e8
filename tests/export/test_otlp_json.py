from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData
from sketch import (
    OTHER_TRACE,
    SERVICES,
    TRACE_ID,
    Told,
    comparable,
    picture,
    pictures,
    some,
    spans_of,
    told,
    told_attributes,
)

import xsp
from xsp.export import otlp_json
from xsp.export.picture import Picture
from xsp.trace.attribute import SCHEMA_URL

_IDS = ("traceId", "spanId", "parentSpanId")


def refused(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def document(drawn: Picture) -> Any:
    file = io.BytesIO()
    otlp_json.write(drawn, file)
    return json.loads(file.getvalue(), parse_constant=refused)


def proto3(node: Any) -> Any:
    """Return OTLP's JSON as that of proto3, whose bytes are base64 and not hexadecimal."""
    if isinstance(node, list):
        return [proto3(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode() if key in _IDS else proto3(value)
        for key, value in node.items()
    }


def message(drawn: Picture) -> TracesData:
    read = TracesData()
    json_format.ParseDict(proto3(document(drawn)), read)
    return read


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, str(kind))


def mapping(pairs: Any) -> dict[str, Any]:
    found: list[KeyValue] = list(pairs)
    read = {pair.key: comparable(plain(pair.value)) for pair in found}
    assert len(read) == len(found)
    return read


def read(span: Span, service: str) -> Told:
    failed = span.status.code == Status.STATUS_CODE_ERROR
    return Told(
        int.from_bytes(span.span_id, "big"),
        int.from_bytes(span.parent_span_id, "big"),
        service,
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message if failed else None,
        mapping(span.attributes),
        tuple((e.time_unix_nano, e.name, plain(e.attributes[0].value)) for e in span.events),
        tuple(
            (k.trace_id, int.from_bytes(k.span_id, "big"), plain(k.attributes[0].value))
            for k in span.links
        ),
    )


def everything(drawn: Picture) -> list[Told]:
    return [
        read(span, mapping(group.resource.attributes)["service.name"][1].strip("'"))
        for group in message(drawn).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


@some
@given(pictures())
def test_every_span_comes_back_as_it_was(drawn: Picture) -> None:
    expected = {
        span.span_id: Told(**{**vars(span), "attributes": told_attributes(span)})
        for span in spans_of(drawn)
    }
    found = everything(drawn)
    assert {span.span_id: span for span in found} == expected
    assert len(found) == len(expected)


@some
@given(pictures())
def test_all_spans_are_in_the_trace_sampled_and_internal(drawn: Picture) -> None:
    for group in message(drawn).resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                assert (span.trace_id, span.flags, span.kind) == (TRACE_ID, 1, 1)
                assert span.trace_state == drawn.trace_state


def test_the_json_is_that_of_the_specification() -> None:
    span = told(0xAB, 0xCD, attributes={"xsp.count": 7}, error="bad")
    [group] = document(picture(span))["resourceSpans"]
    [scope] = group["scopeSpans"]
    assert scope["scope"] == {"name": "xsp", "version": xsp.__version__}
    assert scope["schemaUrl"] == SCHEMA_URL
    assert scope["spans"] == [
        {
            "traceId": TRACE_ID.hex(),
            "flags": 1,
            "spanId": "00000000000000ab",
            "parentSpanId": "00000000000000cd",
            "name": "span 171",
            "kind": 1,
            "startTimeUnixNano": "1700000000000000171",
            "endTimeUnixNano": "1700000000000001171",
            "attributes": [{"key": "xsp.count", "value": {"intValue": "7"}}],
            "status": {"message": "bad", "code": 2},
        }
    ]


def test_a_root_has_no_parent_and_a_sound_span_no_status() -> None:
    [group] = document(picture(told()))["resourceSpans"]
    [span] = group["scopeSpans"][0]["spans"]
    assert not {"parentSpanId", "status", "events", "links", "traceState"} & span.keys()


def test_spans_are_grouped_by_service_within_a_slice() -> None:
    spans = [told(n, service=("model", "framework")[n % 2]) for n in range(1, 9)]
    groups = document(picture(*spans, rows=4))["resourceSpans"]
    assert [len(group["scopeSpans"][0]["spans"]) for group in groups] == [2, 2, 2, 2]
    attributes = message(picture(*spans)).resource_spans[0].resource.attributes
    assert mapping(attributes) == {
        key: comparable(value) for key, value in SERVICES[1].attributes.items()
    }


def test_a_link_says_how_it_is_related() -> None:
    [span] = everything(picture(told(links=((OTHER_TRACE, 5, "launch"),))))
    assert span.links == ((OTHER_TRACE, 5, "launch"),)


def test_no_spans_are_an_empty_document() -> None:
    assert document(picture()) == {"resourceSpans": []}


def test_a_file_that_cannot_be_written_is_an_error() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        otlp_json.write(picture(told()), Full())
