"""Hooks the runs and the making of sessions, for the watcher or the recorder that is there.

The functions of ONNX Runtime's Python class of sessions get other code while they are watched or
recorded, so that bound methods that the program kept are found as well.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic_ns
from types import FunctionType
from typing import Any, Protocol

from xsp_levels.framework.onnxruntime.call import RUNS, session_class, session_of
from xsp_levels.hook import Hook
from xsp_levels.imported import Imports
from xsp_levels.native import forked_child

Function = Callable[..., Any]

ASYNC = "run_async"

# Parts of the making of a session, the last two in the first. Graphs are optimized in the last.
CREATION, LOADING, INITIALIZATION = (
    "session creation",
    "model loading",
    "session initialization",
)

_MAKE, _INITIALIZE = "__init__", "initialize_session"


class _Local(threading.local):
    """State of the entry point for each thread.

    Attributes:
        unseen: Whether xsp itself is at work.
        initialized: When the session that is being made was initialized.
    """

    unseen = False
    initialized: tuple[int, int] | None = None


_local = _Local()


class RunWatcher(Protocol):
    """Receiver of notices about runs, and about sessions that are made."""

    def run(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], method: str
    ) -> Any:
        """Make the call, and return its result."""
        ...

    def made(self, session: Any, parts: Sequence[tuple[str, int, int]]) -> None:
        """Note that a session was made: name, start and end of each part, inner ones first."""
        ...


@contextmanager
def unseen() -> Iterator[None]:
    """Let neither watcher nor recorder see what xsp itself does with sessions on this thread."""
    before, _local.unseen = _local.unseen, True
    try:
        yield
    finally:
        _local.unseen = before


class EntryPoint:
    """The functions by which programs make and run sessions.

    Attributes:
        watcher: Is told first, of calls in the program.
        recorder: Is told of calls on a pass that records them.
    """

    def __init__(self) -> None:
        self.watcher: RunWatcher | None = None
        self.recorder: RunWatcher | None = None
        self._imports = Imports(("onnxruntime",), self.place)
        self._hooks: list[Hook] = []
        self._native: tuple[Any, Any] | None = None  # the class in C++, and its function
        forked_child.register(self)

    def abandon(self) -> None:
        """Put the functions' own code back, in a forked child."""
        self.watcher = self.recorder = None
        self._take_out()

    def place(self) -> None:
        """Put xsp's code in place if there is a watcher or a recorder, else the functions' own."""
        wanted = self.watcher is not None or self.recorder is not None
        if not wanted:
            self._take_out()
        elif session_class() is None:
            self._imports.begin()  # the program may import it yet
        elif not self._hooks:
            self._put_in()

    def _put_in(self) -> None:
        self._imports.end()
        kind = session_class()
        for name in (*RUNS, ASYNC, _MAKE):
            function = getattr(kind, name, None)
            if isinstance(function, FunctionType):
                handler = self._making if name == _MAKE else partial(self._running, name)
                self._hooks.append(Hook(function, handler))
        for hook in self._hooks:
            hook.place()
        native = sys.modules["onnxruntime.capi._pybind_state"].InferenceSession
        self._native = native, vars(native)[_INITIALIZE]
        setattr(native, _INITIALIZE, _timed(native.initialize_session))

    def _take_out(self) -> None:
        self._imports.end()
        if self._native is not None:
            native, function = self._native
            setattr(native, _INITIALIZE, function)
            self._native = None
        while self._hooks:
            self._hooks.pop().take_out()

    def _running(self, name: str, original: Function) -> Function:
        recorded = partial(self._recorded, name, original)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watcher = self.watcher
            if watcher is None or _local.unseen:
                return recorded(*args, **kwargs)
            return watcher.run(recorded, args, kwargs, name)

        return run

    def _recorded(self, name: str, original: Function, /, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if recorder is None or _local.unseen:
            return original(*args, **kwargs)
        return recorder.run(original, args, kwargs, name)

    def _making(self, original: Function) -> Function:
        def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if _local.unseen:
                return original(*args, **kwargs)
            _local.initialized = None
            begin = monotonic_ns()
            result = original(*args, **kwargs)
            end = monotonic_ns()
            first, last = _local.initialized or (end, end)
            parts = (LOADING, begin, first), (INITIALIZATION, first, last), (CREATION, begin, end)
            for told in (self.watcher, self.recorder):
                if told is not None:
                    told.made(session_of(args, kwargs), parts)
            return result

        return make


def _timed(original: Function) -> Function:
    def initialize_session(*args: Any) -> Any:
        begin = monotonic_ns()
        result = original(*args)
        _local.initialized = begin, monotonic_ns()
        return result

    return initialize_session
