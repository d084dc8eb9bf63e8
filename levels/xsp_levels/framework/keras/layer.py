"""Records layer, start and end of each call of a Keras layer.

Calls that compute nothing are left out: those by which a graph is traced (`tf.function`,
`jax.jit`), a model is put together, or shapes are found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from xsp.clock import Clock
from xsp_levels.framework.keras.backend import Backend, backend
from xsp_levels.framework.keras.entry_point import CallEntryPoint, call_entry_point
from xsp_levels.framework.keras.index import LayerIndex, layer_index
from xsp_levels.framework.keras.record import LayerRecords, RawCalls, layer_records
from xsp_levels.framework.keras.shape import Shapes, shapes
from xsp_levels.hook import calls_under_way

__all__ = ["LayerRecorder", "LayerRecords"]


class ThreadBuffer:
    """The calls that one thread recorded."""

    __slots__ = ("calls", "failed", "notes", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.calls: list[Any] = []  # layer, start_ns, end_ns, layer, ... in order of their ends
        self.failed: list[tuple[int, str]] = []  # (number of the call, class of the exception)
        self.notes: list[tuple[Shapes | None, Shapes | None]] = []  # in detail runs


class Buffers(threading.local):
    """The buffer of each thread; attributes are those of the calling thread's buffer."""

    def __init__(self, threads: list[ThreadBuffer], arrived: Callable[[], None]) -> None:
        self.inside = False  # whether an outermost call is under way, where only those count
        buffer = ThreadBuffer()
        self.put = buffer.calls.extend
        self.note = buffer.notes.append
        self.buffer = buffer
        threads.append(buffer)
        arrived()

    def fail(self, entry: tuple[Any, int, int], error: BaseException) -> None:
        """Record a call that raised."""
        self.buffer.failed.append((len(self.buffer.calls) // 3, type(error).__name__))
        self.put(entry)


def _record(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Layer.__call__`; `CallEntryPoint.code` puts objects in the strings' place.

    The only work between the clock reads is one call of a Python function with the same
    arguments, so a call costs what calling `Layer.__call__` itself would cost.
    """
    buffers: Any = "xsp:buffers"
    now: Any = "xsp:now"
    call: Any = "xsp:call"
    executing: Any = "xsp:executing"
    tensor: Any = "xsp:tensor"
    is_symbolic: Any = "xsp:is_symbolic"
    put = buffers.put
    start = now()
    try:
        result = call(self, *args, **kwargs)
    except BaseException as error:
        end = now()
        if executing() and not is_symbolic((args, kwargs)):
            buffers.fail((self, start, end), error)
        raise
    end = now()
    # Traced operators return no tensors with numbers: the quickest question comes first.
    if type(result) is tensor or (executing() and not is_symbolic(result)):
        put((self, start, end))
    return result


def _divert(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Layer.__call__`, and hand the call to `handler`."""
    handler: Any = "xsp:handler"
    return handler(self, args, kwargs)


class LayerRecorder:
    """Records every call of a layer, or the outermost ones only, between `start` and `stop`.

    Records nothing while the program has not imported Keras.

    Args:
        arrived: Called when a thread first calls a layer, on that thread; not on the thread that
            calls `start`.
    """

    def __init__(self, arrived: Callable[[], None] = lambda: None) -> None:
        self._arrived = arrived
        self._threads: list[ThreadBuffer] = []
        self._entry: CallEntryPoint | None = None
        self._code: CodeType | None = None
        self._unread: list[str] = []  # classes of exceptions raised by asking for shapes
        self._dropped = 0

    def start(self, clock: Clock, *, detail: bool = False, outermost: bool = False) -> None:
        """Begin to record.

        Args:
            clock: The clock that is read before and after each call.
            detail: Whether shapes are recorded, which costs time.
            outermost: Whether calls that lie in other calls run unobserved.
        """
        known = backend()
        self._entry = call_entry_point() if known is not None else None
        if known is None or self._entry is None:
            return
        self._backend: Backend = known
        self._now = clock.now
        self._starter = threading.get_ident()
        self._buffers: Buffers | None = Buffers(self._threads, self._greet)
        self._code = self._choose(detail, outermost)
        self._entry.record(self._code)

    def disarm(self) -> None:
        """End recording; calls still under way are counted as dropped."""
        code, self._code = self._code, None
        if code is not None and self._entry is not None:
            self._entry.record(None)
            self._dropped += calls_under_way(code)

    def stop(self) -> LayerRecords:
        """End recording, and return the records, which describe the called layers too."""
        self.disarm()
        threads = [
            RawCalls(buffer.thread, list(buffer.calls), list(buffer.failed), list(buffer.notes))
            for buffer in self._threads
        ]
        for buffer in self._threads:  # graphs that were traced meanwhile keep code that has them
            buffer.calls.clear()
            buffer.notes.clear()
        self._threads, self._buffers = [], None  # a reference cycle would keep the model alive
        index = layer_index() if self._entry is not None else LayerIndex()
        return layer_records(
            threads, index, dropped=self._dropped, warnings=_sentences(self._unread)
        )

    def _choose(self, detail: bool, outermost: bool) -> CodeType:
        assert self._entry is not None
        if outermost:
            return self._entry.code(_divert, {"xsp:handler": self._record_outermost})
        if detail:
            return self._entry.code(_divert, {"xsp:handler": self._record_detail})
        constants = {
            "xsp:buffers": self._buffers,
            "xsp:now": self._now,
            "xsp:call": self._entry.call,
            "xsp:executing": self._backend.executing,
            "xsp:tensor": self._backend.tensor,
            "xsp:is_symbolic": self._backend.is_symbolic,
        }
        return self._entry.code(_record, constants)

    def _record_outermost(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call, unless it lies in another one."""
        buffers = self._buffers
        if buffers is None or buffers.inside:
            return self._call(layer, args, kwargs)
        buffers.inside = True
        try:
            return self._made(layer, args, kwargs, note=None)
        finally:
            buffers.inside = False

    def _record_detail(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call, with the shapes of what goes in and comes out."""
        buffers = self._buffers
        if buffers is None:
            return self._call(layer, args, kwargs)
        return self._made(layer, args, kwargs, note=buffers.note)

    def _made(
        self,
        layer: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        note: Callable[[tuple[Shapes | None, Shapes | None]], None] | None,
    ) -> Any:
        """Make a call, record it unless it computes nothing, and return its result."""
        buffers, known, now, call = self._buffers, self._backend, self._now, self._call
        if buffers is None or not known.executing():
            return call(layer, args, kwargs)
        given = self._shapes((args, kwargs)) if note is not None else None
        start = now()
        try:
            result = call(layer, args, kwargs)
        except BaseException as error:
            end = now()
            if not known.is_symbolic((args, kwargs)):
                if note is not None:
                    note((given, None))
                buffers.fail((layer, start, end), error)
            raise
        end = now()
        if not known.is_symbolic(result):
            if note is not None:
                note((given, self._shapes(result)))
            buffers.put((layer, start, end))
        return result

    def _call(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._entry is not None
        return self._entry.call(layer, *args, **kwargs)

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


def _sentences(errors: list[str]) -> tuple[str, ...]:
    if not errors:
        return ()
    kinds = ", ".join(sorted(set(errors)))
    return (
        f"the shapes of what went into or came out of layers could not be read {len(errors)} "
        f"times, as asking for them raised {kinds}; they are missing there",
    )
