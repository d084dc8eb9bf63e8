"""Memory: a process in, what it and its descendants have resident together out."""

from __future__ import annotations

from contextlib import suppress

import psutil


class Family:
    """A process and all that it starts.

    Attributes:
        members: The descendants seen so far, of which some may have ended.
    """

    def __init__(self, leader: int) -> None:
        self.members: set[psutil.Process] = set()
        self._leader = psutil.Process(leader)

    def exceeds(self, limit_bytes: int | None) -> int:
        """Look for descendants, and return the memory resident if that is above the limit, or 0."""
        with suppress(psutil.Error):
            self.members.update(self._leader.children(recursive=True))
        if limit_bytes is None:
            return 0
        processes = (self._leader, *self.members)
        used = sum(_resident(process) for process in processes)
        if used > limit_bytes and self.members:
            # What processes share is counted for each of them; the exact number takes longer.
            used = sum(_proportional(process) for process in processes)
        return used if used > limit_bytes else 0

    def left(self) -> bool:
        """Return whether any descendant still runs."""
        self.exceeds(None)
        return any(_runs(process) for process in self.members)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _proportional(process: psutil.Process) -> int:
    """Return the memory that a process has resident, its part of what it shares with others."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
