"""Output: what a process prints in, its last lines out; all else is forgotten."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_KEPT_BYTES = 16 * 1024
_AT_ONCE_BYTES = 1 << 20
_LINES = 8


class Output:
    """The pipe that a process prints to.

    Attributes:
        pipe: The end to read from.
        entry: The end for the process; -1 once it is closed.
    """

    def __init__(self) -> None:
        self.pipe, self.entry = os.pipe()
        os.set_blocking(self.pipe, False)
        with suppress(OSError):  # more than this user may have
            fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, _AT_ONCE_BYTES)
        self._tail = b""

    def started(self) -> None:
        """Close the end that the process now has."""
        os.close(self.entry)
        self.entry = -1

    def drain(self) -> bool:
        """Read what is there, a mebibyte at most; return whether there may be more to come."""
        try:
            piece = os.read(self.pipe, _AT_ONCE_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + piece[-_KEPT_BYTES:])[-_KEPT_BYTES:]
        return bool(piece)

    def last_lines(self) -> str:
        """Return the last lines, behind a colon; an empty text where nothing was printed."""
        self.drain()
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return ": " + "\n".join(lines[-_LINES:]) if lines else ""

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.pipe)
        if self.entry >= 0:
            os.close(self.entry)
