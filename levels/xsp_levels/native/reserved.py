"""Address space for callbacks to write to: it costs memory only where something was written."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on


class Reserved:
    """So many bytes, all zero at first; they stay where they are while this object lives.

    Args:
        size: How many.

    Attributes:
        memory: The bytes.
        start: Their address.

    Raises:
        OSError: The system does not reserve so many.
    """

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self.memory = mmap.mmap(-1, size, flags=flags)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def clear(self, used: int) -> None:
        """Give the memory of the first bytes back; they are zero again."""
        if used:
            with contextlib.suppress(OSError):  # then its pages are merely not given back
                self.memory.madvise(mmap.MADV_DONTNEED, 0, used)
