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
    free_port,
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


@both
def test_credentials_that_a_partial_success_repeats_are_starred(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", "authorization=Bearer%20s3cr3t")
    said = Reply(rejected=1, message="no: s3cr3t")
    with serving(protocol, lambda number, body: said) as server:
        assert "no: ***" in failing(make_chunks(1), to_server(protocol, server.port)).message


@pytest.mark.parametrize("value", ["a", "max", "larger than max"])
def test_a_header_does_not_change_what_an_answer_means(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", f"x-tenant={value.replace(' ', '%20')}")
    with serving("grpc", most_bytes=5000) as server:
        to = to_server("grpc", server.port)
        assert delivered([make_chunk(1, 16, padding=1000)], to).accepted == 16


@both
def test_no_proxy_is_between_this_machine_and_itself(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with serving(protocol) as server:
        assert delivered(make_chunks(1), to_server(protocol, server.port)).accepted == 10


@both
@pytest.mark.parametrize("address", ["http://host:port", f"http://{'a' * 64}:80"])
def test_a_proxy_that_makes_no_sense_is_said_before_anything_is_sent(
    protocol: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", address)
    with pytest.raises(ValueError, match="HTTP_PROXY or HTTPS_PROXY makes no sense"):
        delivered(make_chunks(1), to_server(protocol, 4318, host="jaeger.invalid"))


def test_a_proxy_that_wants_credentials_is_said_where_to_get_them() -> None:
    with serving("http", refusing("", 407)) as server:
        result = failing(make_chunks(1), to_server("http", server.port))
    assert "user:password@host:port" in result.message
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in result.message


GO_WANTS_TLS = "Client sent an HTTP request to an HTTPS server."


@pytest.mark.parametrize("words", [GO_WANTS_TLS, "The plain HTTP request was sent to HTTPS port"])
def test_a_server_that_asks_for_tls_is_understood(words: str) -> None:
    with serving("http", refusing("", 400, body=words.encode())) as server:
        result = failing(make_chunks(1), to_server("http", server.port))
    assert "speaks TLS" in result.message
    assert "otlp+https://" in result.message


def test_https_in_the_words_of_a_refusal_is_no_word_about_tls(
    certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "CERTIFICATE", str(certificates.authority))
    monkeypatch.setenv(ALL + "TIMEOUT", "5000")
    with serving("http", refusing("", 400, "scheme HTTPS is refused")) as server:
        assert failing(make_chunks(2), to_server("http", server.port)).rejected == 20
    with serving("http", refusing("", 400, GO_WANTS_TLS), tls=certificates) as server:
        to = to_server("http", server.port, secure=True, host="localhost")
        assert failing(make_chunks(2), to).rejected == 20


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("http") as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pw@127.0.0.1:{proxy.port}")
        delivered(make_chunks(1), endpoint("otlp+http://jaeger.invalid:4318"))
    (request,) = proxy.requests
    assert request.path == "http://jaeger.invalid:4318/v1/traces"
    assert request.headers["proxy-authorization"] == "Basic bWU6cHc="
