"""Samples of the lines that the thread of a block runs, taken by another thread.

They name what nothing else names: the program's own code between and around calls of models. A
thread is used because programs set and restore `sys.setprofile` as they like. It sees lines only
where the other thread lets go of Python's lock, or after 5 ms. One look takes some 30 µs, and with
handing the lock over and back it takes 200 µs of the program (two cores of a virtual machine).
"""

from __future__ import annotations

import _thread
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from types import CodeType, FrameType

import numpy as np
from numpy.typing import NDArray

from xsp.record.session import interrupted

Ints = NDArray[np.int64]
Place = tuple[str, str, int]  # function, file, line

# Seconds between two looks, until so many seconds have passed: 4, 1 and 0.4 % of the time.
_INTERVALS = ((0.005, 0.3), (0.02, 3.0), (0.05, float("inf")))
# In the child of a fork, where a look takes up to 400 µs on a busy machine: 2, 0.8 and 0.4 %.
_CHILD_INTERVALS = ((0.02, 0.2), (0.05, 3.0), (0.1, float("inf")))
_PATIENCE_S = 1.0  # for the last look; in the child of a fork the thread is not there
_DEEPEST = 100  # calls under way that are kept, the outermost first
_MANY = 100_000  # samples, in 80 minutes; then the rate falls with the time that has passed
_IMPORTLIB = ("<frozen importlib", importlib.__file__)  # files of what makes imports


@dataclass(frozen=True, slots=True)
class LineSamples:
    """Samples of the lines that a thread ran.

    Attributes:
        time_ns: When each sample was taken, shape `[samples]`.
        lasts_ns: How much time each stands for: that since the one before.
        stack: Index into `stacks` of each.
        stacks: The calls under way, the outermost first.
    """

    time_ns: Ints
    lasts_ns: Ints
    stack: Ints
    stacks: tuple[tuple[Place, ...], ...]

    def known(self) -> LineSamples:
        """Return the samples that have a stack."""
        known = self.stack >= 0
        return LineSamples(
            self.time_ns[known], self.lasts_ns[known], self.stack[known], self.stacks
        )


class LineSampler:
    """Samples what a thread runs, from `begin` to `end`.

    Args:
        thread: Identifier of the thread.
        look_after: Called after each look with the time (ns): what else has to be done.
        many: Number of samples after which they become rarer.
        of_child: Whether this is the child of a fork: calls before it are left out.
    """

    def __init__(
        self,
        thread: int,
        look_after: Callable[[int], None],
        *,
        many: int = _MANY,
        of_child: bool = False,
    ) -> None:
        self._thread, self._look_after = thread, look_after
        self._many, self._of_child = many, of_child
        self._over, self._ended = threading.Event(), threading.Event()
        self._own = tuple(
            os.path.dirname(sys.modules[name].__file__ or "") + os.sep
            for name in ("xsp", "xsp_levels")
            if name in sys.modules and sys.modules[name].__file__
        )
        self._depth = 0  # calls that were under way when the block began
        self._times: list[int] = []
        self._lasts: list[int] = []
        self._last_ns = 0  # when it looked last
        self._numbers: list[int] = []
        self._stacks: dict[tuple[Place, ...], int] = {}
        self._places: dict[tuple[CodeType, int], Place] = {}
        self._began_ns = 0

    def begin(self, frame: FrameType | None) -> None:
        """Start the sampling thread; if the system refuses one, self time has no names.

        The thread is none of `threading`'s, so that the program counts as many as without xsp.

        Args:
            frame: The frame that the block is in.
        """
        self._thread = threading.get_ident()
        self._depth = 0
        while frame is not None:
            self._depth, frame = self._depth + 1, frame.f_back
        self._last_ns = monotonic_ns()
        self._began_ns = self._began_ns or self._last_ns
        self._over.clear()
        self._ended.clear()
        try:
            _thread.start_new_thread(self._watch, ())
        except RuntimeError:
            self._ended.set()

    def stop(self) -> None:
        """Have the sampling thread end soon."""
        self._over.set()

    def end(self) -> None:
        """Stop the sampling thread; `begin` may start one again."""
        self.stop()
        self._ended.wait(_PATIENCE_S)
        self._places.clear()  # code objects may hold anything

    def samples(self) -> LineSamples:
        """Return the samples so far."""
        count = len(self._numbers)
        time = np.array(self._times[:count], dtype=np.int64)
        lasts = np.array(self._lasts[:count], dtype=np.int64)
        stack = np.array(self._numbers[:count], dtype=np.int64)
        return LineSamples(time, lasts, stack, tuple(self._stacks)).known()

    def take(self) -> LineSamples:
        """Return the samples since this was called last, and forget them.

        Called on the sampling thread, by `look_after`. Stack -1: nothing of the program ran.
        """
        time, lasts, stack = np.array((self._times, self._lasts, self._numbers), dtype=np.int64)
        taken = LineSamples(time, lasts, stack, tuple(self._stacks))
        self._times, self._lasts, self._numbers, self._stacks = [], [], [], {}
        return taken

    def _watch(self) -> None:
        if hasattr(signal, "pthread_sigmask"):  # signals are for the program's own threads
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while not self._over.wait(self._interval()):
                now = monotonic_ns()
                self._look(now)
                self._look_after(now)
        finally:
            self._ended.set()

    def _interval(self) -> float:
        passed = (monotonic_ns() - self._began_ns) / 1e9
        intervals = _CHILD_INTERVALS if self._of_child else _INTERVALS
        usual = next(interval for interval, until in intervals if passed < until)
        return max(usual, passed / self._many)

    def _look(self, now_ns: int) -> None:
        """Note the line that the thread runs; xsp's own lines do not count."""
        frame = interrupted(sys._current_frames().get(self._thread))
        number = -1
        if frame is not None and not frame.f_code.co_filename.startswith(self._own):
            number = self._stacks.setdefault(self._stack(frame), len(self._stacks))
        self._times.append(now_ns)
        self._lasts.append(now_ns - self._last_ns)
        self._last_ns = now_ns
        self._numbers.append(number)

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
        outermost = max(min(self._depth, len(frames)) - 1, 0) if self._of_child else 0
        frames = frames[::-1][outermost : outermost + _DEEPEST]
        for depth, frame in enumerate(frames, outermost):
            code, line = frame.f_code, frame.f_lineno or 0
            if code.co_filename.startswith((*_IMPORTLIB, *self._own)):
                continue
            named = code.co_qualname, code.co_filename, line
            place = self._places.setdefault((code, line), named)
            if stack and depth >= self._depth and _is_imported(frame):
                name = frame.f_globals.get("__name__")
                stack.append((f"import {name}", *stack[-1][1:]))
                break
            stack.append(place)
        return tuple(stack)


def _is_imported(frame: FrameType) -> bool:
    """Return whether a frame is that of a module which is being imported."""
    caller = frame.f_back
    by_import = caller is not None and caller.f_code.co_filename.startswith(_IMPORTLIB)
    return by_import and frame.f_code.co_name == "<module>"
