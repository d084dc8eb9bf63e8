"""Records the times at which threads of this process reach an address of code.

The kernel records, by events of two sorts (`event_ring`). A hardware breakpoint (one of the
processor's debug registers) needs no privilege if kernel.perf_event_paranoid is 2 or
less. A uprobe (a trap instruction that the kernel puts at the address) needs CAP_PERFMON,
and can record returns of functions as well. Times are those of CLOCK_MONOTONIC. Every event
belongs to one thread; threads that begin later are not seen.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xsp_levels.arming import undone_on_failure
from xsp_levels.native import event_ring, forked_child
from xsp_levels.native.mapping import mappings
from xsp_levels.native.own_file import close_own, file_of
from xsp_levels.native.symbol import Place, place_of

_EXECUTE = 4  # HW_BREAKPOINT_X
_SAMPLE = 9  # PERF_RECORD_SAMPLE
_HEADER = struct.Struct("=IHH")
_HIT = struct.Struct("=IIQ")  # process, thread, time
_UPROBE = Path("/sys/bus/event_source/devices/uprobe")

# The registers that hold the first six integer arguments, by their bit in the kernel's
# numbering (asm/perf_regs.h): di, si, dx, cx, r8, r9 (System V ABI), and x0 to x5 (AAPCS64).
_ARGUMENTS = {"x86_64": (5, 4, 3, 2, 16, 17), "aarch64": (0, 1, 2, 3, 4, 5)}


@dataclass(frozen=True, slots=True)
class Hit:
    """The arrival of a thread at an address.

    Attributes:
        time_ns: Time of CLOCK_MONOTONIC.
        thread: The kernel's number of the thread.
        arguments: The function's first six integer arguments; empty if not recorded.
    """

    time_ns: int
    thread: int
    arguments: tuple[int, ...] = ()


class Event:
    """A recording of one thread's hits of one place, from `enable` until `close`.

    Args:
        attributes: The kernel's `struct perf_event_attr`.
        thread: The kernel's number of the thread.
        pages: Size of the ring that holds the hits, a power of two; 170 hits per page.

    Raises:
        OSError: The kernel does not let this process record, or cannot record.
    """

    def __init__(self, attributes: bytes, thread: int, pages: int) -> None:
        self._arguments = bool(struct.unpack_from("=Q", attributes, 24)[0] & event_ring.REGISTERS)
        descriptor = event_ring.open_event(attributes, thread)
        with undone_on_failure(lambda: os.close(descriptor)):
            self._ring = event_ring.Ring(descriptor, pages)
        self._descriptor: int | None = descriptor
        self._file = file_of(descriptor)
        forked_child.register(self)

    def enable(self) -> None:
        """Begin to record."""
        if self._descriptor is not None:
            event_ring.enable(self._descriptor)

    def close(self) -> tuple[list[Hit], int]:
        """End, and return the hits by time and the count of lost hits; none after `abandon`."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return [], 0
        try:
            event_ring.disable(descriptor)
            (count,) = struct.unpack("=Q", os.read(descriptor, 8))
            data = self._ring.take()
        finally:
            self._ring.close()
            close_own(descriptor, self._file)
        hits = read_hits(data, arguments=self._arguments)
        return hits, max(0, count - len(hits))

    def abandon(self) -> None:
        """Close the descriptor in a forked child; the parent's recording goes on.

        The kernel does not copy the ring's mapping to a child, so nothing is unmapped.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            close_own(descriptor, self._file)


def read_hits(data: bytes, *, arguments: bool = False) -> list[Hit]:
    """Return the hits in a ring's records, up to a record that is cut off. Pure.

    Args:
        data: Records one after the other, each with a header that tells the record's length.
        arguments: Whether the registers of the first arguments were recorded.
    """
    hits: list[Hit] = []
    at = 0
    while at + _HEADER.size <= len(data):
        kind, _, size = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            break
        if kind == _SAMPLE and size >= _HEADER.size + _HIT.size:
            _, thread, time_ns = _HIT.unpack_from(data, at + _HEADER.size)
            given = _read_arguments(data, at + _HEADER.size + _HIT.size) if arguments else ()
            hits.append(Hit(time_ns, thread, given))
        at += size
    return hits


def breakpoint_at(place: Place) -> bytes:
    """Return the attributes of a hardware breakpoint."""
    return _attributes(event_ring.BREAKPOINT, bp_type=_EXECUTE, config1=place.address, config2=8)


def uprobe_at(place: Place, path: ctypes.c_char_p, *, returning: bool = False) -> bytes:
    """Return the attributes of a uprobe, on a function's begin, with arguments, or return.

    Args:
        place: First byte of the function.
        path: `place.path` for the kernel; must live until the event is open.
        returning: Whether to record returns instead of begins.

    Raises:
        OSError: This kernel has no uprobes.
    """
    kind = int((_UPROBE / "type").read_text())
    address = ctypes.cast(path, ctypes.c_void_p).value or 0
    return _attributes(
        kind,
        config=int(returning),
        config1=address,
        config2=place.offset,
        arguments=not returning,
    )


def watch(place: Place, pages: int) -> list[Event]:
    """Return disabled events that record when any thread of this process reaches a place.

    The events are hardware breakpoints; if those are refused, uprobes.

    Raises:
        OSError: Both are refused; the error is that of the breakpoints.
    """
    return _watch(place, native_threads(), pages)


def _watch(place: Place, threads: Sequence[int], pages: int) -> list[Event]:
    try:
        return open_all(breakpoint_at(place), threads, pages)
    except OSError as error:
        path = ctypes.c_char_p(os.fsencode(place.path))
        try:
            return open_all(uprobe_at(place, path), threads, pages)
        except OSError:
            raise error from None


def refusal() -> str | None:
    """Return a sentence on why `watch` cannot work here, None if `watch` can."""
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value or 0
    place = place_of(address, mappings()) or Place(address, "", 0)
    try:
        for event in _watch(place, [threading.get_native_id()], 1):
            event.close()
    except OSError as error:
        return explain(error)
    return None


def open_all(attributes: bytes, threads: Sequence[int], pages: int) -> list[Event]:
    """Return one disabled event for each thread that still runs.

    The first thread gets a ring of `pages`, the others an eighth of that, because the
    memory that a user may lock is limited; near the limit, the last threads get less.

    Raises:
        OSError: An event is refused even with the smallest ring; none is left open.
    """
    events: list[Event] = []
    with undone_on_failure(lambda: [event.close() for event in events]):
        for thread in threads:
            share = pages if not events else max(pages // 8, 1)
            if event := _open_as_large_as_possible(attributes, thread, share):
                events.append(event)
    return events


def native_threads() -> list[int]:
    """Return the kernel's numbers of this process's threads, the calling one first."""
    own = threading.get_native_id()
    return [own, *sorted({int(name) for name in os.listdir("/proc/self/task")} - {own})]


def explain(error: OSError) -> str:
    """Return a sentence on why an event was refused, and on a remedy."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return (
            "the kernel does not let this process watch its own threads (perf_event_open: "
            f"{error.strerror}); give it CAP_PERFMON, or set kernel.perf_event_paranoid to 2 or "
            "less, and in a container allow perf_event_open"
        )
    if error.errno == errno.ENOMEM:
        return (
            "this user may not lock as much memory as recording every thread takes; raise the "
            "limit (ulimit -l, or kernel.perf_event_mlock_kb)"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            "this process may not open as many files as recording every thread takes; raise the "
            "limit (ulimit -n)"
        )
    return f"the kernel cannot watch addresses here (perf_event_open: {error.strerror})"


def _open_as_large_as_possible(attributes: bytes, thread: int, pages: int) -> Event | None:
    try:
        return Event(attributes, thread, pages)
    except ProcessLookupError:  # the thread has ended meanwhile
        return None
    except OSError as error:
        if error.errno != errno.ENOMEM or pages == 1:
            raise
    return _open_as_large_as_possible(attributes, thread, pages // 2)


def _attributes(
    kind: int,
    *,
    config: int = 0,
    bp_type: int = 0,
    config1: int = 0,
    config2: int = 0,
    arguments: bool = False,
) -> bytes:
    flags = event_ring.DISABLED | event_ring.EXCLUDE_KERNEL | event_ring.EXCLUDE_HYPERVISOR
    return event_ring.attributes(
        kind,
        config,
        event_ring.TID | event_ring.TIME | (event_ring.REGISTERS if arguments else 0),
        flags,
        breakpoint_type=bp_type,
        config1=config1,
        config2=config2,
        registers=sum(1 << bit for bit in _argument_bits()) if arguments else 0,
    )


def _read_arguments(data: bytes, at: int) -> tuple[int, ...]:
    (abi,) = struct.unpack_from("=Q", data, at)
    if abi == 0:  # the thread was in the kernel
        return ()
    bits = _argument_bits()
    values = struct.unpack_from(f"={len(bits)}q", data, at + 8)
    by_bit = dict(zip(sorted(bits), values, strict=True))
    return tuple(by_bit[bit] for bit in bits)


def _argument_bits() -> tuple[int, ...]:
    return _ARGUMENTS.get(platform.machine(), ())
