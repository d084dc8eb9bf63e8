"""OTLP as JSON: a picture in, an `ExportTraceServiceRequest` that OTLP receivers take out.

The classes are the messages of opentelemetry/proto (trace/v1/trace.proto and
common/v1/common.proto), field by field. The document follows the OTLP specification: the
proto3 JSON mapping with ids in hexadecimal, field names in lowerCamelCase, enumerations as
numbers and 64-bit integers as decimal strings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import msgspec

from xsp import __version__
from xsp.export import label
from xsp.export.picture import Picture, Slice, Value
from xsp.trace import SCHEMA_URL

# Spans that are objects at the same time: some 4 KB each.
_ROWS = 1024
_SCOPE = {"name": "xsp", "version": __version__}
_KIND_INTERNAL, _STATUS_ERROR, _SAMPLED = 1, 2, 1


# Most objects of a document are these; none is part of a cycle that had to be collected.
class _Message(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    pass


class _Text(_Message):
    string_value: str


class _Boolean(_Message):
    bool_value: bool


class _Integer(_Message):
    int_value: str


class _Double(_Message):
    double_value: float | str


class _Values(_Message):
    values: list[_Text]


class _Array(_Message):
    array_value: _Values


class _KeyValue(_Message):
    key: str
    value: _Text | _Boolean | _Integer | _Double | _Array


class _Event(_Message):
    time_unix_nano: str
    name: str
    attributes: list[_KeyValue]


class _Link(_Message):
    trace_id: str
    span_id: str
    attributes: list[_KeyValue]
    flags: int


class _Status(_Message):
    message: str
    code: int


class _Span(_Message):
    trace_id: str
    span_id: str
    name: str
    kind: int
    flags: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: list[_KeyValue]
    parent_span_id: str | None = None
    trace_state: str = ""
    events: list[_Event] | None = None
    links: list[_Link] | None = None
    status: _Status | None = None


def write(picture: Picture, file: IO[bytes]) -> None:
    """Write a picture as one OTLP/JSON document, a slice at a time.

    The spans of a slice are grouped by service, so each slice names a service at most once.

    Raises:
        OSError: The file could not be written.
    """
    file.write(b'{"resourceSpans":[')
    separator = b""
    for part in picture.slices(_ROWS):
        for group in _resource_spans(picture, part):
            file.write(separator + label.json_of(group))
            separator = b",\n"
    file.write(b"]}\n")


def _resource_spans(picture: Picture, part: Slice) -> Iterator[dict[str, Any]]:
    """Yield one `ResourceSpans` per service of a slice."""
    spans = defaultdict(list)
    for service, span in zip(part.spans["service"], _spans(picture, part), strict=True):
        spans[service].append(span)
    for service, members in spans.items():
        scope = {"scope": _SCOPE, "schemaUrl": SCHEMA_URL, "spans": members}
        resource = {"attributes": _attributes(picture.services[service].attributes)}
        yield {"resource": resource, "scopeSpans": [scope]}


def _spans(picture: Picture, part: Slice) -> Iterator[_Span]:
    trace_id, events, links = picture.trace_id.hex(), _events(part), _links(part)
    for row, (fields, attributes) in enumerate(part.rows()):
        span_id, parent, _, name, start, end, error = fields
        yield _Span(
            trace_id,
            f"{span_id:016x}",
            name,
            _KIND_INTERNAL,
            _SAMPLED,
            str(start),
            str(end),
            _attributes(attributes),
            parent_span_id=f"{parent:016x}" if parent else None,
            trace_state=picture.trace_state,
            events=events.get(row),
            links=links.get(row),
            status=None if error is None else _Status(error, _STATUS_ERROR),
        )


def _events(part: Slice) -> Mapping[int, list[_Event]]:
    """Return the events of each span, by row."""
    events = defaultdict(list)
    for row, at, name, message in part.events.iter_rows():
        events[row].append(_Event(str(at), name, _attributes({"message": message})))
    return events


def _links(part: Slice) -> Mapping[int, list[_Link]]:
    """Return the links of each span, by row."""
    links = defaultdict(list)
    for row, trace_id, span_id, relation in part.links.iter_rows():
        told = _attributes({"xsp.relation": relation})
        links[row].append(_Link(trace_id.hex(), f"{span_id:016x}", told, _SAMPLED))
    return links


def _attributes(pairs: Mapping[str, Value]) -> list[_KeyValue]:
    return [_key_value(key, value) for key, value in pairs.items()]


def _key_value(key: str, value: Value) -> _KeyValue:
    return _KeyValue(key, _VALUES[type(value)](value))


_VALUES: dict[type, Callable[[Any], _Text | _Boolean | _Integer | _Double | _Array]] = {
    str: _Text,
    bool: _Boolean,
    int: lambda value: _Integer(str(value)),
    float: lambda value: _Double(label.finite(value)),
    list: lambda value: _Array(_Values([_Text(item) for item in value])),
}
