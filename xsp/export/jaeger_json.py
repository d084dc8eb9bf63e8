"""Jaeger's own JSON: what its API answers, its UI opens as a file, and Trace Compass reads.

Written as Jaeger 2 itself writes what it took in over OTLP: `internal/uimodel` of
jaegertracing/jaeger for the JSON, `pkg/translator/jaeger` of
opentelemetry-collector-contrib for the tags. Trace Compass (incubator) asks for more:
`spans` is the first array within `data[0]`, and processes are p1 … pN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from xsp import __version__
from xsp.export import literal
from xsp.export.literal import string
from xsp.export.picture import Picture, Service, Slice, Value

# A browser reads numbers as doubles; beyond this they would come out as other numbers,
# so Jaeger writes such integers as strings, and so do we.
_LARGEST_IN_A_BROWSER = 2**53 - 1


def write(picture: Picture, file: IO[bytes]) -> None:
    """Write a picture as one document in Jaeger's JSON.

    Times are whole microseconds, cut off as Jaeger does; the nanoseconds are in the
    attributes. A link keeps its span but not its relation: Jaeger knows none.

    Raises:
        OSError: The file could not be written.
    """
    trace_id = picture.trace_id.hex()
    file.write(f'{{"data":[{{"traceID":"{trace_id}","spans":[\n'.encode("ascii"))
    separator = ""
    for part in picture.slices():
        for span in _spans(picture, part):
            file.write((separator + span).encode("ascii"))
            separator = ",\n"
    processes = ",\n".join(
        f'"p{number}":{_process(service)}' for number, service in enumerate(picture.services, 1)
    )
    file.write(f'\n],"processes":{{\n{processes}}},"warnings":null}}],'.encode("ascii"))
    file.write(b'"total":0,"limit":0,"offset":0,"errors":null}\n')


def _process(service: Service) -> str:
    others = {key: value for key, value in service.attributes.items() if key != "service.name"}
    return f'{{"serviceName":{string(service.name)},"tags":[{literal.listed(others, _tag)}]}}'


def _spans(picture: Picture, part: Slice) -> Iterator[str]:
    trace = f'"traceID":"{picture.trace_id.hex()}"'
    state = _state_tag(picture.trace_state)
    tags = literal.attributes(part.spans, _tag)
    logs, links = _logs(part), _links(part)
    for row, values in enumerate(part.spans.select(literal.COLUMNS).iter_rows()):
        span_id, parent, service, name, start, end, error = values
        child_of = f'{{"refType":"CHILD_OF",{trace},"spanID":"{parent:016x}"}}' if parent else ""
        references = ",".join(filter(None, (child_of, links.get(row))))
        spoken = ",".join(
            filter(None, (_SCOPE_TAGS, tags[row], _KIND_TAG, _error_tags(error), state))
        )
        yield (
            f'{{{trace},"spanID":"{span_id:016x}","flags":1,"operationName":{string(name)},'
            f'"references":[{references}],"startTime":{start // 1000},'
            f'"duration":{max(0, end - start) // 1000},"tags":[{spoken}],'
            f'"logs":[{logs.get(row, "")}],"processID":"p{service + 1}","warnings":null}}'
        )


def _state_tag(state: str) -> str:
    return literal.listed({"w3c.tracestate": state}, _tag) if state else ""


def _error_tags(error: str | None) -> str:
    if error is None:
        return ""
    tags: dict[str, Value] = {"otel.status_code": "ERROR", "error": True}
    if error:
        tags["otel.status_description"] = error
    return literal.listed(tags, _tag)


def _logs(part: Slice) -> dict[int, str]:
    return literal.by_row(
        (
            row,
            f'{{"timestamp":{at // 1000},'
            f'"fields":[{literal.listed({"event": name, "message": message}, _tag)}]}}',
        )
        for row, at, name, message in part.events.iter_rows()
    )


def _links(part: Slice) -> dict[int, str]:
    return literal.by_row(
        (
            row,
            f'{{"refType":"FOLLOWS_FROM","traceID":"{trace_id.hex()}","spanID":"{span_id:016x}"}}',
        )
        for row, trace_id, span_id, _ in part.links.iter_rows()
    )


def _tag(key: str, value: Value) -> str:
    kind, written = _typed(value)
    return f'{{"key":{key},"type":"{kind}","value":{written}}}'


def _typed(value: Value) -> tuple[str, str]:
    """Return Jaeger's name for a value's type, and the value as JSON."""
    if isinstance(value, str):
        return "string", string(value)
    if isinstance(value, bool):
        return "bool", literal.plain(value)
    if isinstance(value, int):
        exact = abs(value) <= _LARGEST_IN_A_BROWSER
        return "int64", str(value) if exact else f'"{value}"'
    if isinstance(value, float):
        return "float64", literal.number(value)
    # Jaeger has no lists: it keeps their JSON as text.
    return "string", string(literal.plain(value))


_SCOPE_TAGS = literal.listed({"otel.scope.name": "xsp", "otel.scope.version": __version__}, _tag)
_KIND_TAG = literal.listed({"span.kind": "internal"}, _tag)
