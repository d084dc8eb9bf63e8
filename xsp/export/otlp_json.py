"""OTLP as JSON: a trace as one `ExportTraceServiceRequest` that any OTLP receiver takes.

Written as the OTLP specification says: the proto3 JSON mapping with ids in
hexadecimal, field names in lowerCamelCase, enumerations as numbers, 64-bit integers
as decimal strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from xsp import __version__
from xsp.export import literal
from xsp.export.literal import string
from xsp.export.picture import Picture, Service, Slice, Value
from xsp.trace import SCHEMA_URL

_KIND_INTERNAL = 1
_STATUS_ERROR = 2
_SAMPLED = 1


def write(picture: Picture, file: IO[bytes]) -> None:
    """Write a picture as one OTLP/JSON document.

    Spans stay in slices: within each they are grouped by service, so a service comes
    once per slice, and no more than a slice is held in memory.

    Raises:
        OSError: The file could not be written.
    """
    file.write(b'{"resourceSpans":[')
    separator = b""
    for part in picture.slices():
        for group in _groups(picture, part):
            file.write(separator + group.encode("ascii"))
            separator = b",\n"
    file.write(b"]}\n")


def _groups(picture: Picture, part: Slice) -> Iterator[str]:
    """Yield one `ResourceSpans` per service of a slice."""
    spans: dict[int, list[str]] = {}
    for service, span in zip(part.spans["service"], _spans(picture, part), strict=True):
        spans.setdefault(service, []).append(span)
    for service, written in spans.items():
        yield (
            f'{{"resource":{_resource(picture.services[service])},"scopeSpans":[{{{_SCOPE},'
            f'"spans":[\n{",".join(written)}]}}]}}'
        )


def _resource(service: Service) -> str:
    return f'{{"attributes":[{literal.listed(service.attributes, _attribute)}]}}'


_SCOPE = (
    f'"scope":{{"name":"xsp","version":{string(__version__)}}},"schemaUrl":{string(SCHEMA_URL)}'
)


def _spans(picture: Picture, part: Slice) -> Iterator[str]:
    state = f'"traceState":{string(picture.trace_state)},' if picture.trace_state else ""
    head = f'{{"traceId":"{picture.trace_id.hex()}",{state}"flags":{_SAMPLED},'
    attributes = literal.attributes(part.spans, _attribute)
    events, links = _events(part), _links(part)
    for row, values in enumerate(part.spans.select(literal.COLUMNS).iter_rows()):
        span_id, parent, _, name, start, end, error = values
        yield (
            f'{head}"spanId":"{span_id:016x}",'
            + (f'"parentSpanId":"{parent:016x}",' if parent else "")
            + f'"name":{string(name)},"kind":{_KIND_INTERNAL},"startTimeUnixNano":"{start}",'
            f'"endTimeUnixNano":"{end}","attributes":[{attributes[row]}]'
            + (f',"events":[{events[row]}]' if row in events else "")
            + (f',"links":[{links[row]}]' if row in links else "")
            + (f',"status":{_status(error)}}}\n' if error is not None else "}\n")
        )


def _status(error: str) -> str:
    return f'{{"message":{string(error)},"code":{_STATUS_ERROR}}}'


def _events(part: Slice) -> dict[int, str]:
    return literal.by_row(
        (
            row,
            f'{{"timeUnixNano":"{at}","name":{string(name)},'
            f'"attributes":[{_said("message", message)}]}}',
        )
        for row, at, name, message in part.events.iter_rows()
    )


def _links(part: Slice) -> dict[int, str]:
    return literal.by_row(
        (
            row,
            f'{{"traceId":"{trace_id.hex()}","spanId":"{span_id:016x}",'
            f'"attributes":[{_said("xsp.relation", relation)}],"flags":{_SAMPLED}}}',
        )
        for row, trace_id, span_id, relation in part.links.iter_rows()
    )


def _said(key: str, text: str) -> str:
    return literal.listed({key: text}, _attribute)


def _attribute(key: str, value: Value) -> str:
    return f'{{"key":{key},"value":{_any_value(value)}}}'


def _any_value(value: Value) -> str:
    if isinstance(value, str):
        return f'{{"stringValue":{string(value)}}}'
    if isinstance(value, bool):
        return f'{{"boolValue":{literal.plain(value)}}}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{literal.number(value)}}}'
    return f'{{"arrayValue":{{"values":[{",".join(map(_any_value, value))}]}}}}'
