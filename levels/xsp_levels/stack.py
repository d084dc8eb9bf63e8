"""Samples the Python functions and lines that run on the thread that calls the model.

pyinstrument's profile function is called at every call and return, in C, and calls ours where an
interval has passed since the last sample. A thread that looks at the stacks of others would not see
Python's self time: it waits for the interpreter's lock, which an operator gives away and Python
code keeps.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import random
import resource
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import SAMPLE_SCHEMA, Records, Request, Samples, SpanRows, no_rows

Integers = npt.NDArray[np.int64]

INTERVAL_NS = 50_000  # between two samples, on average
_KEPT = 1000  # profile functions that were set last
_DEEPEST = 250  # calls under way that are kept, the innermost ones

_OWN_FOLDERS = tuple(str(Path(file).parent) + os.sep for file in (inspect.getfile(Kind), __file__))
_usage, _OF_THREAD = resource.getrusage, resource.RUSAGE_THREAD
_CLOCK = "the clock of the measurement"
_PROFILED = (
    "self time was not attributed to functions: another profiler ({}) watches this thread; end it "
    "before xsp measures"
)


@dataclass(frozen=True, slots=True)
class StackRecords:
    """The samples of one visit.

    Attributes:
        thread: `threading.get_ident()` of the thread that was sampled.
        time_ns: Time of each sample.
        place: Index into `places` for each sample.
        places: Function, file and line.
        stack: Index into `stacks` for each sample; none in records of before callers were kept.
        stacks: The calls around, the outermost first, as indices into `places`.
    """

    thread: int
    time_ns: Integers
    place: Integers
    places: tuple[tuple[str, str, int], ...] = ()
    stack: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    stacks: tuple[tuple[int, ...], ...] = ()


class Stack:
    """Samples which function Python runs on the thread that calls the model."""

    name = "stack"
    level = Level.MODEL
    kinds = frozenset({Kind.REGION})
    record_type = StackRecords

    def __init__(self) -> None:
        self._watch: _Watch | None = None
        self._warning = ""

    def unavailable(self) -> str | None:
        """Return why Python cannot be sampled here, or None if it can."""
        if importlib.util.find_spec("pyinstrument") is not None:
            return None
        return "pyinstrument is not installed; `pip install pyinstrument` brings it"

    def start(self, clock: Clock, request: Request) -> None:
        """Begin to sample the calling thread, if the request is for samples."""
        self._watch, self._warning = None, ""
        if not request.sampled:
            return
        rival = sys.getprofile()
        if rival is not None:
            self._warning = _PROFILED.format(type(rival).__name__)
            return
        self._watch = _Watch(clock.now)
        self._watch.begin()

    def stop(self) -> Records:
        """End sampling."""
        watch, self._watch = self._watch, None
        warnings = (self._warning,) if self._warning else ()
        return Records(watch.end() if watch else _records(0, [], []), warnings=warnings)

    def spans(self, records: Records) -> SpanRows:
        """Return no rows: samples are no spans."""
        return no_rows()

    def samples(self, records: Records) -> Samples:
        """Return the samples."""
        data: StackRecords = records.data
        function, file, line = zip(*data.places, strict=True) if data.places else ((), (), ())
        places = pl.DataFrame({"function": function, "file": file, "line": line})
        around = [json.dumps([data.places[call] for call in stack]) for stack in data.stacks]
        callers = pl.Series("callers", around, dtype=pl.String)[data.stack]
        times = pl.DataFrame({"time_ns": data.time_ns}, schema={"time_ns": pl.Int64})
        frame = times.with_columns(places[data.place], thread=pl.lit(data.thread))
        known = callers if len(callers) else pl.lit(None)
        frame = frame.with_columns(known.alias("callers"))
        return frame.select(pl.col(name).cast(dtype) for name, dtype in SAMPLE_SCHEMA.items())


class _Watch:
    """The sampling of one thread, from `begin` to `end`.

    Args:
        now: Returns the time of the clock, in ns.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._thread = threading.get_ident()
        self._process = os.getpid()
        # From half to one and a half: a fixed interval would fall into step with the model.
        self._factor = random.Random(0).random
        self._due: list[int] = []
        self._seen: list[_Seen] = []
        # Keeps alive what was set. While Python makes the frame of an event it may collect garbage,
        # which runs functions of the program's: these are sampled, and another one is set, before
        # the first one is called.
        self._set_so_far: deque[Any] = deque(maxlen=_KEPT)
        self._on = True

    def begin(self) -> None:
        """Begin to sample the calling thread."""
        from pyinstrument.low_level.stat_profile import setstatprofile  # noqa: PLC0415

        self._set: Any = setstatprofile
        self._began = _used()
        self._plain, sys.setprofile = sys.setprofile, self._set_again
        self._wait(self._now())

    def _wait(self, now: int) -> None:
        """Have the next sample taken at the first call or return after an interval from now."""
        interval = int(INTERVAL_NS * (0.5 + self._factor()))
        self._due.append(now + interval)
        self._set(self._sample, interval / 1e9, timer_type="walltime")
        self._set_so_far.append(sys.getprofile())

    def _set_again(self, function: Any) -> None:
        """Take the place of `sys.setprofile`, which cannot set what `sys.getprofile` returns now.

        Programs end profiling for a while, and then set what there was.
        """
        if type(function) is not type(self._set_so_far[-1]):  # of pyinstrument
            self._plain(function)
            return
        self._plain(None)
        if self._on and threading.get_ident() == self._thread:
            del self._due[len(self._seen) :]  # which nobody waited for meanwhile
            self._wait(self._now())

    def end(self) -> StackRecords:
        """End sampling; where another thread calls, the next sample of the sampled one does."""
        self._on = False
        if sys.setprofile == self._set_again:
            sys.setprofile = self._plain
        # Whatever the program has set between two steps is the program's.
        if threading.get_ident() == self._thread and sys.getprofile() is self._set_so_far[-1]:
            self._set(None)
        seen = list(self._seen)  # the sampled thread may take one more, where another calls
        records = _records(self._thread, self._due, seen, began=self._began)
        # Python's collector looks into neither code objects nor pyinstrument's: a cycle through
        # them, and with it the models in frames' code, would stay for ever.
        self._seen.clear()
        self._set_so_far.clear()
        return records

    def _sample(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note what the thread ran just before an event; an exception here would be the user's."""
        now = self._now()
        # What calls this goes on afterwards, and would be gone by then: it may call before `_wait`,
        # which has set it, has noted it.
        self._set_so_far.append(sys.getprofile())
        if not self._on or os.getpid() != self._process:
            self._set(None)
            return
        function = None
        if event == "call":
            frame = frame.f_back or frame  # until now, the caller ran
        elif event in ("c_return", "c_exception"):  # of a function without source
            function = _CLOCK if argument is self._now else getattr(argument, "__qualname__", None)
        self._seen.append((now, *_used(), function, _calls(frame)))
        self._wait(self._now())


_Calls = tuple[Any, ...]  # the innermost first: the code of each, and the instruction it is at
# An event: when; seconds that the thread had run; how often it had been made to give way; the
# function (None: that of the innermost call) and calls under way until then.
_Seen = tuple[int, float, int, str | None, _Calls]


def _calls(frame: FrameType | None) -> _Calls:
    """Return the calls under way, in what a collection of garbage does not look into."""
    calls: list[Any] = []
    while frame is not None and len(calls) < 2 * _DEEPEST:
        calls += frame.f_code, frame.f_lasti
        frame = frame.f_back
    return tuple(calls)


def _used() -> tuple[float, int]:
    """Return for how long this thread has run, in s, and how often it had to give way."""
    usage = _usage(_OF_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nivcsw


def _records(
    thread: int, due: list[int], seen: list[_Seen], *, began: tuple[float, int] = (0.0, 0)
) -> StackRecords:
    """Return the samples: one when it was due, and more while no event came after that.

    Time in which the thread had to give way to others is no time of what ran.

    Args:
        thread: The thread that was sampled.
        due: When each sample was due; the last may not have been taken.
        seen: The first event after that.
        began: How long the thread had run, and how often given way, when sampling began.
    """
    end = np.array([event[0] for event in seen], np.int64)
    used = np.array([began, *(event[1:3] for event in seen)], np.float64)
    busy, given_way = np.diff(used, axis=0).T
    begin = np.minimum(np.array(due[: len(seen)], np.int64), end)
    ran = np.where(given_way > 0, busy * 1e9, np.inf)
    count = 1 + np.minimum(end - begin, ran).astype(np.int64) // INTERVAL_NS
    at = np.repeat(np.arange(len(count)), count)
    ordinal = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
    sampled = begin[at] + ordinal * INTERVAL_NS
    described = _Described()
    known = np.array([described.sample(*event[3:]) for event in seen], np.int64).reshape(-1, 2)[at]
    told = known[:, 0] >= 0
    place, stack = known[told].T
    places, stacks = tuple(described.places), tuple(described.stacks)
    return StackRecords(thread, sampled[told], place, places, stack, stacks)


class _Described:
    """Calls as functions, files and lines.

    Attributes:
        places: Function, file and line of each place, by its index.
        stacks: The indices of places of each stack of callers, the outermost first, by its index.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[str, str, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[int, int], int] = {}  # by code and instruction

    def sample(self, function: str | None, calls: _Calls) -> tuple[int, int]:
        """Return the indices of what ran and of its callers; -1 for xsp's own code: overhead."""
        found = [self._place(calls[at], calls[at + 1]) for at in range(0, len(calls), 2)]
        if function is _CLOCK or found[0] < 0:
            return -1, -1
        if function is not None:
            code, instruction = calls[:2]
            place = function, code.co_filename, _line(code, instruction)
            found.insert(0, self.places.setdefault(place, len(self.places)))
        callers = tuple(place for place in reversed(found[1:]) if place >= 0)
        return found[0], self.stacks.setdefault(callers, len(self.stacks))

    def _place(self, code: CodeType, instruction: int) -> int:
        """Return the index of a place; -1 for xsp's own code."""
        key = id(code), instruction
        if key not in self._known:
            own = code.co_filename.startswith(_OWN_FOLDERS)
            place = code.co_qualname, code.co_filename, _line(code, instruction)
            self._known[key] = -1 if own else self.places.setdefault(place, len(self.places))
        return self._known[key]


def _line(code: CodeType, instruction: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return next(lines, None) or code.co_firstlineno
