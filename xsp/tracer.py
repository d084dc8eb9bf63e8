"""The user's own spans: `xsp.span`, almost free while nothing profiles."""

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
# Every spelling of a level, looked up once per span.
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


_recorder: _Recorder | None = None
# Never begins anew: a task that lives on may hold the number of a span long gone.
_next_number = itertools.count(1).__next__


class _Open:
    """One span that has begun and is being recorded."""

    __slots__ = ("kind", "number", "parent", "recorder", "start_ns", "token")

    def __init__(self, recorder: _Recorder, kind: Kind) -> None:
        self.recorder = recorder
        self.kind = kind
        self.number = _next_number()
        recorder.open += 1
        self.parent = _current.get() if _tasks_interleave() else None
        self.token: Token[int] = _current.set(self.number)
        self.start_ns = recorder.now()

    def close(self, name: str, attributes: Mapping[str, Any], error: str | None) -> None:
        end_ns = self.recorder.now()
        self.recorder.open -= 1
        with contextlib.suppress(ValueError):  # closed in another task than opened in
            _current.reset(self.token)
        thread = threading.get_ident()
        place = (self.number, self.parent)
        self.recorder.records.extend(
            (name, self.kind, self.start_ns, end_ns, thread, *place, error, attributes)
        )


def _tasks_interleave() -> bool:
    # Inside an event loop time does not tell who called whom, so the parent is
    # taken from the task's context; elsewhere time tells it better, because it
    # also knows the spans that the providers make.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class span:  # noqa: N801  # reads as what it is in a with statement
    """A span of the user's own: a context manager, and a decorator.

    It is recorded in the runs that profile its level, and costs a fraction of a
    microsecond in all others. One object serves one `with` at a time.

    Args:
        name: What the trace calls it.
        level: Level of the stack it belongs to, as a number or a name.
        attributes: Anything worth knowing about it; shown with the span.

    Raises:
        ValueError: There is no such level.
    """

    __slots__ = ("_open", "attributes", "kind", "level", "name")

    def __init__(self, name: str, level: int | str | Level = "model", **attributes: Any) -> None:
        self.name = str(name)  # nothing else can be a name in the trace
        self.level = level
        self.kind = _KIND_OF.get(level) or _KINDS[parse_level(level)]
        self.attributes = attributes
        self._open: _Open | None = None

    def __enter__(self) -> span:
        recorder = _recorder
        if recorder is not None:
            if self.kind in recorder.kinds:
                self._open = _Open(recorder, self.kind)
            else:
                recorder.missed.add(self.kind)
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
            TypeError: It is a generator function, whose call does nothing yet.
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
    global _recorder  # noqa: PLW0603  # the switch that makes an idle span cheap
    _recorder = _Recorder(clock, kinds)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded between `arm` and `disarm`.

    Attributes:
        records: `FIELDS`, span after span, in one list.
        unfinished: How many spans had begun and not ended.
        missed: Kinds of spans that were marked and not asked for.
    """

    records: list[Any] = field(default_factory=list)
    unfinished: int = 0
    missed: frozenset[Kind] = frozenset()


def disarm() -> Recorded:
    """Stop recording and return what was recorded."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is None:
        return Recorded()
    return Recorded(list(recorder.records), recorder.open, frozenset(recorder.missed))


def is_armed() -> bool:
    """Return whether spans are being recorded."""
    return _recorder is not None
