from __future__ import annotations

import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from deliveries import ALL, SCHEMES, TIMEOUT_S, both, delivered, failing, isolate, to_server
from otlp_server import (
    HttpServer,
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
    tunnel,
)

import xsp
from xsp.export.otlp import endpoint
from xsp.export.otlp.endpoint import proxy


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


@both
def test_the_exporter_names_itself(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(protocol) as server:
        delivered(make_chunks(1), to_server(protocol, server.port))
    named = server.requests[0].headers["user-agent"]
    assert named.startswith(f"xsp-OTLP-exporter-Python/{xsp.__version__}")


def test_one_connection_serves_all_requests_and_the_query_is_sent() -> None:
    with serving("http") as server:
        delivered(make_chunks(4), endpoint(f"otlp+http://127.0.0.1:{server.port}/a?key=b"))
        assert isinstance(server, HttpServer)
        assert server.connections == 1
    assert {request.path for request in server.requests} == {"/a?key=b"}


def test_a_redirection_is_not_followed() -> None:
    with serving("http") as other:
        place = {"location": f"http://127.0.0.1:{other.port}/v1/traces"}
        with serving("http", refusing("", 307, headers=place)) as server:
            failing(make_chunks(2), to_server("http", server.port))
    assert len(server.requests) == 1
    assert not other.requests


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
    said = f"{result!r}{to!r}{to}{''.join(capfd.readouterr())}".encode()
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
        assert failing([make_chunk(1, 16, padding=1000)], to).rejected == 16


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
    with pytest.raises(
        ValueError, match="address makes no sense: set http://host:port in HTTP_PROXY"
    ):
        delivered(make_chunks(1), to_server(protocol, 4318, host="jaeger.invalid"))


def test_a_proxy_that_wants_credentials_is_said_where_to_get_them() -> None:
    with serving("http", refusing("", 407)) as server:
        result = failing(make_chunks(1), to_server("http", server.port))
    assert "user:password@host:port" in result.message
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in result.message


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("http") as proxy:
        monkeypatch.setenv(name, f"http://me:p%77@127.0.0.1:{proxy.port}")
        delivered(make_chunks(1), endpoint("otlp+http://jaeger.invalid:4318"))
    (request,) = proxy.requests
    assert request.path == "http://jaeger.invalid:4318/v1/traces"
    assert request.headers["proxy-authorization"] == "Basic bWU6cHc="


def test_a_proxy_with_tls_is_spoken_to_with_tls(
    certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with serving("http", tls=certificates) as proxy:
        monkeypatch.setenv("http_proxy", f"https://me:pw@localhost:{proxy.port}")
        delivered(make_chunks(1), endpoint("otlp+http://jaeger.invalid:4318"))
    assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6cHc="


def test_what_goes_with_tls_goes_through_a_tunnel(
    certificates: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "CERTIFICATE", str(certificates.authority))
    monkeypatch.setenv(ALL + "TIMEOUT", "2000")
    with tunnel() as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://me:pw@127.0.0.1:{port}")
        failing(make_chunks(1), endpoint("otlp+https://jaeger.invalid:4318"))
    assert asked[0].startswith(b"CONNECT jaeger.invalid:4318 HTTP/1.")
    assert b"Basic bWU6cHc=" in asked[0]
    assert b"span 1" not in b"".join(asked)


@pytest.mark.parametrize("name", ["grpc_proxy", "http_proxy", "ALL_PROXY"])
def test_grpc_goes_through_a_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tunnel() as (port, asked):
        monkeypatch.setenv(name, f"http://me:pw@127.0.0.1:{port}")
        failing(make_chunks(1), endpoint("otlp://jaeger.invalid:4317"))
    assert asked[0].startswith(b"CONNECT jaeger.invalid:4317 HTTP/1.")
    assert b"Basic bWU6cHc=" in asked[0]


def test_no_proxy_means_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "http://proxy.invalid:80")
    assert proxy(endpoint("otlp+http://jaeger.invalid")) == "http://proxy.invalid:80"
    monkeypatch.setenv("no_proxy", "jaeger.invalid")
    assert proxy(endpoint("otlp+http://jaeger.invalid")) is None


@both
def test_a_proxy_that_speaks_socks_is_refused_with_what_to_do(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://me:s3cr3t@proxy:1080")
    with pytest.raises(ValueError, match=r"socks5://.*NO_PROXY=jaeger\.invalid") as told:
        delivered(make_chunks(1), to_server(protocol, 4318, host="jaeger.invalid"))
    assert "s3cr3t" not in str(told.value)


def test_grpc_takes_no_proxy_with_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "https://proxy:443")
    with pytest.raises(ValueError, match=r"https:// cannot be used for gRPC"):
        proxy(endpoint("otlp://jaeger.invalid"))


# Nobody there, or somebody else


@both
def test_nobody_there(protocol: str) -> None:
    result = failing(make_chunks(3), to_server(protocol, free_port()))
    assert (result.accepted, result.rejected, result.undelivered) == (0, 0, 30)
    assert "Connection refused" in result.message
    assert "xsp jaeger" in result.message


@both
def test_nothing_hangs_on_a_silent_server(protocol: str) -> None:
    with silent_port() as port:
        _, took = timed(lambda: failing(make_chunks(30), to_server(protocol, port)))
    assert took < 2 * TIMEOUT_S


@both
def test_unknown_host(protocol: str) -> None:
    result = failing(make_chunks(1), to_server(protocol, 4317, host="no-such-host.invalid"))
    assert result.undelivered == 10
    assert "no-such-host.invalid" in result.message


@pytest.mark.parametrize(("asked", "spoken"), [("grpc", "http"), ("http", "grpc")])
def test_the_wrong_protocol_is_said_which_port_speaks_which(asked: str, spoken: str) -> None:
    with serving(spoken) as server:
        result = failing(make_chunks(2), to_server(asked, server.port))
    assert (
        "4317 speaks gRPC, otlp:// or OTEL_EXPORTER_OTLP_PROTOCOL=grpc, and 4318 HTTP"
        in result.message
    )
    assert result.message.isprintable()


@both
def test_tls_where_none_is_spoken_and_none_where_it_is(protocol: str, certificates: Tls) -> None:
    with serving(protocol) as without, serving(protocol, tls=certificates) as with_tls:
        for server, secure in ((without, True), (with_tls, False)):
            result = failing(make_chunks(1), to_server(protocol, server.port, secure=secure))
            assert "TLS is otlps://, otlp+https://" in result.message


@both
def test_a_certificate_that_nobody_knows(protocol: str, certificates: Tls) -> None:
    with serving(protocol, tls=certificates) as server:
        result = failing(make_chunks(1), to_server(protocol, server.port, secure=True))
    assert "unable to get local issuer certificate" in result.message
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in result.message


# Credentials without TLS


@pytest.mark.parametrize(
    ("destination", "header", "warned"),
    [
        ("otlp+http://jaeger.invalid", "authorization=Bearer%20s3cr3t", True),
        ("otlp://jaeger.invalid", "x-api-key=s3cr3t", True),
        ("otlp+http://me:s3cr3t@jaeger.invalid", "", True),
        ("otlp+http://jaeger.invalid", "x-scope-orgid=s3cr3t", False),
        ("otlp+https://jaeger.invalid", "authorization=Bearer%20s3cr3t", False),
        ("otlp+http://127.0.0.1:1", "authorization=Bearer%20s3cr3t", False),
        ("otlp+http://[0:0:0:0:0:0:0:1]:1", "authorization=Bearer%20s3cr3t", False),
    ],
)
def test_credentials_that_everybody_on_the_way_can_read_are_warned_of(
    destination: str,
    header: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", header)
    monkeypatch.setenv(ALL + "TIMEOUT", "50")
    failing(make_chunks(1), endpoint(destination))
    assert ("without TLS" in caplog.text) == warned
    assert "s3cr3t" not in caplog.text


# Without grpcio


@pytest.fixture
def no_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "grpc"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)


@pytest.mark.usefixtures("no_grpc")
def test_without_grpcio_it_is_said_what_brings_it_and_what_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r"pip install 'xsp\[grpc\]'.*otlp\+http://host:4318"):
        endpoint("otlp://jaeger")
    with pytest.raises(ValueError, match=r"otlp\+https://host:4318"):
        endpoint("otlps://jaeger")
    monkeypatch.setenv(ALL + "PROTOCOL", "grpc")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"):
        endpoint(None)


@pytest.mark.usefixtures("no_grpc")
def test_without_grpcio_http_works() -> None:
    with serving("http") as server:
        assert delivered(make_chunks(1), to_server("http", server.port)).accepted == 10
