"""Lulls: the thread of a block in, what it runs while it evaluates nothing for long out.

What a program does once (importing libraries, setting a trainer up, saving weights) is on no rung,
for no second time comes to record it. A thread of xsp's looks at the stack of the block's thread:
a hundred times a second where nothing has been evaluated between two looks; while evaluations
follow each other less and less often, ten times a second in the end. A look keeps the other thread
from Python's lock for some 20 µs, a fiftieth of a per cent of the time in which latencies are
taken. What happens between quick evaluations is not seen by that, and is on the rung `stack`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from types import FrameType

from xsp.composition import LOOK_NS, Journal, Lull, Place

_LEAST_S, _MOST_S = LOOK_NS / 1e9, 0.1  # between two looks
_MANY = 1000  # looks at a program that evaluates nothing at all, until they become fewer
_DEEPEST = 100  # calls under way that are kept, the outermost first
_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep


class Lulls:
    """Looks at the thread of a block from `begin` to `end`, and notes what it sees in the journal.

    Args:
        journal: What the program does.
        progress: Returns how many evaluations have begun, and whether the block's thread is in one.
    """

    def __init__(self, journal: Journal, progress: Callable[[], tuple[int, bool]]) -> None:
        self._journal, self._progress = journal, progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="xsp lulls", daemon=True)

    def begin(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """End looking."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        began_ns = last_ns = monotonic_ns()
        seen, wait_s = 0, _LEAST_S
        while not self._over.wait(wait_s) and self._journal.unwatched_ns is None:
            count, inside = self._progress()
            now_ns = monotonic_ns()
            if inside or count != seen:
                wait_s = min(2 * wait_s, _MOST_S)
            else:
                wait_s = max(_LEAST_S, (now_ns - began_ns) / 1e9 / _MANY)
                self._look(now_ns, now_ns - last_ns)
            seen, last_ns = -1 if inside else count, now_ns

    def _look(self, now_ns: int, lasts_ns: int) -> None:
        places = stack(sys._current_frames().get(self._journal.thread))
        if places and not places[-1].file.startswith(_OWN_FOLDER):  # else it waits for xsp
            self._journal.lulls.append(Lull(now_ns, lasts_ns, places))


def stack(frame: FrameType | None) -> tuple[Place, ...]:
    """Return the calls under way, the outermost first, given the frame of the innermost."""
    places = []
    while frame is not None:
        code = frame.f_code
        places.append(Place(code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(places[: -_DEEPEST - 1 : -1])
