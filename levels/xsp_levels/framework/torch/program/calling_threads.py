"""Calls of models in; whether one thread alone makes them out."""

from __future__ import annotations

import threading
from collections.abc import Callable

# Parts of the names of threads that libraries start, and that call no models.
_HELPERS = ("QueueFeeder", "pin_memory", "tqdm", "Tqdm", "TMonitor")


class CallingThreads:
    """The threads that call models.

    Args:
        several: Called once, when more than one thread calls models, or may do so.

    Attributes:
        alone: Whether one thread alone calls models, as far as is known.
    """

    def __init__(self, several: Callable[[], None]) -> None:
        self.alone = True
        self._several = several
        self._seen: set[int] = set()
        self._running = threading.active_count()

    def note(self) -> bool:
        """Note that this thread calls a model; return whether it alone does."""
        if not self.alone:
            return False
        self._seen.add(threading.get_ident())
        if len(self._seen) == 1 and not self._has_started_more():
            return True
        self.alone = False
        self._several()
        return False

    def _has_started_more(self) -> bool:
        """Return whether the program has started threads that may call models."""
        running = threading.active_count()
        if running <= self._running:
            return False
        self._running = running
        names = [thread.name for thread in threading.enumerate()[-1:]]
        return not all(any(known in name for known in _HELPERS) for name in names)
