"""Interruptions: what holds a program up by no line of its own, as page faults, in; times out.

A minor page fault is the system's work of handing a page of memory to the process: a microsecond
in which the program stands still. An allocator that gives memory back to the system after each
evaluation pays for the same pages again in the next.

Python collects garbage once so many more objects were made than deleted, whoever made them: what
xsp keeps of each evaluation brings a collection of 0.1 ms about every 20 to 60 evaluations, which
is as likely to fall into one of them as between two.

A thread that waits until xsp has done its work on another one is held up; that other one is not.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

if sys.platform == "win32":  # which has no such count

    def page_faults() -> int | None:
        """Return None: the number of page faults is not known here."""
        return None

else:
    import resource

    def page_faults() -> int | None:
        """Return how many minor page faults all threads of this process have taken so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class NotedLock:
    """A lock that a thread may hold several times, and for which no wait goes unnoted.

    Args:
        now: The clock.
        note: Called with begin and end (ns) of the time that a thread waited, by that thread.
    """

    def __init__(self, now: Callable[[], int], note: Callable[[int, int], None]) -> None:
        self._now, self._note = now, note
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            began_ns = self._now()
            self._lock.acquire()
            self._note(began_ns, self._now())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Collections:
    """Notes when Python collects garbage because of objects that xsp keeps.

    What other threads make in `own_work`, as far as they run meanwhile, is taken for xsp's.

    Args:
        now: The clock.
        note: Called with begin and end (ns) of xsp's part of a collection, which is as large as its
            part of the objects that were made since the one before; on the thread that collects.
    """

    def __init__(self, now: Callable[[], int], note: Callable[[int, int], None]) -> None:
        self._now, self._note = now, note
        self._kept = 0  # objects of xsp's, since the last collection
        self._part = 0.0  # of the collection under way
        self._began_ns = 0

    def begin(self) -> None:
        """Begin to note collections."""
        gc.callbacks.append(self._collecting)

    def end(self) -> None:
        """Note no more."""
        with suppress(ValueError):  # the program may have cleared them
            gc.callbacks.remove(self._collecting)

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Count what is made in the block, and kept after it, as xsp's."""
        before, *_ = gc.get_count()
        try:
            yield
        finally:
            after, *_ = gc.get_count()
            self._kept += max(after - before, 0)

    def _collecting(self, phase: str, _: object) -> None:
        if phase == "start":
            (made, *_), (least, *_) = gc.get_count(), gc.get_threshold()
            by_itself = gc.isenabled() and 0 < least < made  # else the program asked for it
            self._part = min(self._kept / made, 1.0) if by_itself else 0.0
            self._began_ns = self._now()
            return
        self._kept, end_ns = 0, self._now()
        if self._part:
            self._note(end_ns - int(self._part * (end_ns - self._began_ns)), end_ns)


def interrupted(frame: FrameType | None) -> FrameType | None:
    """Return the frame that a collection interrupts, if one of `gc.callbacks` runs, else the frame.

    Whoever waits for Python's lock during a collection gets it in the first of these functions.
    """
    told = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None and frame.f_code in told:
        frame = frame.f_back
    return frame
