"""The user's own spans: `with xsp.span(...)` blocks in, flat records out while a profiler is armed.

While none is armed, a span costs almost nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from xsp.clock import Clock
from xsp.level import Kind, Level, parse_level

F = TypeVar("F", bound=Callable[..., Any])

# Fields of a record, which are kept one after the other in a flat list: a list
# of tuples would wake the garbage collector while the model runs.
FIELDS = ("name", "kind", "start_ns", "end_ns", "thread", "id", "parent_id", "error", "attributes")

_KINDS = {
    Level.MODEL: Kind.PIPELINE,
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


# A provider's recorder, for spans inside evaluations; a block's, for those around and between.
_inside: _Recorder | None = None
_around: _Recorder | None = None
_recorder: _Recorder | None = None  # any of the two: one global to look at makes an idle span cheap
# While a block watches: threads that are in an evaluation; False: one that may be over by now.
_evaluating: dict[int, bool] = {}
# Numbers never begin anew: a task that lives on may hold the number of a span long gone.
_next_number = itertools.count(1).__next__


class _Open:
    """One span that has begun and is being recorded."""

    __slots__ = ("also", "kind", "number", "parent", "recorder", "start_ns", "sure", "token")

    def __init__(
        self, recorder: _Recorder, kind: Kind, also: _Open | None = None, *, sure: bool = True
    ) -> None:
        self.recorder = recorder
        self.kind = kind
        self.also = also
        self.sure = sure  # whether the span must end while it is recorded, or is lost
        self.number = _next_number()
        recorder.open += sure
        self.parent = _current.get() if _tasks_interleave() else None
        self.token: Token[int] = _current.set(self.number)
        self.start_ns = recorder.now()

    def close(self, name: str, attributes: Mapping[str, Any], error: str | None) -> None:
        end_ns = self.recorder.now()
        self.recorder.open -= self.sure
        with contextlib.suppress(ValueError):  # the span ends in another task than it began in
            _current.reset(self.token)
        thread = threading.get_ident()
        place = (self.number, self.parent)
        self.recorder.records.extend(
            (name, self.kind, self.start_ns, end_ns, thread, *place, error, attributes)
        )
        if self.also is not None:
            self.also.close(name, attributes, error)


def _tasks_interleave() -> bool:
    # Inside an event loop time does not tell which span called which, so the parent is taken
    # from the task's context. Elsewhere time tells parents better, for the spans of other
    # providers have times too, but are not in the context.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


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

    __slots__ = ("_open", "attributes", "kind", "level", "name")

    def __init__(self, name: str, level: int | str | Level = "model", **attributes: Any) -> None:
        self.name = str(name)  # names in the trace are text
        self.level = level
        self.kind = _KIND_OF.get(level) or _KINDS[parse_level(level)]
        self.attributes = attributes
        self._open: _Open | None = None

    def __enter__(self) -> span:
        if _recorder is not None:
            self._open = _opened(self.kind)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = self._open
        if opened is not None:
            self._open = None
            opened.close(self.name, self.attributes, kind.__name__ if kind else None)

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
    global _inside  # noqa: PLW0603  # few globals to look at make an idle span cheap
    _inside = _Recorder(clock, kinds)
    _choose()


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
    global _inside
    recorder, _inside = _inside, None
    _choose()
    return _spans_of(recorder)


def watch(clock: Clock) -> None:
    """Record spans of all kinds that begin outside of evaluations, until `unwatch`."""
    global _around  # noqa: PLW0603
    _evaluating.clear()
    _around = _Recorder(clock, frozenset(Kind))
    _choose()


def unwatch() -> UserSpans:
    """Stop recording spans outside of evaluations, and return those since `watch`."""
    global _around
    recorder, _around = _around, None
    _evaluating.clear()
    _choose()
    return _spans_of(recorder)


def watched() -> UserSpans:
    """Return the spans outside of evaluations that have ended since `watch`."""
    return _spans_of(_around)


def enter_evaluation(thread: int) -> None:
    """Say that a thread is in an evaluation: spans that it begins are recorded by providers."""
    _evaluating[thread] = True


def may_leave_evaluation(thread: int) -> None:
    """Say that the evaluation of a thread may be over, or go on: spans may be of both."""
    if thread in _evaluating:
        _evaluating[thread] = False


def leave_evaluation(thread: int) -> None:
    """Say that a thread is in no evaluation any more."""
    _evaluating.pop(thread, None)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Let this thread make evaluations that are none of the program's, in the block."""
    before = _evaluating.get(thread := threading.get_ident())
    try:
        yield
    finally:
        if before is not None:
            _evaluating[thread] = before


def is_between(thread: int) -> bool:
    """Return whether a program is watched of which a thread is in no evaluation, for all we know.

    That of a training step may be over once its first call has returned.
    """
    return _around is not None and not _evaluating.get(thread)


def _choose() -> None:
    global _recorder  # noqa: PLW0603
    _recorder = _around if _around is not None else _inside


def _opened(kind: Kind) -> _Open | None:
    """Begin to record a span of a kind where it belongs."""
    if _around is None:
        return _opened_in(_inside, kind)
    evaluating = _evaluating.get(threading.get_ident())
    if evaluating is None:
        return _opened_in(_around, kind)
    if evaluating:
        return _opened_in(_inside, kind)
    around = _opened_in(_around, kind)
    return _opened_in(_inside, kind, around, sure=False) or around


def _opened_in(
    recorder: _Recorder | None, kind: Kind, also: _Open | None = None, *, sure: bool = True
) -> _Open | None:
    if recorder is None:
        return None
    if kind in recorder.kinds:
        return _Open(recorder, kind, also, sure=sure)
    recorder.missed.add(kind)
    return None


def _spans_of(recorder: _Recorder | None) -> UserSpans:
    if recorder is None:
        return UserSpans()
    return UserSpans(list(recorder.records), recorder.open, frozenset(recorder.missed))
