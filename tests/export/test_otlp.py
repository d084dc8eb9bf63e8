from __future__ import annotations

import base64
import io
import json
from itertools import islice
from typing import Any

import pytest
import samples
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sketch import picture, pictures, some, told

from xsp.show.export.otlp import Chunk, chunks, write_json
from xsp.show.export.picture import Picture
from xsp.show.export.sdk import hand_over


def spans_in(chunk: Chunk) -> list[Span]:
    """The spans of a request, as a receiver reads them."""
    return [
        span
        for group in ExportTraceServiceRequest.FromString(chunk.body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def texts(*sizes: int) -> Picture:
    """A picture of spans that have texts of these sizes."""
    spans = [told(at, attributes={"xsp.text": "x" * size}) for at, size in enumerate(sizes, 1)]
    return picture(*spans, rows=50)


def ids(sent: list[Chunk]) -> list[list[int]]:
    return [[int.from_bytes(span.span_id, "big") for span in spans_in(chunk)] for chunk in sent]


# Protobuf


@some
@given(pictures())
def test_bytes_are_those_of_the_encoder_of_the_sdk(drawn: Picture) -> None:
    exporter = InMemorySpanExporter()
    hand_over([drawn], exporter)
    spans = iter(exporter.get_finished_spans())
    for chunk in chunks(drawn):
        theirs = encode_spans(list(islice(spans, chunk.spans)))
        assert chunk.body == theirs.SerializeToString()
    assert next(spans, None) is None


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=120),
    st.integers(1, 6_000),
)
def test_chunks_stay_below_the_limit_and_hold_every_span_once_in_order(
    sizes: list[int], most_bytes: int
) -> None:
    sent = list(chunks(texts(*sizes), most_bytes))
    assert all(len(chunk.body) <= most_bytes or chunk.spans == 1 for chunk in sent)
    assert [chunk.spans for chunk in sent] == [len(held) for held in ids(sent)]
    assert [number for held in ids(sent) for number in held] == list(range(1, len(sizes) + 1))


def test_resource_of_bytes_that_were_not_text_is_readable_by_receivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a\udcff")
    exporter = InMemorySpanExporter()
    samples.trace(samples.resnet()).export(exporter)
    assert exporter.get_finished_spans()[0].resource.attributes["team"] == "a\\udcff"


# JSON


def document(drawn: Picture) -> Any:
    def refused(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    file = io.BytesIO()
    write_json(drawn, file)
    return json.loads(file.getvalue(), parse_constant=refused)


def proto3(node: Any) -> Any:
    """Return OTLP's JSON as that of proto3, whose bytes are base64 and not hexadecimal."""
    if isinstance(node, list):
        return [proto3(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else proto3(value)
        for key, value in node.items()
    }


@some
@given(pictures())
def test_json_says_what_the_bytes_say(drawn: Picture) -> None:
    read = TracesData()
    json_format.ParseDict(proto3(document(drawn)), read)
    assert read.SerializeToString() == b"".join(chunk.body for chunk in chunks(drawn))
