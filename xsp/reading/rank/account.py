"""Results of one rank of a distributed program, as rank 0 receives them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import polars as pl

from xsp.clock import SystemClock
from xsp.reading.rank.wait import COLLECTIVE_SCHEMA
from xsp.record.rank import boot
from xsp.trace import Trace


@dataclass(frozen=True, slots=True)
class Account:
    """Results of a rank.

    Attributes:
        rank: Number of the process.
        trace: Its trace; None if there is none.
        why: Why there is none.
        began_ns: When what the trace shows began, on the rank's clock.
        wall_ns: Time of day less the time of that clock.
        host: Name of the machine.
        machine: What tells the machine, since it was started, from others.
        failed: Exception or exit code that ended its script; empty if it ended well.
        windows: What was recorded in each window of its program.
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
    failed: str = ""
    windows: tuple[str, ...] = ()
    collectives: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema=COLLECTIVE_SCHEMA)
    )
    add_ns: int | None = None
    error_ns: int | None = None
