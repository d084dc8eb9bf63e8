"""Opens the kernel's performance events, and reads the rings that the events write records to.

`perf_event_open(2)` through ctypes. What an event watches and records stands in the kernel's
`struct perf_event_attr` (`attributes`); a ring is memory that the kernel and this process share.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
from struct import Struct

# PERF_TYPE_*, and configurations of PERF_TYPE_HARDWARE and PERF_TYPE_SOFTWARE
HARDWARE, SOFTWARE, TRACEPOINT, BREAKPOINT = 0, 1, 2, 5
CYCLES, INSTRUCTIONS, CACHE_MISSES = 0, 1, 3
PAGE_FAULTS, MAJOR_FAULTS, DUMMY = 2, 6, 9
# Flags of an event, by their bits in the struct's word of flags
DISABLED, PINNED, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 0, 1 << 2, 1 << 5, 1 << 6
TASK, TIMES_IN_ALL_RECORDS, USE_CLOCK, SWITCHES = 1 << 13, 1 << 18, 1 << 25, 1 << 26
# What samples hold (PERF_SAMPLE_*), in the order of the bytes; the identifier comes first
TID, TIME, CPU, RAW, REGISTERS, IDENTIFIER = 1 << 1, 1 << 2, 1 << 7, 1 << 10, 1 << 12, 1 << 16
# What reading an event's counter tells (PERF_FORMAT_*); LOST since Linux 6.0
TIME_RUNNING, ID, GROUP, LOST = 1 << 1, 1 << 2, 1 << 3, 1 << 4

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE, _SET_OUTPUT, _SET_FILTER = 0x2400, 0x2401, 0x2405, 0x40082406
_IDENTIFIER = 0x80082407
_CLOCK_MONOTONIC = 1
# struct perf_event_attr up to `sample_max_stack` (the struct's version 5, 112 bytes).
_ATTRIBUTES = Struct("=IIQQQQQIIQQQQIiQIHH")
_HEAD, _TAIL, _DATA = 1024, 1032, mmap.PAGESIZE  # offsets: bytes written, bytes read, the records
_FAILED = ctypes.c_void_p(-1).value  # MAP_FAILED
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


def attributes(  # noqa: PLR0913  # fields of a struct
    kind: int,
    config: int,
    sampled: int,
    flags: int,
    *,
    period: int = 1,
    read_format: int = 0,
    breakpoint_type: int = 0,
    config1: int = 0,
    config2: int = 0,
    registers: int = 0,
) -> bytes:
    """Return the struct of an event that records what happens, by CLOCK_MONOTONIC.

    Args:
        kind: The event's type (`SOFTWARE`, `TRACEPOINT`, `BREAKPOINT`, or a device's number).
        config: What the event watches.
        sampled: What samples hold; 0: the event only counts.
        flags: Flags of the event.
        period: After how many happenings a sample is recorded; by default after each.
        read_format: What reading the event's counter tells.
        breakpoint_type: What a breakpoint watches (HW_BREAKPOINT_*).
        config1: Address of a breakpoint, or of a device's first argument.
        config2: Length of a breakpoint, or a device's second argument.
        registers: Mask of the registers of the program that samples hold.
    """
    return _ATTRIBUTES.pack(
        kind,
        _ATTRIBUTES.size,
        config,
        period if sampled else 0,
        sampled,
        read_format,
        flags | USE_CLOCK,
        0,
        breakpoint_type,
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


def open_event(attributes: bytes, thread: int, *, cpu: int = -1, leader: int = -1) -> int:
    """Open an event, and return its descriptor.

    Args:
        attributes: The kernel's `struct perf_event_attr`.
        thread: The kernel's number of the thread; -1: whatever runs on `cpu`.
        cpu: Number of a processor; -1: any.
        leader: Descriptor of the event that this one is switched and read with; -1: none.

    Raises:
        OSError: The kernel refuses.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}")
    descriptor: int = _libc.syscall(
        ctypes.c_long(number),
        ctypes.create_string_buffer(attributes, len(attributes)),
        ctypes.c_int(thread),
        ctypes.c_int(cpu),
        ctypes.c_int(leader),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def enable(descriptor: int) -> None:
    """Let an event, and those that it leads, record."""
    fcntl.ioctl(descriptor, _ENABLE, 0)


def disable(descriptor: int) -> None:
    """Let an event, and those that it leads, record no longer."""
    fcntl.ioctl(descriptor, _DISABLE, 0)


def write_into(descriptor: int, ring_of: int) -> None:
    """Let an event write its records into the ring of another one of the same thread."""
    fcntl.ioctl(descriptor, _SET_OUTPUT, ring_of)


def identifier(descriptor: int) -> int:
    """Return the kernel's identifier of an event, which its samples bear."""
    number = ctypes.c_uint64()
    fcntl.ioctl(descriptor, _IDENTIFIER, number)
    return number.value


def set_filter(descriptor: int, condition: str) -> None:
    """Let a tracepoint record only what satisfies a condition; can be said once."""
    fcntl.ioctl(descriptor, _SET_FILTER, condition.encode() + b"\0")


class Ring:
    """The ring of an event: memory into which the kernel writes records until it is full.

    Args:
        descriptor: The event's descriptor, which the caller closes after the ring.
        pages: Size of the ring, a power of two.

    Attributes:
        capacity: How many bytes of records it holds.

    Raises:
        OSError: The memory is refused, with ENOMEM where a limit of locked memory is reached.
    """

    def __init__(self, descriptor: int, pages: int) -> None:
        self.capacity = pages * mmap.PAGESIZE
        self._size = _DATA + self.capacity
        # Python's `mmap` would hold a second descriptor.
        address: int | None = _libc.mmap(
            None,
            ctypes.c_size_t(self._size),
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
        self._address = address

    @property
    def pending(self) -> int:
        """How many bytes of records have been written since the last time they were taken."""
        return self._word(_HEAD).value - self._word(_TAIL).value

    def take(self) -> bytes:
        """Return the records since the last time, whole ones, while the event is disabled."""
        data = bytearray(self.pending)
        if data:
            self.take_into((ctypes.c_char * len(data)).from_buffer(data))
        return bytes(data)

    def take_into(self, memory: ctypes.Array[ctypes.c_char]) -> None:
        """Copy the records since the last time, while the event is disabled.

        Args:
            memory: Memory of `pending` bytes.
        """
        tail, length = self._word(_TAIL), len(memory)
        begin = tail.value % self.capacity
        first = min(length, self.capacity - begin)
        target = ctypes.addressof(memory)
        ctypes.memmove(target, self._address + _DATA + begin, first)
        ctypes.memmove(target + first, self._address + _DATA, length - first)
        tail.value += length

    def _word(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self._address + offset)

    def close(self) -> None:
        """Give the memory back.

        In a forked child there is none to give back: the kernel does not copy it there.
        """
        _libc.munmap(ctypes.c_void_p(self._address), ctypes.c_size_t(self._size))
