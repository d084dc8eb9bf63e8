"""Lulls: the thread of a block in, what it runs while it evaluates nothing for long out.

What a program does once (importing libraries, setting a trainer up, saving weights) is on no rung,
for no second time comes to record it. A thread of xsp's looks at the stack of the block's thread:
a hundred times a second where nothing is evaluated; while evaluations follow each other less and
less often, ten times a second in the end. A look keeps the other thread from Python's lock for some
20 µs, a fiftieth of a per cent of the time in which latencies are taken. What happens between quick
evaluations is not seen by that, and is on the rung `stack`.

A lull that is longer than those before ends what is recorded: operators of whatever else the
program does would pile up, a gigabyte in six seconds.
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns
from types import CodeType, FrameType

from xsp.composition import LOOK_NS, Journal, Lull, Place
from xsp.session import interrupted

_LEAST_S, _MOST_S = LOOK_NS / 1e9, 0.1  # between two looks
_MANY = 1000  # looks in one lull, or ten times as many in all, until they become fewer
_PATIENCE_S = 1.0  # for the last look; in a fork of the process the thread is not there
_IMPORTLIB = ("<frozen importlib", importlib.__file__)  # files of what makes imports
_DEEPEST = 100  # calls under way that are kept, the outermost first
_REST_NS, _LONGER = 250_000_000, 4  # a lull as long, and so many times as long as those before


class Lulls:
    """Looks at the thread of a block from `begin` to `end`, and notes what it sees in the journal.

    Args:
        journal: What the program does.
        progress: Returns how many evaluations have begun, whether the block's thread is in one, and
            when the last one ended.
        rest: Ends what is recorded, if no evaluation is under way, and returns whether it did.
    """

    def __init__(
        self,
        journal: Journal,
        progress: Callable[[], tuple[int, bool, int]],
        rest: Callable[[], bool],
    ) -> None:
        self._journal, self._progress, self._rest = journal, progress, rest
        self._over, self._ended = threading.Event(), threading.Event()
        self._own = tuple(
            os.path.dirname(sys.modules[name].__file__ or "") + os.sep
            for name in ("xsp", "xsp_levels")
            if name in sys.modules and sys.modules[name].__file__
        )
        self._places: dict[tuple[CodeType, int], Place] = {}
        self._depth = 0  # calls that were under way when the block began

    def begin(self) -> None:
        """Begin to look, if the system allows one more thread: names are no more than welcome.

        The thread is none of `threading`'s, so that the program counts as many as without xsp.
        """
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith(self._own):
            frame = frame.f_back
        self._depth = _depth(frame)
        try:
            _thread.start_new_thread(self._watch, ())
        except RuntimeError:
            self._ended.set()

    def end(self) -> None:
        """End looking."""
        self._over.set()
        self._ended.wait(_PATIENCE_S)

    def _watch(self) -> None:
        try:
            self._look_on()
        finally:
            self._ended.set()

    def _look_on(self) -> None:
        last_ns, seen, here, wait_s = monotonic_ns(), 0, 0, _LEAST_S
        since_ns, longest_ns, rested = last_ns, 0, False
        while not self._over.wait(wait_s) and self._journal.unwatched_ns is None:
            count, inside, ended_ns = self._progress()
            now_ns = monotonic_ns()
            if inside or count != seen:
                longest_ns = max(longest_ns, last_ns - since_ns) if seen else 0
                since_ns, here, rested = max(last_ns, ended_ns), 0, False
            if inside or (now_ns - since_ns < LOOK_NS and not here):
                wait_s = min(2 * wait_s, _MOST_S)
            else:
                # What keeps Python's lock, such as a collection of garbage, makes the look late.
                late_ns = now_ns - last_ns - int(wait_s * 1e9)
                lasts_ns = now_ns - max(last_ns, ended_ns)
                if not self._look(now_ns, lasts_ns, 1 + max(0, late_ns) // LOOK_NS):
                    since_ns = now_ns
                here += 1
                many = max(here / _MANY, len(self._journal.lulls) / (10 * _MANY))
                wait_s = _LEAST_S * max(1.0, many)
                if not rested and now_ns - since_ns > max(_REST_NS, _LONGER * longest_ns):
                    rested = self._rest()
            seen, last_ns = -1 if inside else count, now_ns

    def _look(self, now_ns: int, lasts_ns: int, looks: int) -> bool:
        """Note what the thread runs, and return whether that is the program's."""
        frame = interrupted(sys._current_frames().get(self._journal.thread))
        if frame is None or frame.f_code.co_filename.startswith(self._own):
            return False
        self._journal.lulls.append(Lull(now_ns, lasts_ns, looks, self._stack(frame)))
        return True

    def _stack(self, innermost: FrameType | None) -> tuple[Place, ...]:
        """Return the calls under way, the outermost first; an import within the block ends them.

        What an import runs is a chain of hundreds of files, of which the first has a name that
        says something: `import scipy`, where the importing line stands.
        """
        frames = []
        while innermost is not None:
            frames.append(innermost)
            innermost = innermost.f_back
        stack: list[Place] = []
        for depth, frame in enumerate(frames[: -_DEEPEST - 1 : -1]):
            code, line = frame.f_code, frame.f_lineno or 0
            if code.co_filename.startswith((*_IMPORTLIB, *self._own)):
                continue
            if (code, line) not in self._places:
                self._places[code, line] = Place(code.co_qualname, code.co_filename, line)
            if stack and depth >= self._depth and _is_imported(frame):
                name = frame.f_globals.get("__name__")
                stack.append(stack[-1]._replace(function=f"import {name}"))
                break
            stack.append(self._places[code, line])
        return tuple(stack)


def _depth(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


def _is_imported(frame: FrameType) -> bool:
    """Return whether a frame is that of a module which is being imported."""
    caller = frame.f_back
    by_import = caller is not None and caller.f_code.co_filename.startswith(_IMPORTLIB)
    return by_import and frame.f_code.co_name == "<module>"
