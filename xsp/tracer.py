"""The user's own spans, `with xsp.span(...)`: flat records, or regions in a program's log.

While nothing is measured, a span costs almost nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from xsp.clock import Clock
from xsp.level import Kind, Level, parse_level

F = TypeVar("F", bound=Callable[..., Any])

# Fields of a record, which are kept one after the other in a flat list: a list
# of tuples would wake the garbage collector while the model runs.
FIELDS = ("name", "kind", "start_ns", "end_ns", "thread", "id", "parent_id", "error", "attributes")

_KINDS = {
    Level.MODEL: Kind.REGION,
    Level.FRAMEWORK: Kind.LAYER,
    Level.LIBRARY: Kind.CALL,
    Level.KERNEL: Kind.LAUNCH,
    Level.SYSTEM: Kind.SYSCALL,
}
# The kind for every spelling of a level, looked up once per span.
_KIND_OF: dict[int | str, Kind] = {
    spelling: kind for level, kind in _KINDS.items() for spelling in (int(level), level.label)
}
_current: ContextVar[int] = ContextVar("xsp_span", default=0)


class _Recorder:
    def __init__(self, clock: Clock, kinds: frozenset[Kind]) -> None:
        self.now = clock.now
        self.kinds = kinds
        self.records: list[Any] = []
        self.open = 0
        self.missed: set[Kind] = set()


_recorder: _Recorder | None = None  # of a measurement, armed by the provider of the model level
_program: RegionSink | None = None  # the log of a block around a program
_idle = True  # one global to look at makes an idle span cheap
# Numbers never begin anew: a task that lives on may hold the number of a span long gone.
_next_number = itertools.count(1).__next__


class RegionSink(Protocol):
    """Log of a program's regions."""

    block: object

    def open(self, region: OpenRegion) -> None:
        """Note that a region begins, on the calling thread."""
        ...

    def close(self, region: OpenRegion, error: str | None) -> None:
        """Note that a region ends, on whatever thread."""
        ...

    def skip(self, *, begins: bool) -> None:
        """Note that what the calling thread does is no part of the program, or is again."""
        ...


class OpenRegion:
    """One region of a program that is open, or was.

    It belongs to a context (`contextvars`), which may outlive the block, so that it holds nothing
    of the block but an object that tells the block from others.

    Attributes:
        name: Its name.
        kind: Kind of span.
        attributes: What the user said of it.
        marked: Whether it is a step that the user marked.
        parent: The region around it in its context, which may be closed by now.
        block: Tells its block from others.
        number: Its number in the log.
        closed: Whether it has ended.
        stated: Whether time does not tell what lies in it: it was opened in a task of an event
            loop, or in a generator.
        generator: The frame of the generator that opened it, while it is open; else None.
    """

    __slots__ = (
        "attributes", "block", "closed", "generator", "kind", "marked", "name", "number", "parent",
        "stated",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: Kind,
        attributes: Mapping[str, Any],
        frame: FrameType,
        *,
        marked: bool = False,
    ) -> None:
        self.name, self.kind, self.attributes, self.marked = name, kind, attributes, marked
        self.parent: OpenRegion | None = REGION.get()
        while self.parent is not None and self.parent.closed:
            self.parent = self.parent.parent
        self.closed: bool = False
        self.number = 0
        self.generator = _generator(frame)
        self.stated = self.generator is not None or tasks_interleave()
        self.block: object = None
        sink = _program
        if sink is not None:
            self.block = sink.block
            # A generator's consumer goes on in the same context: it is no part of the region.
            if self.generator is None:
                REGION.set(self)
            sink.open(self)

    def close(self, error: str | None) -> None:
        """End the region, unless its block has ended."""
        if REGION.get() is self:
            REGION.set(self.parent)
        sink = _program
        if sink is not None and sink.block is self.block and not self.closed:
            sink.close(self, error)
        self.closed, self.generator = True, None


# The innermost region of the calling context. No tokens are kept: a region may be closed in
# another task, or not at all, and who reads passes over those that are closed.
REGION: ContextVar[OpenRegion | None] = ContextVar("xsp_region", default=None)


def _generator(frame: FrameType) -> FrameType | None:
    """Return the frame if it is a generator's that is no context manager, else None."""
    if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return None
    around = frame.f_back
    if around is not None and around.f_code.co_filename == contextlib.__file__:
        return None
    return frame


class _Open:
    """One span that has begun and is being recorded."""

    __slots__ = ("kind", "number", "parent", "recorder", "start_ns", "token")

    def __init__(self, recorder: _Recorder, kind: Kind) -> None:
        self.recorder = recorder
        self.kind = kind
        self.number = _next_number()
        recorder.open += 1
        self.parent = _current.get() if tasks_interleave() else None
        self.token: Token[int] = _current.set(self.number)
        self.start_ns = recorder.now()

    def close(self, name: str, attributes: Mapping[str, Any], error: str | None) -> None:
        end_ns = self.recorder.now()
        self.recorder.open -= 1
        with contextlib.suppress(ValueError):  # the span ends in another task than it began in
            _current.reset(self.token)
        thread = threading.get_ident()
        place = (self.number, self.parent)
        self.recorder.records.extend(
            (name, self.kind, self.start_ns, end_ns, thread, *place, error, attributes)
        )


def tasks_interleave() -> bool:
    """Return whether tasks of an event loop, or greenlets, take turns on this thread."""
    # Inside an event loop or a greenlet time does not tell which span called which, so the parent
    # is taken from the context, of which each has its own. Elsewhere time tells parents better,
    # for the spans of other providers have times too, but are not in the context.
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    current = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    return current is not None and current().parent is not None


class span:  # noqa: N801  # lower case, as it stands in `with span(...)`
    """A span of the user's own: a context manager, and a decorator.

    The span is recorded in the runs that profile its level, and costs a fraction of a
    microsecond in all other runs. One object serves one `with` at a time.

    Args:
        name: The span's name in the trace.
        level: The span's level of the stack, as a number or a name.
        attributes: Anything worth knowing about the span; shown with it.

    Raises:
        ValueError: There is no such level.
    """

    __slots__ = ("_open", "_region", "attributes", "kind", "level", "name")

    def __init__(self, name: str, level: int | str | Level = "model", **attributes: Any) -> None:
        self.name = str(name)  # names in the trace are text
        self.level = level
        self.kind = _KIND_OF.get(level) or _KINDS[parse_level(level)]
        self.attributes = attributes
        self._open: _Open | None = None
        self._region: OpenRegion | None = None

    def __enter__(self) -> span:
        if not _idle:
            self._begin(sys._getframe(1))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            opened.close(self.name, self.attributes, kind.__name__ if kind else None)
        if self._region is not None:
            region, self._region = self._region, None
            region.close(kind.__name__ if kind else None)

    def _begin(self, frame: FrameType) -> None:
        recorder = _recorder
        if _program is not None:
            self._region = OpenRegion(self.name, self.kind, self.attributes, frame)
        elif recorder is not None and self.kind in recorder.kinds:
            self._open = _Open(recorder, self.kind)
        elif recorder is not None:
            recorder.missed.add(self.kind)

    def __call__(self, function: F) -> F:
        """Return `function` with every call of it wrapped in this span.

        Raises:
            TypeError: `function` is a generator function, whose call does nothing yet.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"a call of the generator function {function.__name__} does nothing until it is "
                "iterated over: mark what counts inside of it with `with xsp.span(...):`"
            )
        name, level, attributes = self.name, self.level, self.attributes
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with span(name, level, **attributes):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with span(name, level, **attributes):
                    return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


def arm(clock: Clock, kinds: frozenset[Kind]) -> None:
    """Record spans of these kinds from now on, in every thread."""
    _set(_Recorder(clock, kinds), _program)


@dataclass(frozen=True, slots=True)
class UserSpans:
    """The spans that users marked (`xsp.span`) between `arm` and `disarm`.

    Attributes:
        records: `FIELDS`, span after span, in one list.
        unfinished: How many spans had begun and not ended.
        missed: Kinds of marked spans that were not to be recorded.
    """

    records: list[Any] = field(default_factory=list)
    unfinished: int = 0
    missed: frozenset[Kind] = frozenset()


def disarm() -> UserSpans:
    """Stop recording, and return the spans since `arm`."""
    recorder = _recorder
    _set(None, _program)
    if recorder is None:
        return UserSpans()
    return UserSpans(list(recorder.records), recorder.open, frozenset(recorder.missed))


def attach(sink: RegionSink | None) -> None:
    """Have the log of a program told of all spans as regions from now on; None ends that."""
    _set(_recorder, sink)


def block() -> object:
    """Return the object that tells the block that is recorded from others; None: none is."""
    return None if _program is None else _program.block


def skip(*, begins: bool) -> None:
    """Tell the program's log, if there is one, that this thread does what is no part of it."""
    if _program is not None:
        _program.skip(begins=begins)


def _set(recorder: _Recorder | None, program: RegionSink | None) -> None:
    global _recorder, _program, _idle  # noqa: PLW0603  # few globals make an idle span cheap
    _recorder, _program = recorder, program
    _idle = recorder is None and program is None
