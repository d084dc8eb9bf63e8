"""Reserves memory for callbacks, and takes only those pages that are written to."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on


class ReservedMemory:
    """Bytes that are zero at first, and keep their address while this object lives.

    Args:
        size: Number of bytes.

    Attributes:
        memory: The bytes.
        start: Address of the first byte.

    Raises:
        OSError: The system does not reserve that many bytes.
    """

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self.memory = mmap.mmap(-1, size, flags=flags)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def clear(self, used: int) -> None:
        """Give the pages of the first `used` bytes back; the bytes are zero again."""
        if used:
            with contextlib.suppress(OSError):  # if refused, the pages are kept
                self.memory.madvise(mmap.MADV_DONTNEED, 0, used)
