from __future__ import annotations

import socket
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deliveries import ALL, SCHEMES, TIMEOUT_S, both, delivered, failing, isolate, to_server
from otlp_server import (
    Reply,
    Tls,
    make_chunk,
    make_chunks,
    make_tls,
    refusing,
    serving,
    silent_port,
    timed,
)

from xsp.export.endpoint import endpoint


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_tls(tmp_path_factory.mktemp("tls"))


@both
def test_headers_and_compression_of_the_variables_are_used(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", "x-team=a%20b,Authorization=Bearer%20xyz")
    monkeypatch.setenv(ALL + "COMPRESSION", "gzip")
    chunk = make_chunk(1, 10, padding=1000)
    with serving(protocol) as server:
        delivered([chunk], to_server(protocol, server.port))
    (request,) = server.requests
    assert request.headers["x-team"] == "a b"
    assert request.headers["authorization"] == "Bearer xyz"
    assert request.body == chunk.body
    if protocol == "http":
        assert request.headers["content-encoding"] == "gzip"
        assert int(request.headers["content-length"]) < len(chunk.body) / 2
        assert request.headers["content-type"] == "application/x-protobuf"
        assert request.path == "/v1/traces"


def test_one_connection_serves_all_requests_and_the_query_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    create = socket.create_connection

    def counted(*args: Any, **more: Any) -> socket.socket:
        made.append(args)
        return create(*args, **more)

    monkeypatch.setattr(socket, "create_connection", counted)
    with serving("http") as server:
        delivered(make_chunks(4), endpoint(f"otlp+http://127.0.0.1:{server.port}/a?key=b"))
    assert {request.path for request in server.requests} == {"/a?key=b"}
    assert len(made) == 1


def test_nothing_hangs_on_a_server_that_trickles() -> None:
    with serving("http", lambda number, body: Reply(trickle=True)) as server:
        _, took = timed(lambda: failing(make_chunks(3), to_server("http", server.port)))
    assert took < 2 * TIMEOUT_S


def test_nothing_hangs_on_a_server_that_does_not_read() -> None:
    with silent_port() as port:
        _, took = timed(
            lambda: failing([make_chunk(1, 4, padding=4 << 20)], to_server("http", port))
        )
    assert took < 2 * TIMEOUT_S


@both
def test_tls_with_the_authority_named(
    protocol: str, certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "CERTIFICATE", str(certificates.authority))
    monkeypatch.setenv(ALL + "TIMEOUT", "5000")
    with serving(protocol, tls=certificates) as server:
        to = to_server(protocol, server.port, secure=True, host="localhost")
        assert delivered(make_chunks(3), to).accepted == 30
    assert server.accepted.total() == 30


@both
def test_tls_with_an_authority_that_the_system_trusts(
    protocol: str, certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    monkeypatch.setenv(ALL + "TIMEOUT", "5000")
    with serving(protocol, tls=certificates) as server:
        to = to_server(protocol, server.port, secure=True, host="localhost")
        assert delivered(make_chunks(1), to).accepted == 10


@both
def test_tls_with_a_certificate_of_the_client(
    protocol: str, certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = replace(certificates, asks_client=True)
    monkeypatch.setenv(ALL + "CERTIFICATE", str(asking.authority))
    with serving(protocol, tls=asking) as server:
        to = to_server(protocol, server.port, secure=True)
        assert failing(make_chunks(1), to).undelivered == 10
        monkeypatch.setenv(ALL + "CLIENT_CERTIFICATE", str(asking.client_certificate))
        monkeypatch.setenv(ALL + "CLIENT_KEY", str(asking.client_key))
        monkeypatch.setenv(ALL + "TIMEOUT", "5000")
        assert (
            delivered(make_chunks(1), to_server(protocol, server.port, secure=True)).accepted == 10
        )


def test_a_web_page_is_no_acceptance() -> None:
    page = Reply(body=b"<html>Jaeger UI</html>", headers={"content-type": "text/html"})
    with serving("http", lambda number, body: page) as server:
        result = failing(make_chunks(2), to_server("http", server.port))
    assert result.accepted == 0
    assert "text/html" in result.message
    assert "4318 for HTTP" in result.message


@both
def test_an_answer_that_is_not_otlp_is_no_acceptance(protocol: str) -> None:
    with serving(protocol, lambda number, body: Reply(body=b"\xff\xff\xff")) as server:
        assert failing(make_chunks(2), to_server(protocol, server.port)).undelivered == 20


def test_acceptance_in_json_is_read() -> None:
    said = b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}}'
    reply = Reply(body=said, headers={"content-type": "application/json; charset=utf-8"})
    with serving("http", lambda number, body: reply) as server:
        result = failing(make_chunks(1), to_server("http", server.port))
    assert (result.accepted, result.rejected) == (7, 3)
    assert "too old" in result.message


@pytest.mark.parametrize(
    ("protocol", "where"),
    [("grpc", "header"), ("grpc", "user"), ("http", "header"), ("http", "user"), ("http", "query")],
)
def test_credentials_appear_nowhere(
    protocol: str, where: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret, basic = "s3cr3t", b64encode(b"me:s3cr3t").decode()
    if where == "header":
        monkeypatch.setenv(ALL + "HEADERS", f"authorization=Bearer%20{secret}")
    user = f"me:{secret}@" if where == "user" else ""
    query = f"/v1/traces?key={secret}" if where == "query" else ""
    # A server that repeats what it was told.
    echo = f"no: Bearer {secret} ({secret})" + f" Basic {basic}" * (where == "user")
    with serving(protocol, refusing("PERMISSION_DENIED", 403, echo)) as server:
        to = endpoint(f"{SCHEMES[protocol, False]}://{user}127.0.0.1:{server.port}{query}")
        result = failing(make_chunks(1), to)
    assert "no: ***" in result.message.replace("Bearer ", "")
    assert result.spool is not None
    said = f"{result!r}{to!r}{to}{''.join(capfd.readouterr())}".encode()
    said += result.spool.read_bytes()
    assert secret.encode() not in said
    assert basic.encode() not in said


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("http") as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pw@127.0.0.1:{proxy.port}")
        delivered(make_chunks(1), endpoint("otlp+http://jaeger.invalid:4318"))
    (request,) = proxy.requests
    assert request.path == "http://jaeger.invalid:4318/v1/traces"
    assert request.headers["proxy-authorization"] == "Basic bWU6cHc="
