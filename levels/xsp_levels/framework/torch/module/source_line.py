"""Tells which lines of the user's called modules and operators.

The user's lines are those outside of PyTorch, Python's own library and xsp. A module's call is
looked at itself; for operators, which Python does not see, the lines that run are logged with their
times, and an operator was called by the line that was running when it began.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import xsp_levels
from xsp.clock import Clock
from xsp.level import Kind
from xsp.provider import SpanRows

Integers = npt.NDArray[np.int64]
Place = tuple[str, str, int]  # function, file, line

NAMES = ("attr.caller_function", "attr.caller_file", "attr.caller_line")
_TYPES = (pl.String, pl.String, pl.Int64)
_MOST = 250_000  # lines in a log: half a second, and 30 MB; then the program is left alone
_PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class LineRecords:
    """The user's lines that ran on one thread.

    Attributes:
        time_ns: When each line began.
        place: Index into `places` for each line, -1 where no line is the user's.
        places: Function, file and line.
    """

    thread: int
    time_ns: Integers
    place: Integers
    places: tuple[Place, ...]


def caller(module: Any) -> Place | None:
    """Return the user's line that called a module, for code in place of the module's call.

    A class that calls its base's `__call__` passes the call on and did not make it.
    """
    frame = sys._getframe(2)
    while frame is not None and (_passes_on(frame, module) or not _is_users(frame)):
        if frame.f_code.co_filename.startswith(_OWN_FOLDERS):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else _place(frame)


def caller_columns(places: list[Place | None]) -> dict[str, pl.Series]:
    """Return the attribute columns of the lines that made calls."""
    columns = zip(*(place or (None, None, None) for place in places), strict=True)
    return {
        name: pl.Series(name, list(values), dtype=dtype)
        for name, values, dtype in zip(NAMES, columns, _TYPES, strict=True)
    }


def with_callers(rows: SpanRows, lines: LineRecords) -> SpanRows:
    """Return rows of operators with the line that was running when each began. Pure."""
    at = np.searchsorted(lines.time_ns, rows["start_ns"].to_numpy(), "right") - 1
    known = (at >= 0) & (rows["thread"] == lines.thread).fill_null(value=False).to_numpy()
    known &= (rows["kind"] == Kind.OP.value).to_numpy()
    place = np.where(known, lines.place[at], -1) if len(lines.place) else np.full(len(at), -1)
    table = pl.DataFrame(caller_columns([*lines.places, None]))
    return rows.hstack(table[place % table.height])


class LineRecorder:
    """Logs which of the user's lines runs on the calling thread, from `start` to `stop`.

    Nothing is logged where a debugger or a measurement of coverage traces the thread already.
    """

    def __init__(self) -> None:
        self._log: list[Any] = []  # time, function, file, line, time, ...
        self._now: Callable[[], int] = lambda: 0
        self._thread = threading.get_ident()
        self._entered: list[FrameType] = []
        self._on = False

    def start(self, clock: Clock) -> None:
        """Begin to log, also the lines of functions that have been called already."""
        if sys.gettrace() is not None:
            return
        self._now, self._on = clock.now, True
        frame: FrameType | None = sys._getframe(1)
        self._note(frame)
        while frame is not None:
            if frame.f_trace is None and _is_users(frame):
                frame.f_trace = self._within
                self._entered.append(frame)
            frame = frame.f_back
        sys.settrace(self._call)

    def disarm(self) -> None:
        """End logging; on another thread, the next line that the traced one runs ends it."""
        on, self._on = self._on, False
        for frame in self._entered:
            frame.f_trace = None
        self._entered = []
        if on and threading.get_ident() == self._thread and sys.gettrace() == self._call:
            sys.settrace(None)

    def stop(self) -> LineRecords:
        """End logging, and return the log."""
        self.disarm()
        log, self._log = self._log, []
        index: dict[Place, int] = {}
        places = [index.setdefault(place, len(index)) if place else -1 for place in log[1::2]]
        times = np.array(log[::2], np.int64)
        return LineRecords(self._thread, times, np.array(places, np.int64), tuple(index))

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._on:
            self._end()
            return None
        if not _is_users(frame):
            return None
        self._note(frame)
        return self._within

    def _within(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._on:
            return None
        if event == "line":
            self._note(frame)
        elif event == "return":
            self._note(frame.f_back)
        return self._within

    def _note(self, frame: FrameType | None) -> None:
        if len(self._log) >= 2 * _MOST:
            self._end()
            return
        while frame is not None and not _is_users(frame):
            frame = frame.f_back
        self._log += (self._now(), None if frame is None else _place(frame))

    def _end(self) -> None:
        if self._on:
            self._log += (self._now(), None)
            self._on = False
        sys.settrace(None)


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    return code.co_qualname, code.co_filename, frame.f_lineno or code.co_firstlineno


def _is_users(frame: FrameType) -> bool:
    return _is_users_file(frame.f_code.co_filename)


@functools.lru_cache(maxsize=4096)
def _is_users_file(file: str) -> bool:
    if file.startswith(("<", _torch_folder(), *_OWN_FOLDERS)):
        return False
    return not file.startswith(_LIBRARY) or any(name in Path(file).parts for name in _PACKAGES)


@functools.cache
def _torch_folder() -> str:
    return str(Path(inspect.getfile(sys.modules["torch"])).parent) + os.sep


_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_OWN_FOLDERS = tuple(
    str(Path(inspect.getfile(each)).parent) + os.sep for each in (Kind, xsp_levels)
)


def _passes_on(frame: FrameType, module: Any) -> bool:
    names = frame.f_code.co_varnames
    is_call = frame.f_code.co_name == "__call__" and bool(names)
    return is_call and frame.f_locals.get(names[0]) is module
