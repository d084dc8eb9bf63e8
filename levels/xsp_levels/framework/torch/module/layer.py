"""Records the calls of PyTorch modules: module, start and end of each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from xsp.clock import Clock
from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.framework.torch.module.entry_point import (
    CallEntryPoint,
    abandon_in_child,
    call_entry_point,
    keep_in_child,
)
from xsp_levels.framework.torch.module.graph import Graph
from xsp_levels.framework.torch.module.module_path import (
    LayerRecords,
    RawCalls,
    Shapes,
    layer_records,
    shapes,
)
from xsp_levels.framework.torch.module.source_line import caller
from xsp_levels.hook import calls_under_way

_UNREAD = (
    "the shapes of what went into or came out of modules could not be read {} times, as asking for "
    "them raised {}; they are missing there"
)


class Buffers(threading.local):
    """The calls that each thread recorded; attributes are those of the calling thread's."""

    def __init__(self, threads: list[RawCalls], arrived: Callable[[], None]) -> None:
        buffer = RawCalls(threading.get_ident(), [], [], [], [])
        self.put = buffer.calls.extend
        self.note = buffer.notes.append
        self.place = buffer.places.append
        self.buffer = buffer
        threads.append(buffer)
        arrived()

    def fail(self, entry: tuple[Any, int, int], error: BaseException) -> None:
        """Record a call that raised."""
        self.buffer.failed.append((len(self.buffer.calls) // 3, type(error).__name__))
        self.put(entry)


def _record(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`; `CallEntryPoint.code` puts objects in the strings' place.

    The only work between the clock reads is one call of a Python function with the same
    arguments, so a call costs what calling `Module.__call__` itself would cost.
    """
    buffers: Any = "xsp:buffers"
    now: Any = "xsp:now"
    call: Any = "xsp:call"
    put = buffers.put
    start = now()
    try:
        result = call(self, *args, **kwargs)
    except BaseException as error:
        end = now()
        buffers.fail((self, start, end), error)
        raise
    end = now()
    put((self, start, end))
    return result


def _record_detail(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`, and record shapes and the line that called it as well."""
    buffers: Any = "xsp:buffers"
    now: Any = "xsp:now"
    call: Any = "xsp:call"
    shapes: Any = "xsp:shapes"
    caller: Any = "xsp:caller"
    place = caller(self)
    given = shapes((args, kwargs))
    start = now()
    try:
        result = call(self, *args, **kwargs)
    except BaseException as error:
        end = now()
        buffers.place(place)
        buffers.note((given, None))
        buffers.fail((self, start, end), error)
        raise
    end = now()
    buffers.place(place)
    buffers.note((given, shapes(result)))
    buffers.put((self, start, end))
    return result


def divert(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`, and hand the call to `handler`."""
    handler: Any = "xsp:handler"
    return handler(self, args, kwargs)


class LayerRecorder:
    """Records every module call, or the outermost ones only, between `start` and `stop`.

    Args:
        arrived: Called when a thread first calls a module, on that thread; not on the thread
            that calls `start`.
    """

    def __init__(self, arrived: Callable[[], None] | None = None) -> None:
        self._arrived = arrived
        self._threads: list[RawCalls] = []
        self._outermost = threading.Lock()
        self._code: CodeType | None = None
        self._buffers: Buffers | None = None
        self._unread: list[str] = []  # classes of exceptions raised by asking for shapes
        self._dropped = 0

    def start(self, clock: Clock, *, detail: bool = False, outermost: bool = False) -> None:
        """Begin to record.

        Args:
            clock: The clock that is read before and after each call.
            detail: Whether shapes are recorded, which costs time.
            outermost: Whether calls that lie in other calls run unobserved.
        """
        self._entry = call_entry_point()
        hide_from_compiler(
            __name__, CallEntryPoint.__module__, shapes.__module__, caller.__module__
        )
        self._now = clock.now
        self._starter = threading.get_ident()
        self._buffers = Buffers(self._threads, self._greet)
        constants: dict[str, Any] = {
            "xsp:handler": self._record_outermost,
            "xsp:buffers": self._buffers,
            "xsp:now": self._now,
            "xsp:call": self._entry.call,
            "xsp:shapes": self._shapes,
            "xsp:caller": caller,
        }
        template = divert if outermost else _record_detail if detail else _record
        self._code = self._entry.code(template, constants)
        abandon_in_child(self.abandon)
        self._entry.record(self._code)

    def disarm(self) -> None:
        """End recording; calls still under way are counted as dropped."""
        code, self._code = self._code, None
        if code is not None:
            self._entry.record(None)
            keep_in_child(self.abandon)
            self._dropped += calls_under_way(code)

    def stop(self, graph_of: Callable[[Any], Graph | None] | None = None) -> LayerRecords:
        """End recording, and return the records, which describe the called modules too.

        Args:
            graph_of: Returns the graph that a module is the code of, or None.
        """
        self.disarm()
        threads = [  # copies: calls that are under way on other threads may still end
            RawCalls(t.thread, [*t.calls], [*t.failed], [*t.notes], [*t.places])
            for t in self._threads
        ]
        self._threads, self._buffers = [], None  # a reference cycle would keep the model alive
        warnings: tuple[str, ...] = ()
        if self._unread:
            kinds = ", ".join(sorted(set(self._unread)))
            warnings = (_UNREAD.format(len(self._unread), kinds),)
        return layer_records(threads, graph_of, dropped=self._dropped, warnings=warnings)

    def abandon(self) -> None:
        """Take the code out in a forked child; there are no records."""
        self._code = None
        self._entry.restore()

    def _shapes(self, value: Any) -> Shapes | None:
        try:
            return shapes(value)
        except Exception as error:  # noqa: BLE001  the user's own properties run
            self._unread.append(type(error).__name__)
            return None

    def _greet(self) -> None:
        if self._arrived is not None and threading.get_ident() != self._starter:
            self._arrived()

    def _record_outermost(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry, now, call = self._entry, self._now, self._entry.call
        buffers, code = self._buffers, self._code
        if (
            buffers is None
            or code is None
            or entry.is_nested(sys._getframe(2))
            or not self._outermost.acquire(False)
        ):
            return call(module, *args, **kwargs)
        # Swapping the code costs more than a small layer, and a module without parts calls none.
        parts = module.__dict__.get("_modules", True)
        try:
            if parts:
                entry.pause(code, True)
            start = now()
            try:
                result = call(module, *args, **kwargs)
            except BaseException as error:
                end = now()
                buffers.fail((module, start, end), error)
                raise
            end = now()
            buffers.put((module, start, end))
            return result
        finally:
            if parts:
                entry.pause(code, False)
            self._outermost.release()
