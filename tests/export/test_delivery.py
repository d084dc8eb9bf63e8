from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import samples
from otlp_server import (
    Reply,
    Tls,
    first,
    free_port,
    make_chunk,
    make_chunks,
    make_tls,
    refusing,
    serving,
)
from urllib3.util import Retry

import xsp
from xsp.export import Delivery, endpoint
from xsp.show.export.delivery import deliver
from xsp.show.export.otlp import Chunk

ALL = "OTEL_EXPORTER_OTLP_"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the environment's OTLP variables, and skip waits between two attempts."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(Retry, "sleep", lambda self, response=None: None)
    # pytest keeps log records, and that of a repeated request keeps its connection open.
    monkeypatch.setattr(logging.getLogger("urllib3.connectionpool"), "disabled", True)
    monkeypatch.setenv(ALL + "TIMEOUT", "30000")  # a busy machine is slow


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_tls(tmp_path_factory.mktemp("tls"))


def tried(chunks: Iterable[Chunk], to: str, total: int | None = None) -> Delivery:
    """Deliver chunks; a lazy iterator of them needs the total."""
    chunks = list(chunks) if total is None else chunks
    spans = sum(chunk.spans for chunk in chunks) if total is None else total
    result = deliver(chunks, endpoint(to), trace_id="ab", total=spans)
    assert result.sent == result.accepted + result.rejected + result.undelivered == spans
    assert endpoint(to).url in result.message
    assert result.message.isprintable()
    return result


def failing(chunks: Iterable[Chunk], to: str, total: int | None = None) -> Delivery:
    """Deliver, and check what holds for every failure."""
    result = tried(chunks, to, total)
    assert result.accepted < result.sent
    assert "Remedy: " in result.message
    return result


# What arrives


def test_headers_and_compression_of_the_variables_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", "x-team=a%20b,Authorization=Bearer%20xyz")
    monkeypatch.setenv(ALL + "COMPRESSION", "gzip")
    chunk = make_chunk(1, 10, padding=1000)
    with serving() as server:
        tried([chunk], server.url)
    (request,) = server.requests
    assert request.headers["x-team"] == "a b"
    assert request.headers["authorization"] == "Bearer xyz"
    assert request.headers["content-encoding"] == "gzip"
    assert int(request.headers["content-length"]) < len(chunk.body) / 2
    assert request.headers["content-type"] == "application/x-protobuf"
    assert request.headers["user-agent"] == f"xsp-OTLP-exporter-Python/{xsp.__version__}"
    assert (request.body, request.path) == (chunk.body, "/v1/traces")


# What a server answers


def test_rejected_spans_are_counted_and_told() -> None:
    script = first(1, lambda number, body: Reply(rejected=3, message="no service.name"))
    with serving(script) as server:
        result = failing([make_chunk(1, 9), make_chunk(10, 9)], server.url)
    assert (result.sent, result.accepted, result.rejected, result.undelivered) == (18, 15, 3, 0)
    assert "no service.name" in result.message
    assert len(server.requests) == 2  # never repeated


def test_a_warning_without_rejected_spans_is_passed_on() -> None:
    with serving(lambda number, body: Reply(message="old schema")) as server:
        result = tried(make_chunks(2), server.url)
    assert result.accepted == 20
    assert "old schema" in result.message


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"<html>Jaeger UI</html>", "text/html", "text/html"),
        (b"\xff\xff\xff", "application/x-protobuf", "not OTLP"),
        (b"[" * 100_000, "application/json", "not OTLP"),
        (b'{"partialSuccess":{"rejectedSpans":1e999}}', "application/json", "not OTLP"),
        (b'{"a":"\xff"}', "application/json", "not OTLP"),
        (b"x", "\x1b]0;title\x07", "not OTLP"),
    ],
)
def test_an_answer_that_is_not_otlp_is_no_acceptance(body: bytes, kind: str, said: str) -> None:
    with serving(lambda n, b: Reply(body=body, headers={"content-type": kind})) as server:
        result = failing(make_chunks(2), server.url)
    assert (result.accepted, result.undelivered) == (0, 20)
    assert said in result.message
    assert "/v1/traces" in result.message


def test_a_server_that_stays_busy_is_given_up() -> None:
    with serving(refusing(503, "full", headers={"retry-after": "86400"})) as server:
        result = failing(make_chunks(3), server.url)
    assert len(server.requests) == 4
    assert result.undelivered == 30
    assert "HTTP 503 Service Unavailable (full)" in result.message
    assert "send the spans later" in result.message


def test_no_server_makes_the_user_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(
        Retry, "sleep", lambda self, response: waits.append(self.get_retry_after(response))
    )
    with serving(first(1, refusing(429, headers={"retry-after": "86400"}))) as server:
        tried(make_chunks(1), server.url)
    assert waits == [10.0]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_refused_for_what_it_holds_stops_no_other(status: int) -> None:
    with serving(first(1, refusing(status, "bad span"))) as server:
        result = failing(make_chunks(3), server.url)
    assert (result.accepted, result.rejected) == (20, 10)
    assert dict(server.accepted) == dict.fromkeys(range(11, 31), 1)
    assert "bad span" in result.message


@pytest.mark.parametrize(
    ("where", "user", "query"),
    [("header", "", ""), ("user", "me:s3cr3t@", ""), ("query", "", "/v1/traces?key=s3cr3t")],
)
@pytest.mark.parametrize("answer", [refusing(403, "no: s3cr3t"), refusing(200, "no: s3cr3t")])
def test_credentials_appear_nowhere(
    where: str, user: str, query: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "header":
        monkeypatch.setenv(ALL + "HEADERS", "authorization=Bearer%20s3cr3t")
    with serving(answer) as server:
        to = f"http://{user}127.0.0.1:{server.port}{query}"
        result = tried(make_chunks(1), to)
    assert "no: ***" in result.message
    assert "s3cr3t" not in f"{result!r}{endpoint(to)!r}{endpoint(to)}"


# Nobody there, or somebody else


def test_nobody_there_is_said_at_once_and_no_more_is_made() -> None:
    made = []

    def lazily() -> Iterator[Chunk]:
        for number in range(50):
            made.append(number)
            yield make_chunk(1 + number, 1)

    result = failing(lazily(), f"http://127.0.0.1:{free_port()}", total=50)
    assert made == [0]
    assert (result.accepted, result.rejected, result.undelivered) == (0, 0, 50)
    assert "Connection refused" in result.message
    assert "xsp jaeger" in result.message


def test_what_was_not_taken_is_sent_again_under_the_same_ids(tmp_path: Path) -> None:
    trace = samples.trace(samples.resnet(), began_unix_ns=1)
    with (
        serving(lambda number, body: Reply(rejected=1)) as first_time,
        pytest.raises(xsp.ExportError),
    ):
        trace.export(first_time.url)
    saved = xsp.load(trace.save(tmp_path / "net.xsp"))
    with serving() as again:
        assert saved.export(again.url).accepted == len(trace)
    assert [one.body for one in again.requests] == [one.body for one in first_time.requests]


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "TIMEOUT", "100")
    with serving(lambda number, body: Reply(hang=True)) as server:
        result = failing(make_chunks(30), server.url)
    assert result.undelivered == 300
    assert "OTEL_EXPORTER_OTLP_TIMEOUT" in result.message


def test_killed_within_the_delivery_the_rest_is_counted() -> None:
    with serving() as server:

        def killing() -> Iterator[Chunk]:
            yield from make_chunks(2)
            server.stop()
            yield make_chunk(21, 10)

        result = failing(killing(), server.url, total=60)
    assert (result.accepted, result.undelivered) == (20, 40)
    assert dict(server.accepted) == dict.fromkeys(range(1, 21), 1)


def test_ctrl_c_passes() -> None:
    def interrupted() -> Iterator[Chunk]:
        yield make_chunk(1, 5)
        raise KeyboardInterrupt

    with serving() as server, pytest.raises(KeyboardInterrupt):
        tried(interrupted(), server.url, total=10)


# TLS


def test_tls_with_the_authority_named(certificates: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "CERTIFICATE", str(certificates.authority))
    with serving(tls=certificates) as server:
        assert tried(make_chunks(3), f"https://localhost:{server.port}").accepted == 30
    assert server.accepted.total() == 30


def test_tls_with_a_certificate_of_the_client(
    certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = replace(certificates, asks_client=True)
    monkeypatch.setenv(ALL + "CERTIFICATE", str(asking.authority))
    with serving(tls=asking) as server:
        to = f"https://localhost:{server.port}"
        assert failing(make_chunks(1), to).undelivered == 10
        monkeypatch.setenv(ALL + "CLIENT_CERTIFICATE", str(asking.client_certificate))
        monkeypatch.setenv(ALL + "CLIENT_KEY", str(asking.client_key))
        assert tried(make_chunks(1), to).accepted == 10


def test_a_certificate_that_nobody_knows(certificates: Tls) -> None:
    with serving(tls=certificates) as server:
        result = failing(make_chunks(1), f"https://localhost:{server.port}")
    assert "unable to get local issuer certificate" in result.message
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in result.message


# Proxies


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy:
        monkeypatch.setenv(name, f"http://me:p%77@127.0.0.1:{proxy.port}")
        tried(make_chunks(1), "http://jaeger.invalid:4318")
    (request,) = proxy.requests
    assert request.path == "http://jaeger.invalid:4318/v1/traces"
    assert request.headers["proxy-authorization"] == "Basic bWU6cHc="
