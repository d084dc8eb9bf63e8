"""Hands calls of Keras layers to a function of a recorder or a watcher.

`keras.layers.Layer.__call__` stays the same function object and gets other code: subclasses and
`super()` reach the same function, no class loses its method cache, and Keras's own signatures of
calls are not touched.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from xsp.errors import ProviderError
from xsp_levels.framework.keras.backend import layer_class


class CallEntryPoint:
    """The code of `keras.layers.Layer.__call__`.

    A watcher's code is handed the calls that come first, and makes each of them by `inner`, whose
    code is that of the recorder while there is one. Any thread may call the methods; a recorded
    call calls none of them.

    Attributes:
        call: A function with the original code, which runs a call unobserved.
        inner: A function with the code that watched calls are made with.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._original = function.__code__
        self._watching: CodeType | None = None
        self._recording: CodeType | None = None
        self._lock = threading.RLock()  # a signal's handler may call a model, too
        self.call: Callable[..., Any] = _copy(function)
        self.inner = _copy(function)

    @property
    def untouched(self) -> bool:
        """Whether the original code is in place."""
        return self._function.__code__ is self._original

    def code(self, template: Callable[..., Any], constants: Mapping[str, Any]) -> CodeType:
        """Return the template's code, with its placeholder strings replaced by `constants`.

        Constants are the fastest to load. The code carries the file and name of the original
        code, by which Keras leaves it out of tracebacks, and as many free variables.
        """
        code, original = template.__code__, self._original
        return code.replace(
            co_consts=tuple(constants.get(c, c) if type(c) is str else c for c in code.co_consts),
            co_filename=original.co_filename,
            co_firstlineno=original.co_firstlineno,
            co_name=original.co_name,
            co_qualname=original.co_qualname,
            co_freevars=original.co_freevars,
        )

    def bound(self, layer: Any) -> Callable[..., Any]:
        """Return the callable that makes a call of a layer at the entry point.

        That is the layer, unless its class has a `__call__` of its own, which led to the entry
        point and must not run twice.
        """
        plain = type(layer).__call__ is self._function
        return layer if plain else MethodType(self._function, layer)

    def record(self, code: CodeType | None) -> None:
        """Put a recorder's code in place; None takes the recorder's code out."""
        with self._lock:
            self._recording = code
            self._apply()

    def watch(self, code: CodeType | None) -> None:
        """Put a watcher's code in place; None takes the watcher's code out."""
        with self._lock:
            self._watching = code
            self._apply()

    def restore(self) -> None:
        """Take everything out, in a forked child."""
        self._lock = threading.RLock()  # the thread that held the old lock does not exist here
        self._watching = self._recording = None
        self._apply()

    def _apply(self) -> None:
        recording = self._recording or self._original
        if self.inner.__code__ is not recording:
            self.inner.__code__ = recording
        code = self._watching or recording
        if self._function.__code__ is not code:
            self._function.__code__ = code


def call_entry_point() -> CallEntryPoint | None:
    """Return the entry point `keras.layers.Layer.__call__`; None while Keras is not imported.

    Raises:
        ProviderError: Another tool has replaced the function, so its code cannot be swapped.
    """
    cls = layer_class()
    return None if cls is None else _entry_point(cls)


@functools.cache
def _entry_point(cls: type) -> CallEntryPoint:
    function = cls.__call__
    if not isinstance(function, FunctionType):
        raise ProviderError(
            "keras: another tool has replaced keras.layers.Layer.__call__, so layers cannot be "
            f"recorded (it is {function!r}); stop that tool first"
        )
    entry = CallEntryPoint(function)
    os.register_at_fork(after_in_child=entry.restore)
    return entry


def _copy(function: FunctionType) -> FunctionType:
    scope, name = function.__globals__, function.__name__
    return FunctionType(function.__code__, scope, name, None, function.__closure__)
