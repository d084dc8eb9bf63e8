"""Address space for callbacks to write to: a size in, zeroed memory out that costs what is used."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on


class ReservedMemory:
    """Bytes that are zero at first, and stay where they are while this object lives.

    Args:
        size: How many bytes.

    Attributes:
        memory: The bytes.
        start: Their address.

    Raises:
        OSError: The system does not reserve that many bytes.
    """

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self.memory = mmap.mmap(-1, size, flags=flags)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def clear(self, used: int) -> None:
        """Give the memory of the first `used` bytes back; they are zero again."""
        if used:
            with contextlib.suppress(OSError):  # then its pages are merely not given back
                self.memory.madvise(mmap.MADV_DONTNEED, 0, used)
