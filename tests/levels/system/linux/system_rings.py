"""Writes rings of threads as the kernel does, byte by byte."""

from __future__ import annotations

import struct

import numpy as np

from xsp.provider import Records, Watched
from xsp_levels.system.linux.record import SystemRecords, ThreadRecords, What

BEGIN_NS = 5_000_000_000
ALL = (Watched.SWITCHES, Watched.FAULTS, Watched.WAKERS, Watched.CALLS)
EVENTS = {
    71: What.FAULT,
    72: What.MAJOR_FAULT,
    73: What.ENTER,
    74: What.EXIT,
    75: What.CYCLES,
    76: What.INSTRUCTIONS,
    77: What.CACHE_MISSES,
}
_IDENTIFIERS = {what: identifier for identifier, what in EVENTS.items()}
READ, WRITE, FUTEX, EXIT = 0, 1, 202, 60  # on x86-64


def leave(time_ns: int, cpu: int = 0, *, preempted: bool = False) -> bytes:
    return _switch(time_ns, cpu, 1 << 13 | (1 << 14 if preempted else 0))


def come(time_ns: int, cpu: int = 0) -> bytes:
    return _switch(time_ns, cpu, 0)


def enter(time_ns: int, number: int) -> bytes:
    return _sample(What.ENTER, time_ns, struct.pack("=IQq6Q4x", 68, 0, number, *range(6)))


def leave_call(time_ns: int, number: int, result: int = 0) -> bytes:
    return _sample(What.EXIT, time_ns, struct.pack("=IQqq4x", 28, 0, number, result))


def fault(time_ns: int, *, major: bool = False) -> bytes:
    return _sample(What.FAULT, time_ns, b"") + (
        _sample(What.MAJOR_FAULT, time_ns, b"") if major else b""
    )


def counter(time_ns: int, what: What) -> bytes:
    return _sample(what, time_ns, b"")


def ended(time_ns: int, thread: int) -> bytes:
    return _record(
        4, 0, struct.pack("=IIIIQQIIQ", 1, 1, thread, 1, *[BEGIN_NS + time_ns] * 2, 0, 0, 70)
    )


def lost() -> bytes:
    return _record(2, 0, struct.pack("=QQQQQ", 70, 3, BEGIN_NS, 0, 70))


def waking(time_ns: int, woken: int, waker: int, *, interrupt: bool = False) -> bytes:
    flags = 0x08 if interrupt else 0
    raw = struct.pack("=HBBi16siii", 375, flags, 0, waker, b"name", woken, 120, 0)
    return _record(9, 1, struct.pack("=QI", BEGIN_NS + time_ns, len(raw)) + raw)


def recorded(
    *threads: tuple[int, bytes],
    length_ns: int = 1000,
    wakings: bytes = b"",
    ran_ns: int = 0,
    names: dict[int, str] | None = None,
    pythons: dict[int, int] | None = None,
    processes: dict[int, str] | None = None,
    watched: tuple[Watched, ...] = ALL,
) -> Records:
    """Return the records of a visit: the kernel's number and the ring of each thread."""
    return Records(
        SystemRecords(
            BEGIN_NS,
            BEGIN_NS + length_ns,
            "x86_64",
            watched,
            tuple(
                ThreadRecords(number, (processes or {}).get(number, ""), len(ring) // 8, ran_ns)
                for number, ring in threads
            ),
            np.frombuffer(b"".join(ring for _, ring in threads), np.int64),
            EVENTS,
            np.frombuffer(wakings, np.int64),
            names or {},
            pythons or {},
        )
    )


def _switch(time_ns: int, cpu: int, flags: int) -> bytes:
    return _record(14, flags, struct.pack("=QIIQ", BEGIN_NS + time_ns, cpu, 0, 70))


def _sample(what: What, time_ns: int, raw: bytes) -> bytes:
    return _record(9, 2, struct.pack("=QQ", _IDENTIFIERS[what], BEGIN_NS + time_ns) + raw)


def _record(type_: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHH", type_, flags, 8 + len(body)) + body
