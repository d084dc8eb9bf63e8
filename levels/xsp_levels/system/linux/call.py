"""Pairs the begins and ends of system calls, and makes rows of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.native import thread
from xsp_levels.system.linux.call_name import call_names
from xsp_levels.system.linux.moment import Moments
from xsp_levels.system.linux.record import Integers, SystemRecords, What

# Calls whose result is a number of bytes
READING = ("read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg")
WRITING = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg")
MOVING = ("sendfile", "copy_file_range", "splice")  # read there and written here

_MOST_ERRNO = 4095  # MAX_ERRNO: results from here to -1 are errors
# Of a call that a signal interrupts the kernel notes how it goes on (include/linux/errno.h).
_RESTARTS = {
    512: "ERESTARTSYS",
    513: "ERESTARTNOINTR",
    514: "ERESTARTNOHAND",
    516: "ERESTART_RESTARTBLOCK",
}
_NEVER_RETURN = ("exit", "exit_group")


@dataclass(frozen=True, slots=True)
class Calls:
    """System calls, by thread and time.

    Attributes:
        thread: Index of the thread in `SystemRecords.threads`.
        start_ns: Begin, since the visit began; 0: at the visit's begin or before it.
        end_ns: End, since the visit began; the visit's length: at its end or later.
        number: The kernel's number of the call.
        result: What the call returned; 0 where `returned` is false.
        returned: Whether the call ended within the visit.
    """

    thread: Integers
    start_ns: Integers
    end_ns: Integers
    number: Integers
    result: Integers
    returned: npt.NDArray[np.bool_]


def read_calls(records: SystemRecords, moments: Moments) -> Calls:
    """Return the system calls of a visit. Pure.

    A call that began before the visit, or ended after it, is cut there. Of a begin or an end whose
    other half is lost nothing is known.
    """
    ends = moments.of(What.ENTER, What.EXIT)
    count = len(ends.thread)
    enters = ends.what == What.ENTER
    # One more on either side stands for what was before and after the records.
    edge = np.concatenate([[-1], ends.thread, [-1]])
    first, last = edge[:-2] != ends.thread, edge[2:] != ends.thread
    following = np.minimum(np.arange(count) + 1, max(count - 1, 0))
    # A signal handler's return has an end without a number.
    alike = (ends.value[following] == ends.value) | (ends.value[following] == -1)
    whole = enters & ~last & (ends.what[following] == What.EXIT) & alike
    never = [
        number for number, name in call_names(records.machine).items() if name in _NEVER_RETURN
    ]
    lossy = np.array([each.lost > 0 for each in records.threads], bool)
    open_end = enters & last & ~np.isin(ends.value, never) & ~lossy[ends.thread]
    begun = whole | open_end
    cut = ~enters & first
    at = np.flatnonzero(begun | cut)
    length = records.end_ns - records.begin_ns
    result = np.where(whole[at], ends.result[following[at]], ends.result[at])
    start = np.where(begun[at], ends.time_ns[at], 0)
    end = np.where(whole[at], ends.time_ns[following[at]], ends.time_ns[at])
    end[open_end[at]] = length
    returned = ~open_end[at]
    kept = end > start
    return Calls(
        ends.thread[at][kept],
        start[kept],
        end[kept],
        ends.value[at][kept],
        np.where(returned, result, 0)[kept],
        returned[kept],
    )


def call_rows(records: SystemRecords, calls: Calls) -> SpanRows:
    """Return one row per system call. Pure."""
    if not len(calls.thread):
        return no_rows()
    numbers = np.array([each.number for each in records.threads], np.int64)
    processes = pl.Series([each.process or None for each in records.threads], dtype=pl.String)
    failed = (calls.result < 0) & (calls.result >= -_MOST_ERRNO)
    errors = _gathered(np.where(failed, -calls.result, 0), _error)
    names = _gathered(calls.number, lambda number: call_name(records.machine, number))
    counted = names.is_in([*READING, *WRITING, *MOVING]).to_numpy() & calls.returned & ~failed
    return span_rows(
        {
            "kind": Kind.SYSCALL.value,
            "name": names,
            "start_ns": calls.start_ns + records.begin_ns,
            "end_ns": calls.end_ns + records.begin_ns,
            "thread": thread.named(numbers, records.pythons)[calls.thread],
            "attr.bytes": pl.Series(calls.result).set(pl.Series(~counted), None),
            "attr.error": errors,
            "attr.process_name": processes.gather(calls.thread),
        }
    )


def call_name(machine: str, number: int) -> str:
    """Return the name of a system call.

    >>> call_name("x86_64", 0), call_name("aarch64", 63), call_name("x86_64", 9999)
    ('read', 'read', 'syscall 9999')
    """
    return call_names(machine).get(number, f"syscall {number}")


def _error(number: int) -> str | None:
    if number == 0:
        return None
    return errno.errorcode.get(number) or _RESTARTS.get(number, f"error {number}")


def _gathered(numbers: Integers, name: Callable[[int], str | None]) -> pl.Series:
    values, places = np.unique(numbers, return_inverse=True)
    names = [name(value) for value in values.tolist()]
    return pl.Series(names, dtype=pl.String).gather(places)
