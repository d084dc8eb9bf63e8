"""Ranks as threads: what they hand over arrives, clocks are compared, and nobody waits for ever."""

from __future__ import annotations

import socket
import threading
import time

import polars as pl
import pytest
from rank_samples import Board, rank_collectives, rank_trace

from xsp.rank import Account, Identity, StoreChannel, collect, hand_over
from xsp.rank.channel import MACHINE, get_large, put_large
from xsp.trace import Trace


@pytest.fixture
def trace() -> Trace:
    return rank_trace()


@pytest.fixture
def collectives() -> pl.DataFrame:
    return rank_collectives()


def collected(board: Board, *accounts: Account, patience_s: float = 20) -> list[Account]:
    """Return what rank 0 collects while the others hand over, each on a thread."""
    own, *others = accounts
    board.put(MACHINE, own.machine.encode())
    threads = [threading.Thread(target=hand_over, args=(board, each)) for each in others]
    for thread in threads:
        thread.start()
    found = collect(board, own, len(accounts), patience_s=lambda: patience_s)
    for thread in threads:
        thread.join()
    return found


def test_large_values_arrive_whole() -> None:
    board, value = Board(), bytes(range(256)) * 40_000
    assert get_large(board, "x") is None
    put_large(board, "x", value)
    assert len(board.values) > 2
    assert get_large(board, "x") == value
    del board.values["x/1"]
    assert get_large(board, "x") is None


def test_what_a_rank_measured_arrives_as_it_was(trace: Trace, collectives: pl.DataFrame) -> None:
    account = Account(
        1, trace, began_ns=5, failed="OSError", rungs={0: ["op"]}, collectives=collectives
    )
    [_, found] = collected(Board(), Account(0), account)
    assert found.trace is not None
    assert found.trace.spans.equals(trace.spans)
    assert found.collectives.equals(collectives)
    assert (found.began_ns, found.failed, found.rungs) == (5, "OSError", {0: ["op"]})
    assert found.add_ns is None  # of one machine there is one clock


def test_the_clock_of_another_machine_is_read() -> None:
    accounts = Account(0, machine="a"), Account(1, machine="b")
    [_, found] = collected(Board(), *accounts)
    assert found.add_ns is not None
    assert found.error_ns is not None
    # In truth both are the clock of this machine.
    assert abs(found.add_ns) <= found.error_ns + 1


def test_a_rank_that_failed_asks_for_no_time() -> None:
    board = Board()
    board.put(MACHINE, b"a")
    hand_over(board, Account(1, machine="b", failed="OSError"), hurries=lambda: True)
    assert not any("asks" in key for key in board.values)


def test_a_trace_that_cannot_be_read_is_told() -> None:
    board = Board()
    board.put(MACHINE, b"")
    board.put("1/trace/0", b"no trace")
    board.put("1/trace", b"1")
    hand_over(board, Account(1, machine=""), hurries=lambda: True)
    [_, found] = collect(board, Account(0), 2, patience_s=lambda: 20.0)
    assert found.trace is None
    assert "cannot be read" in found.why


def test_ranks_that_hand_nothing_over_are_told_after_a_while() -> None:
    began = time.monotonic()
    [_, missing] = collect(Board(), Account(0), 2, patience_s=lambda: 0.05)
    assert time.monotonic() - began < 5
    assert (missing.rank, missing.trace) == (1, None)
    assert "without handing over" in missing.why


def test_rank_0_hurries_once_it_is_told_to() -> None:
    hurried = iter([600.0])
    began = time.monotonic()
    collect(Board(), Account(0), 2, patience_s=lambda: next(hurried, 0.05))
    assert time.monotonic() - began < 5


def test_a_rank_that_is_told_to_end_waits_no_longer() -> None:
    board, hurried, began = Board(), iter([False, False]), time.monotonic()
    hand_over(board, Account(1, machine="b"), hurries=lambda: next(hurried, True))
    assert time.monotonic() - began < 5
    assert "1/account" in board.values


def test_rank_0_does_not_wait_where_nothing_arrives() -> None:
    board, began = Board(), time.monotonic()
    board.gone = True
    [_, missing] = collect(board, Account(0), 2, patience_s=lambda: 600.0)
    assert time.monotonic() - began < 5
    assert "the store was gone" in missing.why


def test_rank_0_does_not_wait_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xsp.rank.exchange._SILENT_S", 0.01)
    said: list[str] = []
    collect(Board(), Account(0), 3, patience_s=lambda: 0.1, say=said.append)
    assert said == ["xsp: rank 0 has ended, and waits up to 0.1 s for rank 1, rank 2"]


def test_a_launchers_store_that_is_gone_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    channel = StoreChannel(Identity(1, 2, "127.0.0.1", port, served=True))
    assert not channel.open(importing=True)
    assert "refused" in channel.broken


def test_a_channel_without_a_store_is_gone() -> None:
    channel = StoreChannel(Identity(1, 2))
    assert not channel.open(importing=True)
    assert channel.gone
    assert channel.get("x") is None
