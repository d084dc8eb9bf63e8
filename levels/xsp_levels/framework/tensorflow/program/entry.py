"""Hooks the functions by which a program enters TensorFlow, for recorders and watchers.

They are calls of functions, data loading, backward passes, optimizers' steps. The
functions stay the same objects and get other code while there is a recorder or a watcher
(`xsp_levels.hook`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

from xsp.clock import SystemClock
from xsp_levels.hook import Handler, Hook
from xsp_levels.imported import Imports

BACKWARD = "backward"
OPTIMIZER_STEP = "optimizer step"
LOADING = "data loading"
END_OF_LOADING = f"end of {LOADING}"
ENDS = ("OutOfRangeError", "StopIteration")  # exceptions by which iterators end

_DATASET, _ITERATOR = "tensorflow.python.data.ops.dataset_ops", "tensorflow.python.data.ops"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"


@dataclass(frozen=True, slots=True)
class Part:
    """A function that does one part of a program's work.

    Attributes:
        name: Name of the spans.
        module: Name of the module that has the function.
        owner: Name of the class in it; empty for a function of the module.
        method: Name of the function; those of subclasses with that name are meant, too.
    """

    name: str
    module: str
    owner: str
    method: str

    def functions(self) -> Iterator[FunctionType]:
        """Yield the functions, as far as their modules are imported."""
        module = sys.modules.get(self.module)
        if not self.owner:
            found = getattr(module, self.method, None)
            yield from (found,) if isinstance(found, FunctionType) else ()
            return
        owner = getattr(module, self.owner, None)
        if self.module.startswith("keras.") and not keras_is_on_tensorflow():
            return
        for cls in _with_subclasses(owner) if owner is not None else ():
            found = vars(cls).get(self.method)
            if isinstance(found, FunctionType):
                yield found


PARTS = (
    Part("start of data loading", _DATASET, "DatasetV2", "__iter__"),
    Part(LOADING, f"{_ITERATOR}.iterator_ops", "OwnedIterator", "_next_internal"),
    Part(BACKWARD, "tensorflow.python.eager.backprop", "GradientTape", "gradient"),
    Part(OPTIMIZER_STEP, "keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
)
CALLS = (
    Part("function", f"{_FUNCTIONS}.polymorphic_function", "Function", "__call__"),
    Part("function", f"{_FUNCTIONS}.concrete_function", "ConcreteFunction", "__call__"),
)
# It makes a graph: its arguments are the types of the function's, and, at last, what is traced.
TRACING = Part("trace", f"{_FUNCTIONS}.tracing_compilation", "", "_create_concrete_function")


class Note(Protocol):
    """A function that is told of each part when the part has ended, on the part's thread."""

    def __call__(
        self, name: str, start_ns: int, end_ns: int, subject: Any, error: str | None
    ) -> None:
        """Note a part, the object that it is a method of, and the exception that left it."""
        ...


class Watching(Protocol):
    """Handlers that make the calls of the entry points in a program."""

    def call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a function."""
        ...

    def part(
        self, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call that is a part of the program."""
        ...

    def trace(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that traces a function."""
        ...

    def found(self) -> None:
        """Note that TensorFlow or Keras has been imported meanwhile."""
        ...


class _Depth(threading.local):
    parts = 0  # how many parts are under way, one within another


class EntryPoints:
    """The functions of `PARTS` and `CALLS`, hooked while there is a recorder or a watcher.

    TensorFlow and Keras may be imported meanwhile. Any thread may call the methods.
    """

    def __init__(self) -> None:
        self._record: Note | None = None
        self._watch: Watching | None = None
        self._now = SystemClock.now
        self._parts: dict[FunctionType, Hook] = {}
        self._calls: dict[FunctionType, Hook] = {}
        self._depth = _Depth()
        self._imports = Imports(("tensorflow", "keras"), self._look_again)
        self._lock = threading.RLock()  # a signal's handler may call a model, too

    @property
    def hooked(self) -> frozenset[str]:
        """Names of the functions that have other code now."""
        hooks = {**self._parts, **self._calls}
        return frozenset(f.__qualname__ for f, hook in hooks.items() if hook.placed)

    def record(self, note: Note | None, now: Callable[[], int] = SystemClock.now) -> None:
        """Call `note` after each part; None ends that."""
        self._record, self._now = note, now
        self._apply()

    def watch(self, watcher: Watching | None) -> None:
        """Have a watcher make all calls; None ends that."""
        self._watch = watcher
        self._apply()

    def _apply(self) -> None:
        with self._lock:
            parts = self._record is not None or self._watch is not None
            calls = self._watch is not None
            if parts or calls:
                self._imports.begin()
                self._look()
            else:
                self._imports.end()
            for hook in self._parts.values():
                hook.place() if parts else hook.take_out()
            for hook in self._calls.values():
                hook.place() if calls else hook.take_out()

    def _look_again(self) -> None:
        self._apply()
        if self._watch is not None:
            self._watch.found()

    def _look(self) -> None:
        """Find functions that were imported, or classes that were made, since the last look."""
        for part in PARTS:
            for function in part.functions():
                if function not in self._parts:
                    self._parts[function] = Hook(
                        function, functools.partial(self._part_handler, part)
                    )
        for part in CALLS:
            for function in part.functions():
                if function not in self._calls:
                    self._calls[function] = Hook(function, self._call_handler)
        for function in TRACING.functions():
            if function not in self._calls:
                self._calls[function] = Hook(function, self._trace_handler)

    def _part_handler(self, part: Part, call: Callable[..., Any]) -> Handler:
        """Return a handler that makes a call, and tells how long it took."""
        depth = self._depth

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if depth.parts or not executing_eagerly():
                return call(*args, **kwargs)
            depth.parts += 1
            try:
                if (watch := self._watch) is not None:
                    return watch.part(part.name, call, args, kwargs)
                return self._recorded(part, call, args, kwargs)
            finally:
                depth.parts -= 1

        return handler

    def _recorded(
        self, part: Part, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        now, error = self._now, None
        start = now()
        try:
            return call(*args, **kwargs)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            end, name = now(), part.name
            if name == LOADING and error in ENDS:
                name, error = END_OF_LOADING, None
            if (record := self._record) is not None:
                record(name, start, end, args[0] if args else None, error)

    def _trace_handler(self, call: Callable[..., Any]) -> Handler:
        """Return a handler that hands a trace on, but for those within another trace."""

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watch = self._watch
            if watch is None or not executing_eagerly():
                return call(*args, **kwargs)
            return watch.trace(call, args, kwargs)

        return handler

    def _call_handler(self, call: Callable[..., Any]) -> Handler:
        """Return a handler that hands a call on."""

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watch = self._watch
            return call(*args, **kwargs) if watch is None else watch.call(call, args, kwargs)

        return handler


def keras_is_on_tensorflow() -> bool:
    """Return whether the program has imported Keras, and Keras runs on TensorFlow."""
    backend: Any = getattr(sys.modules.get("keras"), "backend", None)
    return backend is not None and backend.backend() == "tensorflow"


def executing_eagerly() -> bool:
    """Return whether TensorFlow's operators run when they are called, not put into a graph."""
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    return context is not None and bool(context.executing_eagerly())


@functools.cache
def entry_points() -> EntryPoints:
    """Return TensorFlow's entry points; imports nothing."""
    return EntryPoints()  # of forked children none can use TensorFlow


def _with_subclasses(owner: type) -> Iterator[type]:
    seen, found = set(), [owner]
    while found:
        cls = found.pop()
        if cls not in seen and inspect.isclass(cls):
            seen.add(cls)
            yield cls
            found += type.__subclasses__(cls)
