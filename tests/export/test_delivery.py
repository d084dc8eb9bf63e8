from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from deliveries import ALL, TRACE_ID, both, delivered, failing, isolate, to_server
from otlp_server import Reply, Server, first, free_port, make_chunk, make_chunks, serving

from xsp.export.otlp import Chunk, Delivery
from xsp.export.otlp.delivery import Client, Sender, _why


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


@both
def test_all_accepted_is_all_there(protocol: str) -> None:
    with serving(protocol) as server:
        result = delivered(make_chunks(5), to_server(protocol, server.port))
    assert (result.sent, result.accepted, result.rejected, result.undelivered) == (50, 50, 0, 0)
    assert result.spool is None
    assert result.trace_id == TRACE_ID.hex()
    assert dict(server.accepted) == dict.fromkeys(range(1, 51), 1)


@both
def test_a_trace_without_spans_asks_nobody(protocol: str) -> None:
    assert delivered([], to_server(protocol, free_port())).sent == 0


@both
def test_a_third_rejected_is_counted_and_kept(protocol: str) -> None:
    script = first(1, lambda number, body: Reply(rejected=3, message="no service.name"))
    with serving(protocol, script) as server:
        result = failing([make_chunk(1, 9), make_chunk(10, 9)], to_server(protocol, server.port))
    assert (result.sent, result.accepted, result.rejected, result.undelivered) == (18, 15, 3, 0)
    assert "no service.name" in result.message
    assert len(server.requests) == 2  # never repeated


def _restarted(protocol: str, server: Server, chunks: list[Chunk]) -> Iterator[Chunk]:
    """Yield chunks, and kill the server half-way."""
    half = len(chunks) // 2
    yield from chunks[:half]
    server.stop()
    yield from chunks[half:]


@both
def test_killed_and_started_again_all_is_accepted_once(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "TIMEOUT", "10000")
    with serving(protocol) as killed:
        again: list[Any] = []

        def start() -> None:
            again.append(serving(protocol, port=killed.port))
            again.append(again[0].__enter__())

        timer = threading.Timer(0.5, start)
        timer.start()
        chunks = _restarted(protocol, killed, make_chunks(6))
        try:
            result = delivered(chunks, to_server(protocol, killed.port), total=60)
        finally:
            timer.join()
            again[0].__exit__(None, None, None)
    assert result.accepted == 60
    assert len(killed.accepted) == 30
    assert killed.accepted + again[1].accepted == dict.fromkeys(range(1, 61), 1)


@both
def test_killed_within_a_request_the_rest_is_kept(protocol: str) -> None:
    script = lambda number, body: Reply(hang=number == 2)  # noqa: E731
    with serving(protocol, script) as server:
        timer = threading.Timer(0.2, server.stop)
        timer.start()
        result = failing(make_chunks(6), to_server(protocol, server.port))
        timer.join()
    assert (result.accepted, result.undelivered) == (20, 40)
    assert dict(server.accepted) == dict.fromkeys(range(1, 21), 1)


def test_what_nobody_will_take_is_not_made() -> None:
    made = []

    def lazily() -> Iterator[Chunk]:
        for number in range(50):
            made.append(number)
            yield make_chunk(1 + number, 1)

    result = failing(lazily(), to_server("http", free_port()), total=50)
    assert made == [0]
    assert (result.sent, result.undelivered) == (50, 50)


def test_ctrl_c_passes() -> None:
    def interrupted() -> Iterator[Chunk]:
        yield make_chunk(1, 5)
        raise KeyboardInterrupt

    with serving("http") as server, pytest.raises(KeyboardInterrupt):
        delivered(interrupted(), to_server("http", server.port), total=10)


@both
def test_ctrl_c_while_the_server_keeps_us_waiting(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "TIMEOUT", "10000")
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    with serving(protocol, lambda number, body: Reply(hang=True)) as server:
        to = to_server(protocol, server.port)
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            delivered(make_chunks(3), to)
        assert time.monotonic() - began < 5
        timer.join()


def test_spans_that_never_came_are_not_counted_as_delivered() -> None:
    with serving("http") as server:
        result = failing(make_chunks(1), to_server("http", server.port), total=12)
    assert (result.sent, result.accepted, result.undelivered) == (12, 10, 2)


def test_without_a_remedy_there_is_no_word_of_one() -> None:
    sender = Sender(cast(Client, None), to_server("http", 4318))
    sender.note("says: all is lost", "")
    told = _why(Delivery(10, 0, 0, "otlp://host:4317", ""), sender)
    assert told.endswith("otlp://host:4317 says: all is lost.")
