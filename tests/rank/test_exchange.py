"""Ranks as threads: what they hand over arrives, clocks are compared, and nobody waits for ever."""

from __future__ import annotations

import socket
import threading

import polars as pl
import pytest
from rank_samples import Board, rank_collectives, rank_trace

from xsp.measuring.rank import collect, hand_over
from xsp.reading.rank import Account
from xsp.record.rank import Identity, StoreChannel
from xsp.record.rank.channel import MACHINE
from xsp.trace import Trace

LONG_S = 3600.0  # whoever waits for so long runs into the test's own limit


@pytest.fixture
def trace() -> Trace:
    return rank_trace()


@pytest.fixture
def collectives() -> pl.DataFrame:
    return rank_collectives()


def collected(board: Board, *accounts: Account, patience_s: float = 20) -> list[Account]:
    """Collect on rank 0 while the others hand over, each on a thread."""
    own, *others = accounts
    board.put(MACHINE, own.machine.encode())
    threads = [threading.Thread(target=hand_over, args=(board, each)) for each in others]
    for thread in threads:
        thread.start()
    found = collect(board, own, len(accounts), patience_s=lambda: patience_s)
    for thread in threads:
        thread.join()
    return found


def test_what_a_rank_measured_arrives_as_it_was(trace: Trace, collectives: pl.DataFrame) -> None:
    account = Account(
        1, trace, began_ns=5, failed="OSError", windows=("LAYERS",), collectives=collectives
    )
    [_, found] = collected(Board(), Account(0), account)
    assert found.trace is not None
    assert found.trace.spans.equals(trace.spans)
    assert found.collectives.equals(collectives)
    assert (found.began_ns, found.failed, found.windows) == (5, "OSError", ("LAYERS",))
    assert found.add_ns is None  # of one machine there is one clock


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
    [_, missing] = collect(Board(), Account(0), 2, patience_s=lambda: 0.05)
    assert (missing.rank, missing.trace) == (1, None)
    assert "without handing over" in missing.why


def test_rank_0_hurries_once_it_is_told_to() -> None:
    hurried = iter([LONG_S])
    collect(Board(), Account(0), 2, patience_s=lambda: next(hurried, 0.05))


def test_rank_0_does_not_wait_where_nothing_arrives() -> None:
    board = Board()
    board.gone = True
    [_, missing] = collect(board, Account(0), 2, patience_s=lambda: LONG_S)
    assert "the store was gone" in missing.why


def test_a_launchers_store_that_is_gone_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    channel = StoreChannel(Identity(1, 2, "127.0.0.1", port, served=True))
    assert not channel.open(importing=True)
    assert "refused" in channel.broken
