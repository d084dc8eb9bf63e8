from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from deliveries import ALL, TIMEOUT_S, both, delivered, failing, isolate, to_server, tried
from otlp_server import (
    Reply,
    Script,
    first,
    make_chunk,
    make_chunks,
    refusing,
    serving,
    silent_port,
    timed,
)

from xsp.export.otlp import Chunk, deliver


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


@both
def test_nothing_hangs_on_a_server_that_never_finishes(protocol: str) -> None:
    with serving(protocol, lambda number, body: Reply(hang=True)) as server:
        to = to_server(protocol, server.port)
        _, took = timed(lambda: failing(make_chunks(30), to))
        assert took < 2 * TIMEOUT_S
    assert len(server.requests) == 1


@both
def test_the_message_of_a_timeout_names_it(protocol: str) -> None:
    with silent_port() as port:
        result = failing(make_chunks(1), to_server(protocol, port))
    assert f"timeout of {TIMEOUT_S} s" in result.message
    assert "OTEL_EXPORTER_OTLP_TIMEOUT" in result.message


@pytest.mark.parametrize(
    ("protocol", "script", "remedy"),
    [
        ("grpc", refusing("UNAUTHENTICATED", 401), "OTEL_EXPORTER_OTLP_HEADERS"),
        ("grpc", refusing("PERMISSION_DENIED", 403), "OTEL_EXPORTER_OTLP_HEADERS"),
        ("grpc", refusing("UNIMPLEMENTED", 404), "4317 for gRPC"),
        ("grpc", refusing("RESOURCE_EXHAUSTED", 429), "later"),
        ("http", refusing("", 401), "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http", refusing("", 403), "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http", refusing("", 404), "/v1/traces"),
        ("http", refusing("", 405), "/v1/traces"),
        ("http", refusing("", 301, headers={"location": "https://u:pw@other/x?k=v"}), "/v1/traces"),
    ],
)
def test_a_closed_door_is_knocked_at_once(protocol: str, script: Script, remedy: str) -> None:
    with serving(protocol, script) as server:
        result, took = timed(lambda: failing(make_chunks(4), to_server(protocol, server.port)))
    assert len(server.requests) == 1
    assert took < TIMEOUT_S
    assert (result.rejected, result.undelivered) == (0, 40)
    assert remedy in result.message
    assert "pw@" not in result.message
    assert "k=v" not in result.message


@pytest.mark.parametrize(
    ("protocol", "script"),
    [
        *(("grpc", refusing(code, 0)) for code in ("UNAVAILABLE", "ABORTED", "OUT_OF_RANGE")),
        *(("grpc", refusing(code, 0)) for code in ("CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED")),
        ("grpc", refusing("RESOURCE_EXHAUSTED", 0, retry_s=0.05)),
        *(("http", refusing("", status)) for status in (429, 502, 503, 504)),
        ("http", lambda number, body: Reply(cut=True)),
    ],
)
def test_what_may_pass_is_tried_again(protocol: str, script: Script) -> None:
    with serving(protocol, first(2, script)) as server:
        assert delivered(make_chunks(3), to_server(protocol, server.port)).accepted == 30
    assert len(server.requests) == 5
    assert set(server.accepted.values()) == {1}


@pytest.mark.parametrize(
    ("protocol", "script"),
    [
        *(("grpc", refusing(code, 0)) for code in ("INTERNAL", "UNKNOWN", "INVALID_ARGUMENT")),
        *(("http", refusing("", status)) for status in (400, 408, 422, 500, 501)),
    ],
)
def test_what_will_not_pass_is_not_tried_again_and_stops_no_other(
    protocol: str, script: Script
) -> None:
    with serving(protocol, first(1, script)) as server:
        result = failing(make_chunks(3), to_server(protocol, server.port))
    assert len(server.requests) == 3
    assert result.accepted == 20
    assert dict(server.accepted) == dict.fromkeys(range(11, 31), 1)


@pytest.mark.parametrize(
    ("protocol", "code", "status", "rejected"),
    [
        ("grpc", "INVALID_ARGUMENT", 0, 10),
        ("grpc", "INTERNAL", 0, 0),
        ("http", "", 400, 10),
        ("http", "", 500, 0),
    ],
)
def test_refused_counts_as_rejected_and_failed_does_not(
    protocol: str, code: str, status: int, rejected: int
) -> None:
    with serving(protocol, refusing(code, status, "bad span")) as server:
        result = failing(make_chunks(1), to_server(protocol, server.port))
    assert (result.rejected, result.undelivered) == (rejected, 10 - rejected)
    assert "bad span" in result.message


def _after(wait_s: float, form: str) -> dict[str, Any]:
    if form == "grpc":
        return {"retry_s": wait_s}
    date = datetime.now(UTC) + timedelta(seconds=wait_s)
    text = f"{wait_s:.0f}" if form == "seconds" else format_datetime(date, usegmt=True)
    return {"headers": {"retry-after": text}}


@pytest.mark.parametrize(("protocol", "form"), [("grpc", "grpc"), ("http", "seconds")])
def test_the_server_says_how_long_to_wait(
    protocol: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "TIMEOUT", "5000")
    busy = refusing("UNAVAILABLE", 503, **_after(1, form))
    with serving(protocol, first(1, busy)) as server:
        to = to_server(protocol, server.port)
        result, took = timed(lambda: delivered(make_chunks(1), to))
    assert result.accepted == 10
    assert 1 <= took < 3


@pytest.mark.parametrize(
    ("protocol", "form"), [("grpc", "grpc"), ("http", "seconds"), ("http", "date")]
)
def test_a_wait_longer_than_the_timeout_is_not_begun(protocol: str, form: str) -> None:
    busy = refusing("RESOURCE_EXHAUSTED", 429, **_after(120, form))
    with serving(protocol, busy) as server:
        result, took = timed(lambda: failing(make_chunks(3), to_server(protocol, server.port)))
    assert took < TIMEOUT_S / 2
    assert "asks to wait 1" in result.message
    assert "left of the timeout" in result.message
    assert len(server.requests) == 1


@both
def test_being_busy_until_the_timeout_is_said(protocol: str) -> None:
    with serving(protocol, refusing("UNAVAILABLE", 503, "full")) as server:
        result, took = timed(lambda: failing(make_chunks(3), to_server(protocol, server.port)))
    assert took < 2 * TIMEOUT_S
    assert len(server.requests) > 1
    assert "tried until the timeout" in result.message
    assert result.undelivered == 30


@both
def test_a_warning_without_rejected_spans_is_passed_on(protocol: str) -> None:
    with serving(protocol, lambda number, body: Reply(message="old schema")) as server:
        result = delivered(make_chunks(2), to_server(protocol, server.port))
    assert result.accepted == 20
    assert "old schema" in result.message


@both
def test_a_server_that_rejects_more_than_it_got_rejects_all(protocol: str) -> None:
    with serving(protocol, lambda number, body: Reply(rejected=10**9)) as server:
        result = failing(make_chunks(1), to_server(protocol, server.port))
    assert (result.accepted, result.rejected) == (0, 10)


def _in_bodies_of(most_bytes: int) -> list[Chunk]:
    """Return 64 spans of about a kilobyte, in requests of at most so many bytes."""
    spans = min(max(1, most_bytes // 1100), 64)
    return [make_chunk(first, min(spans, 65 - first), 1000) for first in range(1, 65, spans)]


@both
def test_what_is_too_large_is_made_anew_with_half_the_size(protocol: str) -> None:
    with serving(protocol, most_bytes=20_000) as server:
        to = to_server(protocol, server.port)
        result = deliver(_in_bodies_of, to, trace_id="", total=64)
    assert (result.sent, result.accepted, result.rejected) == (64, 64, 0)
    assert dict(server.accepted) == dict.fromkeys(range(1, 65), 1)


@both
def test_requests_do_not_become_smaller_without_end(protocol: str) -> None:
    with serving(protocol, most_bytes=100) as server:
        result = deliver(_in_bodies_of, to_server(protocol, server.port), trace_id="", total=64)
    assert (result.sent, result.accepted, result.rejected) == (64, 0, 64)
    assert "raise the server's limit" in result.message


@both
def test_a_span_that_is_too_large_by_itself_is_rejected_and_the_rest_is_not(protocol: str) -> None:
    chunks = [make_chunk(1, 3), make_chunk(4, 1, padding=8000), make_chunk(5, 3)]
    with serving(protocol, most_bytes=5000) as server:
        result = failing(chunks, to_server(protocol, server.port))
    assert (result.accepted, result.rejected) == (6, 1)
    assert "limit" in result.message
    assert sorted(server.accepted) == [1, 2, 3, 5, 6, 7]


NESTED = Reply(body=b"[" * 100_000, headers={"content-type": "application/json"})
IN_NESTED = replace(NESTED, body=b'{"x":' + b"[" * 100_000)
HUGE = replace(NESTED, body=b'{"partialSuccess":{"rejectedSpans":1e999}}')
LONG = replace(NESTED, body=b'{"partialSuccess":{"rejectedSpans":"%s"}}' % (b"9" * 5000))
FAR = {"retry-after": "Mon, 01 Jan 2020 00:00:00 +99999999999999999"}


@pytest.mark.parametrize(
    "reply",
    [
        NESTED,
        IN_NESTED,
        HUGE,
        LONG,
        Reply(http_status=503, headers=FAR),
        Reply(http_status=503, headers={"retry-after": "9" * 5000}),
        Reply(http_status=503, headers={"retry-after": "nan"}),
        Reply(http_status=200, headers={"content-length": "-7"}),
        Reply(http_status=999),
        Reply(body=b"\xff" * 2_000_000),
        Reply(body=b"x", headers={"content-type": "\x1b]0;title\x07"}),
    ],
)
def test_a_hostile_answer_is_an_answer(reply: Reply) -> None:
    with serving("http", lambda number, body: reply) as server:
        result = tried(make_chunks(3), to_server("http", server.port))
    assert result.sent == 30
    assert result.accepted < 30
    assert result.message.isprintable()


def test_whatever_throws_while_an_answer_is_read_the_spans_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def torn(*args: object) -> None:
        raise RuntimeError("unforeseen \x1b[2J")

    monkeypatch.setattr("xsp.export.otlp.http._judged", torn)
    with serving("http") as server:
        result = failing(make_chunks(3), to_server("http", server.port))
    assert (result.sent, result.accepted, result.undelivered) == (30, 0, 30)
    assert len(server.requests) == 3
    assert "RuntimeError: unforeseen \\x1b[2J" in result.message


def test_what_a_server_says_moves_no_cursor() -> None:
    place = {"location": "https://there/\x1b]0;title\x07"}
    with serving("http", refusing("", 302, "\x1b[2J", headers=place)) as server:
        result = failing(make_chunks(1), to_server("http", server.port))
    assert "\\x1b]0;title" in result.message
    assert result.message.isprintable()
