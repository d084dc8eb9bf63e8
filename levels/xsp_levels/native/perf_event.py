"""Records the times at which threads of this process reach an address of code.

`perf_event_open(2)` through ctypes, in two forms. A hardware breakpoint (one of the
processor's debug registers) needs no privilege if kernel.perf_event_paranoid is 2 or
less. A uprobe (a trap instruction that the kernel puts at the address) needs CAP_PERFMON,
and can record returns of functions as well. Times are those of CLOCK_MONOTONIC. Every event
belongs to one thread; threads that begin later are not seen.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xsp_levels.arming import undone_on_failure
from xsp_levels.native import forked_child
from xsp_levels.native.mapping import mappings
from xsp_levels.native.symbol import Place, place_of

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
_BREAKPOINT = 5  # PERF_TYPE_BREAKPOINT
_EXECUTE = 4  # HW_BREAKPOINT_X
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _USE_CLOCK, _DISABLED = 1 << 5, 1 << 6, 1 << 25, 1
_TID, _TIME, _REGISTERS = 1 << 1, 1 << 2, 1 << 12
_CLOCK_MONOTONIC = 1
_SAMPLE, _LOST = 9, 2
_HEADER = struct.Struct("=IHH")
_HIT = struct.Struct("=IIQ")  # process, thread, time
# struct perf_event_attr up to `sample_max_stack` (the struct's version 5, 112 bytes).
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQQQQIiQIHH")
_HEAD, _DATA = 1024, mmap.PAGESIZE  # offsets of the ring's fill count, and of its records
_FAILED = ctypes.c_void_p(-1).value  # MAP_FAILED
_UPROBE = Path("/sys/bus/event_source/devices/uprobe")

# The registers that hold the first six integer arguments, by their bit in the kernel's
# numbering (asm/perf_regs.h): di, si, dx, cx, r8, r9 (System V ABI), and x0 to x5 (AAPCS64).
_ARGUMENTS = {"x86_64": (5, 4, 3, 2, 16, 17), "aarch64": (0, 1, 2, 3, 4, 5)}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


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
        self._arguments = bool(struct.unpack_from("=Q", attributes, 24)[0] & _REGISTERS)
        descriptor = _perf_event_open(attributes, thread)
        self._size = (1 + pages) * mmap.PAGESIZE
        try:
            self._ring = _map(descriptor, self._size)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor: int | None = descriptor
        forked_child.register(self)

    def enable(self) -> None:
        """Begin to record."""
        if self._descriptor is not None:
            fcntl.ioctl(self._descriptor, _ENABLE, 0)

    def close(self) -> tuple[list[Hit], int]:
        """End, and return the hits by time and the count of lost hits; none after `abandon`."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return [], 0
        try:
            fcntl.ioctl(descriptor, _DISABLE, 0)
            (count,) = struct.unpack("=Q", os.read(descriptor, 8))
            head = ctypes.c_uint64.from_address(self._ring + _HEAD).value
            data = ctypes.string_at(self._ring + _DATA, min(head, self._size - _DATA))
        finally:
            _libc.munmap(ctypes.c_void_p(self._ring), ctypes.c_size_t(self._size))
            os.close(descriptor)
        hits = read_hits(data, arguments=self._arguments)
        return hits, max(0, count - len(hits))

    def abandon(self) -> None:
        """Close the descriptor in a forked child; the parent's recording goes on.

        The kernel does not copy the ring's mapping to a child, so nothing is unmapped.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


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
    return _attributes(_BREAKPOINT, bp_type=_EXECUTE, config1=place.address, config2=8)


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
    address = ctypes.cast(_libc.getpid, ctypes.c_void_p).value or 0
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
    registers = sum(1 << bit for bit in _argument_bits()) if arguments else 0
    return _ATTRIBUTES.pack(
        kind,
        _ATTRIBUTES.size,
        config,
        1,  # every hit is recorded
        _TID | _TIME | (_REGISTERS if arguments else 0),
        0,
        _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _USE_CLOCK,
        0,
        bp_type,
        config1,
        config2,
        0,
        registers,
        0,
        _CLOCK_MONOTONIC,
        0,
        0,
        0,
        0,
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


def _map(descriptor: int, size: int) -> int:
    """Return the address of an event's ring; Python's `mmap` would hold a second descriptor."""
    address: int | None = _libc.mmap(
        None,
        ctypes.c_size_t(size),
        ctypes.c_int(mmap.PROT_READ | mmap.PROT_WRITE),
        ctypes.c_int(mmap.MAP_SHARED),
        ctypes.c_int(descriptor),
        ctypes.c_long(0),
    )
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        # For this mapping, EPERM means that the limit of locked memory is reached.
        code = errno.ENOMEM if code == errno.EPERM else code
        raise OSError(code, os.strerror(code))
    return address


def _perf_event_open(attributes: bytes, thread: int) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    descriptor: int = _libc.syscall(
        ctypes.c_long(number),
        buffer,
        ctypes.c_int(thread),
        ctypes.c_int(-1),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor
