"""OTLP as JSON: a trace as one `ExportTraceServiceRequest` that any OTLP receiver takes.

Written as the OTLP specification says: the proto3 JSON mapping with ids in
hexadecimal, field names in lowerCamelCase, enumerations as numbers, 64-bit integers
as decimal strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from xsp import __version__
from xsp.export import label
from xsp.export.picture import Picture, Slice, Value
from xsp.trace import SCHEMA_URL

# Spans that are dictionaries at the same time: some 20 KB each.
_ROWS = 1024
_KIND_INTERNAL = 1
_STATUS_ERROR = 2
_SAMPLED = 1
_SCOPE = {"name": "xsp", "version": __version__}


def write(picture: Picture, file: IO[bytes]) -> None:
    """Write a picture as one OTLP/JSON document.

    Spans stay in slices: within each they are grouped by service, so a service comes
    once per slice, and no more than a slice is held in memory.

    Raises:
        OSError: The file could not be written.
    """
    file.write(b'{"resourceSpans":[')
    separator = b""
    for part in picture.slices(_ROWS):
        for group in _groups(picture, part):
            file.write(separator + label.json_of(group))
            separator = b",\n"
    file.write(b"]}\n")


def _groups(picture: Picture, part: Slice) -> Iterator[dict[str, Any]]:
    """Yield one `ResourceSpans` per service of a slice."""
    spans: dict[int, list[dict[str, Any]]] = {}
    for service, span in zip(part.spans["service"], _spans(picture, part), strict=True):
        spans.setdefault(service, []).append(span)
    for service, members in spans.items():
        scope = {"scope": _SCOPE, "schemaUrl": SCHEMA_URL, "spans": members}
        resource = {"attributes": _attributes(picture.services[service].attributes)}
        yield {"resource": resource, "scopeSpans": [scope]}


def _spans(picture: Picture, part: Slice) -> Iterator[dict[str, Any]]:
    events, links = _events(part), _links(part)
    for row, (fixed, attributes) in enumerate(part.rows()):
        span_id, parent, _, name, start, end, error = fixed
        span = {
            "traceId": picture.trace_id.hex(),
            "traceState": picture.trace_state or None,
            "flags": _SAMPLED,
            "spanId": f"{span_id:016x}",
            "parentSpanId": f"{parent:016x}" if parent else None,
            "name": name,
            "kind": _KIND_INTERNAL,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": _attributes(attributes),
            "events": events.get(row),
            "links": links.get(row),
            "status": None if error is None else {"message": error, "code": _STATUS_ERROR},
        }
        yield {field: value for field, value in span.items() if value is not None}


def _events(part: Slice) -> dict[int, list[dict[str, Any]]]:
    events: dict[int, list[dict[str, Any]]] = {}
    for row, at, name, message in part.events.iter_rows():
        event = {"timeUnixNano": str(at), "name": name}
        events.setdefault(row, []).append(event | {"attributes": _attributes({"message": message})})
    return events


def _links(part: Slice) -> dict[int, list[dict[str, Any]]]:
    links: dict[int, list[dict[str, Any]]] = {}
    for row, trace_id, span_id, relation in part.links.iter_rows():
        link = {"traceId": trace_id.hex(), "spanId": f"{span_id:016x}", "flags": _SAMPLED}
        related = _attributes({"xsp.relation": relation})
        links.setdefault(row, []).append(link | {"attributes": related})
    return links


def _attributes(pairs: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in pairs.items()]


def _any_value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": label.finite(value)}
    return {"arrayValue": {"values": [_any_value(item) for item in value]}}
