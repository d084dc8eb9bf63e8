"""Calls of PyTorch modules in; records of module, start and end of each call out."""

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
from xsp_levels.framework.torch.module.module_path import LayerRecords, RawCalls, layer_records
from xsp_levels.framework.torch.module.shape import Shapes, shapes
from xsp_levels.framework.torch.module.source_line import Place, caller


class ThreadBuffer:
    """The calls that one thread recorded."""

    __slots__ = ("calls", "failed", "notes", "places", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.calls: list[Any] = []  # module, start_ns, end_ns, module, ... in order of their ends
        self.failed: list[tuple[int, str]] = []  # (number of the call, class of the exception)
        self.notes: list[tuple[Any, Any]] = []  # in detail runs: shapes of inputs and outputs
        self.places: list[Place | None] = []  # in detail runs: lines that made the calls


class Buffers(threading.local):
    """The buffer of each thread; attributes are those of the calling thread's buffer."""

    def __init__(self, threads: list[ThreadBuffer], arrived: Callable[[], None]) -> None:
        buffer = ThreadBuffer()
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


def divert_timed(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`, and hand the call on, with the time."""
    now: Any = "xsp:now"
    handler: Any = "xsp:handler"
    return handler(self, args, kwargs, now())


def divert_outermost(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`, and hand a call that the thread makes outermost on."""
    now: Any = "xsp:now"
    local: Any = "xsp:local"
    inner: Any = "xsp:inner"
    handler: Any = "xsp:handler"
    if local.inside:
        return inner(self, *args, **kwargs)
    return handler(self, args, kwargs, now())


def divert_model(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`; of one thread's calls, hand those of one model on alone."""
    model: Any = "xsp:model"  # its id: the code must not keep the model alive
    thread: Any = "xsp:thread"
    own_thread: Any = "xsp:own thread"
    now: Any = "xsp:now"
    inner: Any = "xsp:inner"
    handler: Any = "xsp:handler"
    if id(self) == model or own_thread() != thread:
        return handler(self, args, kwargs, now())
    return inner(self, *args, **kwargs)


class LayerRecorder:
    """Records every module call, or the outermost ones only, between `start` and `stop`.

    Args:
        arrived: Called when a thread first calls a module, on that thread; not on the thread
            that calls `start`.
    """

    def __init__(self, arrived: Callable[[], None] = lambda: None) -> None:
        self._arrived = arrived
        self._threads: list[ThreadBuffer] = []
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
        self._code = self._choose(detail, outermost)
        abandon_in_child(self.abandon)
        self._entry.record(self._code)

    def disarm(self) -> None:
        """End recording; calls still under way are counted as dropped."""
        code, self._code = self._code, None
        if code is not None:
            self._entry.record(None)
            keep_in_child(self.abandon)
            self._dropped += _under_way(code)

    def stop(self, graph_of: Callable[[Any], Graph | None] | None = None) -> LayerRecords:
        """End recording, and return the records, which describe the called modules too.

        Args:
            graph_of: Returns the graph that a module is the code of, or None; None: not asked.
        """
        self.disarm()
        threads = [
            RawCalls(
                buffer.thread,
                list(buffer.calls),
                list(buffer.failed),
                list(buffer.notes),
                list(buffer.places),
            )
            for buffer in self._threads
        ]
        self._threads, self._buffers = [], None  # a reference cycle would keep the model alive
        problems = _unread(self._unread)
        return layer_records(threads, graph_of, dropped=self._dropped, problems=problems)

    def abandon(self) -> None:
        """Take the code out in a forked child; there are no records."""
        self._code = None
        self._entry.restore()

    def _choose(self, detail: bool, outermost: bool) -> CodeType:
        if outermost:
            return self._entry.code(divert, {"xsp:handler": self._record_outermost})
        constants = {
            "xsp:buffers": self._buffers,
            "xsp:now": self._now,
            "xsp:call": self._entry.call,
            "xsp:shapes": self._shapes,
            "xsp:caller": caller,
        }
        return self._entry.code(_record_detail if detail else _record, constants)

    def _shapes(self, value: Any) -> Shapes | None:
        """Return the shapes of inputs or outputs; None if asking for them raised."""
        try:
            return shapes(value)
        except Exception as error:  # noqa: BLE001  the user's own properties run
            self._unread.append(type(error).__name__)
            return None

    def _greet(self) -> None:
        if threading.get_ident() != self._starter:
            self._arrived()

    def _record_outermost(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one outermost call; the calls inside run PyTorch's original code."""
        entry, now, call = self._entry, self._now, self._entry.call
        buffers, code = self._buffers, self._code
        if (
            buffers is None
            or code is None
            or entry.is_nested(sys._getframe(2), watched=False)
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


def _unread(errors: list[str]) -> tuple[str, ...]:
    """Return a sentence about shapes that could not be read; nothing if all could."""
    if not errors:
        return ()
    kinds = ", ".join(sorted(set(errors)))
    return (
        f"the shapes of what went into or came out of modules could not be read {len(errors)} "
        f"times, as asking for them raised {kinds}; they are missing there",
    )


def _under_way(code: CodeType) -> int:
    """Return how many calls of `code` have begun and not ended, on all threads."""
    count = 0
    for frame in list(sys._current_frames().values()):
        caller: Any = frame
        while caller is not None:
            count += caller.f_code is code
            caller = caller.f_back
    return count
