from __future__ import annotations

from pathlib import Path

import pytest
from deliveries import ALL, SCHEMES, TIMEOUT_S, both, failing, isolate, spooled, to_server
from otlp_server import Tls, free_port, make_chunks, make_tls, serving, silent_port, timed


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_tls(tmp_path_factory.mktemp("tls"))


@both
def test_nobody_there(protocol: str) -> None:
    to = to_server(protocol, free_port())
    result = failing(make_chunks(3), to)
    assert (result.accepted, result.rejected, result.undelivered) == (0, 0, 30)
    assert "nothing listens" in result.message
    assert "xsp jaeger" in result.message
    assert spooled(result) == list(range(1, 31))


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


WRONG = {
    ("grpc", "http"): ("speaks HTTP, not gRPC", "otlp+http://"),
    ("http", "grpc"): ("speaks gRPC, not HTTP", "otlp://"),
}


@pytest.mark.parametrize(("asked", "spoken"), WRONG)
def test_the_wrong_protocol_is_recognised_at_once(
    asked: str, spoken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "TIMEOUT", "10000")
    with serving(spoken) as server:
        to = to_server(asked, server.port)
        result, took = timed(lambda: failing(make_chunks(2), to))
    what, remedy = WRONG[asked, spoken]
    assert what in result.message
    assert f"{remedy}127.0.0.1:{server.port}" in result.message
    assert took < 5
    assert len(spooled(result)) == 20


@both
def test_tls_where_none_is_spoken(protocol: str) -> None:
    with serving(protocol) as server:
        result = failing(make_chunks(1), to_server(protocol, server.port, secure=True))
    assert "does not speak TLS" in result.message
    assert f"{SCHEMES[protocol, False]}://127.0.0.1:{server.port}" in result.message


@both
def test_no_tls_where_it_is_spoken(protocol: str, certificates: Tls) -> None:
    with serving(protocol, tls=certificates) as server:
        result = failing(make_chunks(1), to_server(protocol, server.port))
    assert "speaks TLS" in result.message
    assert f"{SCHEMES[protocol, True]}://127.0.0.1:{server.port}" in result.message


@both
def test_a_certificate_that_nobody_knows(protocol: str, certificates: Tls) -> None:
    with serving(protocol, tls=certificates) as server:
        result = failing(make_chunks(1), to_server(protocol, server.port, secure=True))
    assert "certificate that is not trusted" in result.message
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in result.message
