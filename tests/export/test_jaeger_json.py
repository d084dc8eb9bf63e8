from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from sketch import (
    OTHER_TRACE,
    TRACE_ID,
    Told,
    comparable,
    picture,
    pictures,
    some,
    spans_of,
    told,
)

import xsp
from xsp.export import jaeger_json
from xsp.export.picture import Picture

_OURS = {
    "otel.scope.name",
    "otel.scope.version",
    "span.kind",
    "otel.status_code",
    "otel.status_description",
    "error",
    "w3c.tracestate",
}


def refused(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def text(drawn: Picture) -> bytes:
    file = io.BytesIO()
    jaeger_json.write(drawn, file)
    return file.getvalue()


def trace(drawn: Picture) -> Any:
    document = json.loads(text(drawn), parse_constant=refused)
    assert document["errors"] is None
    [only] = document["data"]
    return only


def value(tag: dict[str, Any]) -> Any:
    kinds: dict[str, Any] = {"string": str, "bool": bool, "int64": int, "float64": float}
    return kinds[tag["type"]](tag["value"])


def tags(tagged: list[dict[str, Any]]) -> dict[str, Any]:
    found = {tag["key"]: value(tag) for tag in tagged}
    assert len(found) == len(tagged)
    return found


def references(span: dict[str, Any], kind: str) -> list[tuple[str, int]]:
    return [
        (reference["traceID"], int(reference["spanID"], 16))
        for reference in span["references"]
        if reference["refType"] == kind
    ]


def same(found: dict[str, Any], span: Told) -> bool:
    read = {
        key: json.loads(item) if isinstance(span.attributes[key], list) else item
        for key, item in found.items()
        if key not in _OURS
    }
    return {k: comparable(v) for k, v in read.items()} == {
        k: comparable(v) for k, v in span.attributes.items()
    }


@some
@given(pictures())
def test_every_span_comes_back_to_the_microsecond(drawn: Picture) -> None:
    only = trace(drawn)
    assert len(only["spans"]) == drawn.height
    for found, span in zip(only["spans"], spans_of(drawn), strict=True):
        process = only["processes"][found["processID"]]
        assert found["traceID"] == only["traceID"] == TRACE_ID.hex()
        assert int(found["spanID"], 16) == span.span_id
        assert found["operationName"] == span.name
        assert found["startTime"] == span.start_ns // 1000
        assert found["duration"] == (span.end_ns - span.start_ns) // 1000
        assert process["serviceName"] == span.service
        assert same(tags(found["tags"]), span)


@some
@given(pictures())
def test_parents_come_first_and_links_follow(drawn: Picture) -> None:
    for found, span in zip(trace(drawn)["spans"], spans_of(drawn), strict=True):
        parents = [(TRACE_ID.hex(), span.parent_id)] if span.parent_id else []
        assert references(found, "CHILD_OF") == parents
        links = [(link[0].hex(), link[1]) for link in span.links]
        assert references(found, "FOLLOWS_FROM") == links
        if parents:
            assert found["references"][0]["refType"] == "CHILD_OF"


@some
@given(pictures())
def test_errors_and_events_are_told_as_jaeger_tells_them(drawn: Picture) -> None:
    for found, span in zip(trace(drawn)["spans"], spans_of(drawn), strict=True):
        tagged = tags(found["tags"])
        assert (tagged.get("error") is True) == (span.error is not None)
        assert tagged.get("otel.status_code") == (None if span.error is None else "ERROR")
        assert tagged.get("otel.status_description") == (span.error or None)
        assert tagged.get("w3c.tracestate", "") == drawn.trace_state
        events = [(log["timestamp"], *tags(log["fields"]).values()) for log in found["logs"]]
        assert events == [(at // 1000, name, said) for at, name, said in span.events]


def test_a_span_is_written_as_jaeger_writes_it() -> None:
    span = told(0xAB, 0xCD, attributes={"xsp.exact": True}, start_ns=1_999, end_ns=4_998)
    [found] = trace(picture(span))["spans"]
    assert found == {
        "traceID": TRACE_ID.hex(),
        "spanID": "00000000000000ab",
        "flags": 1,
        "operationName": "span 171",
        "references": [
            {"refType": "CHILD_OF", "traceID": TRACE_ID.hex(), "spanID": "00000000000000cd"}
        ],
        "startTime": 1,
        "duration": 2,
        "tags": [
            {"key": "otel.scope.name", "type": "string", "value": "xsp"},
            {"key": "otel.scope.version", "type": "string", "value": xsp.__version__},
            {"key": "xsp.exact", "type": "bool", "value": True},
            {"key": "span.kind", "type": "string", "value": "internal"},
        ],
        "logs": [],
        "processID": "p1",
        "warnings": None,
    }


@pytest.mark.parametrize("number", [2**53 - 1, -(2**53) + 1, 0])
def test_integers_that_a_browser_keeps_are_numbers(number: int) -> None:
    [found] = trace(picture(told(attributes={"xsp.count": number})))["spans"]
    assert {"key": "xsp.count", "type": "int64", "value": number} in found["tags"]


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63 - 1])
def test_integers_that_a_browser_would_change_are_strings(number: int) -> None:
    [found] = trace(picture(told(attributes={"xsp.count": number})))["spans"]
    assert {"key": "xsp.count", "type": "int64", "value": str(number)} in found["tags"]


def test_what_is_no_number_is_a_string_of_the_type_of_a_number() -> None:
    [found] = trace(picture(told(attributes={"xsp.size": math.nan})))["spans"]
    assert {"key": "xsp.size", "type": "float64", "value": "NaN"} in found["tags"]


def test_processes_are_counted_from_p1_and_tell_their_resource() -> None:
    processes = trace(picture(told()))["processes"]
    assert list(processes) == ["p1", "p2"]
    assert processes["p1"] == {
        "serviceName": "model",
        "tags": [
            {"key": "host.id", "type": "string", "value": "h"},
            {"key": "process.pid", "type": "int64", "value": str(2**62)},
        ],
    }


def events_of_trace_compass(document: bytes) -> list[str]:
    """Read spans as Trace Compass does: past the second bracket, counting braces and quotes."""
    start = document.index(b"[", document.index(b"[") + 1) + 1
    events, event, depth, quoted, arrays = [], "", 0, False, 0
    for byte in document[start:]:
        character = chr(byte)  # it takes bytes for characters
        if character == '"':
            quoted = not quoted
        elif not quoted:
            arrays += (character == "[") - (character == "]")
            depth += (character == "{") - (character == "}")
            if arrays < 0:
                break
        if depth or character == "}":
            event += character
        if event and not depth:
            events.append(event)
            event = ""
    return events


@some
@given(pictures())
def test_trace_compass_finds_the_same_spans(drawn: Picture) -> None:
    document = text(drawn)
    assert document.startswith(b'{"data":')
    found = [json.loads(event) for event in events_of_trace_compass(document)]
    assert [span["operationName"] for span in found] == [span.name for span in spans_of(drawn)]


def test_no_spans_are_a_trace_without_spans() -> None:
    only = trace(picture())
    assert only["spans"] == []
    assert only["warnings"] is None


def test_links_to_other_traces_name_them() -> None:
    [found] = trace(picture(told(links=((OTHER_TRACE, 5, "run"),))))["spans"]
    assert references(found, "FOLLOWS_FROM") == [(OTHER_TRACE.hex(), 5)]
