"""Encodes spans as OTLP (https://opentelemetry.io/docs/specs/otlp/), in protobuf or in JSON.

The messages are those of `opentelemetry-proto`, filled as the OpenTelemetry SDK fills them: for
the same spans the bytes are equal.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from xsp import __version__
from xsp.show.export.label import json_of
from xsp.show.export.picture import Picture, Slice, Value
from xsp.trace import SCHEMA_URL

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

# Servers take 4 MiB by default, and a proxy like nginx 1 MiB. A store that is busy writing may
# need the whole timeout for more.
MOST_BYTES = 1024 * 1024
# A span with its attributes takes some 600 bytes.
_ROWS = 1024
_ID_BYTES = 8
_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some spans, ready to be sent.

    Attributes:
        body: An encoded ExportTraceServiceRequest.
        spans: Number of spans in the request.
    """

    body: bytes
    spans: int


def chunks(picture: Picture, most_bytes: int = MOST_BYTES) -> Iterator[Chunk]:
    """Yield the spans of a picture in requests, each span once and in order.

    Args:
        picture: The picture; one slice of it is held in memory at a time.
        most_bytes: Most bytes of a body. A larger span has a chunk of its own.
    """
    first = True
    for part in picture.slices(_ROWS):
        yield from _chunks(picture, part, most_bytes, first=first)
        first = False


def _chunks(picture: Picture, part: Slice, most_bytes: int, *, first: bool) -> Iterator[Chunk]:
    height = part.spans.height
    body = request(picture, part, first=first).SerializeToString()
    if len(body) <= most_bytes or height == 1:
        yield Chunk(body, height)
        return
    half = height // 2
    yield from _chunks(picture, part.cut(0, half), most_bytes, first=first)
    yield from _chunks(picture, part.cut(half, height), most_bytes, first=False)


def write_json(picture: Picture, file: IO[bytes]) -> None:
    """Write a picture as one document of OTLP's JSON, a slice at a time.

    The spans of a slice are grouped by service, so each slice names a service at most once.

    Raises:
        OSError: The file could not be written.
    """
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    file.write(b'{"resourceSpans":[')
    separator = b""
    for number, part in enumerate(picture.slices(_ROWS)):
        for group in request(picture, part, first=number == 0).resource_spans:
            message = MessageToDict(group, use_integers_for_enums=True)
            for span in message["scopeSpans"][0]["spans"]:
                for owner in (span, *span.get("links", ())):
                    # OTLP departs from protobuf's JSON, which has bytes in base64.
                    owner |= {
                        key: base64.b64decode(owner[key]).hex() for key in _IDS if key in owner
                    }
            file.write(separator + json_of(message))
            separator = b",\n"
    file.write(b"]}\n")


def request(picture: Picture, part: Slice, *, first: bool) -> ExportTraceServiceRequest:
    """Return the request that sends a slice, its spans grouped by service.

    Args:
        picture: The picture that the slice is of.
        part: The slice.
        first: Whether the slice begins with the root, whose parent is the caller's span.
    """
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )
    from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status  # noqa: PLC0415

    known = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
    remote = known | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
    unset, failed = Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR
    made = ExportTraceServiceRequest()
    scopes: dict[int, Any] = {}
    for at, row in enumerate(part.rows()):
        if row.service not in scopes:
            resource = picture.services[row.service].attributes
            group = made.resource_spans.add()
            _fill(group.resource.attributes, resource)
            scope = group.scope_spans.add(schema_url=SCHEMA_URL)
            scope.scope.name, scope.scope.version = "xsp", __version__
            scopes[row.service] = scope
        parent = row.parent_span_id
        span = scopes[row.service].spans.add(
            trace_id=picture.trace_id,
            span_id=row.span_id.to_bytes(_ID_BYTES, "big"),
            trace_state=picture.trace_state,
            parent_span_id=parent.to_bytes(_ID_BYTES, "big") if parent else b"",
            flags=remote if parent and first and at == 0 else known,
            name=row.name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=row.start_unix_ns,
            end_time_unix_nano=row.end_unix_ns,
            status=Status(message=row.error or "", code=unset if row.error is None else failed),
        )
        _fill(span.attributes, row.attributes)
        for unix_ns, name, message in row.events:
            event = span.events.add(time_unix_nano=unix_ns, name=name)
            _fill(event.attributes, {"message": message})
        for trace_id, other, relation in row.links:
            link = span.links.add(
                trace_id=trace_id, span_id=other.to_bytes(_ID_BYTES, "big"), flags=known
            )
            _fill(link.attributes, {"xsp.relation": relation})
    return made


def _fill(target: Any, attributes: Mapping[str, Value]) -> None:
    for key, held in attributes.items():
        value = target.add(key=key).value
        if isinstance(held, str):
            value.string_value = held
        elif isinstance(held, bool):
            value.bool_value = held
        elif isinstance(held, int):
            value.int_value = held
        elif isinstance(held, float):
            value.double_value = held
        else:
            value.array_value.SetInParent()
            for item in held:
                value.array_value.values.add(string_value=item)
