"""Hands what each rank measured to rank 0, by the channel.

Every rank but 0 leaves its trace in the channel, and ends as it would without xsp. Rank 0 collects
them, and meanwhile tells its time to ranks on other machines, whose clocks differ.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.reading.rank import COLLECTIVE_SCHEMA, Account, listed
from xsp.record.rank import MACHINE, Channel, awaited, get_large, put_large
from xsp.trace import Trace, load

_QUESTIONS = 8  # readings of another machine's clock, of which the quickest is the best
_FIRST_ANSWER_S, _ANSWER_S = 30.0, 1.0
_PAUSE_S = 0.002
_SILENT_S = 5.0  # that rank 0 waits for others without a word
_SILENT = "it ended without handing over what it had measured"
_UNREAD = "what it handed over cannot be read"
_LOST = "the store was gone before it had handed over what it had measured"


def hand_over(
    channel: Channel, account: Account, *, hurries: Callable[[], bool] = lambda: False
) -> None:
    """Leave what this rank measured for rank 0.

    Args:
        channel: Where ranks leave bytes for each other.
        account: What it measured.
        hurries: Tells whether rank 0 is not asked for its time, if that is another machine: a
            rank that failed must end, for others wait for it until it does.
    """
    leader = awaited(channel, MACHINE, _FIRST_ANSWER_S, given_up=hurries)
    clock: tuple[int, int] | None = None
    if leader is not None and (not account.machine or leader.decode() != account.machine):
        clock = _asked(channel, account.rank, hurries)
    plain = {name: getattr(account, name) for name in Account.__dataclass_fields__}
    facts = {
        name: value
        for name, value in plain.items()
        if name not in ("trace", "collectives", "add_ns", "error_ns")
    }
    facts["clock"] = clock
    if account.trace is not None:
        with tempfile.TemporaryDirectory() as folder:
            packed = account.trace.save(Path(folder) / "rank.xsp").read_bytes()
        put_large(channel, f"{account.rank}/trace", packed)
    table = io.BytesIO()
    account.collectives.write_parquet(table)
    put_large(channel, f"{account.rank}/collectives", table.getvalue())
    put_large(channel, f"{account.rank}/account", json.dumps(facts).encode())


def collect(
    channel: Channel,
    own: Account,
    size: int,
    *,
    patience_s: Callable[[], float],
    say: Callable[[str], None] = lambda _: None,
) -> list[Account]:
    """Collect the results of all ranks, that of this process, rank 0, first.

    Args:
        channel: Where ranks leave bytes for each other.
        own: What this rank measured.
        size: How many ranks there are.
        patience_s: Tells how long to wait for the others, from now or from when that changes.
        say: Tells a person which ranks are waited for.
    """
    found: dict[int, Account] = {0: own}
    answered = dict.fromkeys(range(1, size), 0)
    seconds = patience_s()
    until = time.monotonic() + seconds
    silent_until = time.monotonic() + _SILENT_S
    while len(found) < size:
        if (now_s := patience_s()) != seconds:
            seconds, until = now_s, time.monotonic() + now_s
        last = channel.gone or time.monotonic() > until
        for rank in (rank for rank in range(1, size) if rank not in found):
            # Tell a rank this rank's time, if it asks; return whether it did.
            number = answered[rank]
            if number >= _QUESTIONS or channel.get(f"{rank}/asks/{number}") is None:
                answer = False
            else:
                channel.put(f"{rank}/told/{number}", str(time.monotonic_ns()).encode())
                answer = True
            answered[rank] += answer
            account = _account(channel, rank)
            if account is not None:
                found[rank] = account
        if last:
            break
        if time.monotonic() > silent_until:
            silent_until = math.inf
            missing = listed([f"rank {rank}" for rank in range(size) if rank not in found])
            say(f"xsp: rank 0 has ended, and waits up to {seconds:g} s for {missing}")
        time.sleep(_PAUSE_S)
    why = _LOST if channel.gone else _SILENT
    return [found.get(rank) or Account(rank, why=why, host="", machine="") for rank in range(size)]


def _asked(channel: Channel, rank: int, hurries: Callable[[], bool]) -> tuple[int, int] | None:
    """Measure this clock's offset from rank 0's, and its error; None if unknown."""
    best: tuple[int, int] | None = None
    for number in range(_QUESTIONS):
        if hurries():
            break
        before = time.monotonic_ns()
        channel.put(f"{rank}/asks/{number}", b"")
        patience_s = _ANSWER_S if number else _FIRST_ANSWER_S
        told = awaited(channel, f"{rank}/told/{number}", patience_s, given_up=hurries)
        after = time.monotonic_ns()
        if told is None:
            break
        error_ns = (after - before) // 2
        if best is None or error_ns < best[1]:
            best = int(told) - (before + after) // 2, error_ns
    return best


def _account(channel: Channel, rank: int) -> Account | None:
    told = get_large(channel, f"{rank}/account")
    if told is None:
        return None
    facts = json.loads(told)
    clock = facts.pop("clock") or (None, None)
    facts["windows"] = tuple(facts["windows"])
    content = get_large(channel, f"{rank}/trace")
    trace = _unpacked(content) if content is not None else None
    if trace is None:
        facts["why"] = facts["why"] or _UNREAD
    table = get_large(channel, f"{rank}/collectives")
    frame = pl.read_parquet(io.BytesIO(table)) if table else pl.DataFrame(schema=COLLECTIVE_SCHEMA)
    known: dict[str, Any] = {
        "trace": trace,
        "collectives": frame,
        "add_ns": clock[0],
        "error_ns": clock[1],
    }
    return Account(**facts | known)


def _unpacked(content: bytes) -> Trace | None:
    with tempfile.TemporaryDirectory() as folder, suppress(TraceFormatError):
        path = Path(folder) / "rank.xsp"
        path.write_bytes(content)
        return load(path)
    return None
