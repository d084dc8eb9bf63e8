"""Exchange: what a rank has measured in, what all ranks have measured out at rank 0.

Every rank but 0 leaves its trace in the channel, and ends as it would without xsp. Rank 0 collects
them, and meanwhile tells its time to ranks on other machines, whose clocks differ.
"""

from __future__ import annotations

import io
import json
import math
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from xsp.clock import SystemClock
from xsp.errors import TraceFormatError
from xsp.rank.apart import listed
from xsp.rank.channel import MACHINE, Channel, awaited, get_large, put_large
from xsp.rank.identity import boot
from xsp.rank.wait import COLLECTIVE_SCHEMA
from xsp.trace import Trace, load

_QUESTIONS = 8  # readings of another machine's clock, of which the quickest is the best
_FIRST_ANSWER_S, _ANSWER_S = 30.0, 1.0
_PAUSE_S = 0.002
_SILENT_S = 5.0  # that rank 0 waits for others without a word
_SILENT = "it ended without handing over what it had measured"
_UNREAD = "what it handed over cannot be read"
_LOST = "the store was gone before it had handed over what it had measured"


@dataclass(frozen=True, slots=True)
class Account:
    """What a rank measured.

    Attributes:
        rank: Number of the process.
        trace: Its trace; None if there is none.
        why: Why there is none.
        began_ns: When what the trace shows began, on the rank's clock.
        wall_ns: Time of day less the time of that clock.
        host: Name of the machine.
        machine: What tells the machine, since it was started, from others.
        trouble: Why the rank did not go on as rank 0 did; empty if it did.
        failed: Exception or exit code that ended its script; empty if it ended well.
        rungs: For each group, by its number, the rung of each of its evaluations.
        collectives: Columns of `wait.COLLECTIVE_SCHEMA`, on the rank's clock.
        add_ns: What is added to its clock to have rank 0's; None: not asked.
        error_ns: By how much that may be wrong.
    """

    rank: int
    trace: Trace | None = None
    why: str = ""
    began_ns: int = 0
    wall_ns: int = field(default_factory=lambda: SystemClock().wall_offset())
    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=boot)
    trouble: str = ""
    failed: str = ""
    rungs: Mapping[int, list[str]] = field(default_factory=dict)
    collectives: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema=COLLECTIVE_SCHEMA)
    )
    add_ns: int | None = None
    error_ns: int | None = None


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
    facts = {
        name: value
        for name, value in _plain(account).items()
        if name not in ("trace", "collectives", "add_ns", "error_ns")
    }
    facts["clock"] = clock
    if account.trace is not None:
        put_large(channel, f"{account.rank}/trace", _packed(account.trace))
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
    """Return what all ranks measured, that of this one, rank 0, first.

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
            answered[rank] += _answer(channel, rank, answered[rank])
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
    """Return what is added to this clock to have rank 0's, and the error; None if unknown."""
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


def _answer(channel: Channel, rank: int, number: int) -> bool:
    """Tell a rank this rank's time, if it asks; return whether it did."""
    if number >= _QUESTIONS or channel.get(f"{rank}/asks/{number}") is None:
        return False
    channel.put(f"{rank}/told/{number}", str(time.monotonic_ns()).encode())
    return True


def _account(channel: Channel, rank: int) -> Account | None:
    told = get_large(channel, f"{rank}/account")
    if told is None:
        return None
    facts = json.loads(told)
    clock = facts.pop("clock") or (None, None)
    facts["rungs"] = {int(group): rungs for group, rungs in facts["rungs"].items()}
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


def _plain(account: Account) -> dict[str, Any]:
    return {name: getattr(account, name) for name in Account.__dataclass_fields__}


def _packed(trace: Trace) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return trace.save(Path(folder) / "rank.xsp").read_bytes()


def _unpacked(content: bytes) -> Trace | None:
    with tempfile.TemporaryDirectory() as folder, suppress(TraceFormatError):
        path = Path(folder) / "rank.xsp"
        path.write_bytes(content)
        return load(path)
    return None
