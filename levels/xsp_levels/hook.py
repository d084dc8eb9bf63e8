"""Hands each call of a Python function, on any thread, to a handler that makes the call.

The function stays the same object and gets other code, as `entry_point` does with a module's
call: names that programs imported, bound methods and Dynamo's guards keep what they hold, no
class loses its method cache, and subclasses and `super()` reach the same function.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

_HANDLER = "xsp_handler"

Handler = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Hook:
    """A function whose calls a handler makes while the hook is in place.

    The code in place finds the handler in a default of the function, not in its constants: Dynamo
    can inline a call of a default. A call reads code and defaults at once, and the default is
    there before the code comes and until after the code has gone, so calls on other threads
    always find both.

    Args:
        function: The function; a generator function, too.
        handler: Makes the handler, given a function with the original code. The handler is a
            generator function if `function` is.
    """

    def __init__(
        self, function: FunctionType, handler: Callable[[Callable[..., Any]], Handler]
    ) -> None:
        self._reference = weakref.ref(function)  # which may keep the hook
        self._original = function.__code__
        self._defaults = function.__kwdefaults__
        self._signed = "__signature__" in vars(function)
        self._signature = inspect.signature(function)
        self._handler = handler(_copy(function))
        # Code that calls the handler, and fits the function.
        # Dynamo decides by file which functions to inline and which to leave alone.
        original = function.__code__
        generates = inspect.isgeneratorfunction(function)
        self.code = _template(generates, len(original.co_freevars)).replace(
            co_filename=original.co_filename,
            co_firstlineno=original.co_firstlineno,
            co_name=original.co_name,
            co_qualname=original.co_qualname,
            co_freevars=original.co_freevars,
        )

    @property
    def placed(self) -> bool:
        """Whether the hook is in place."""
        return getattr(self._reference(), "__code__", None) is self.code

    def place(self) -> None:
        """Put the hook in place; nothing happens if another tool has changed the function."""
        function = self._reference()
        if function is not None and function.__code__ is self._original:
            function.__kwdefaults__ = {**(self._defaults or {}), _HANDLER: self._handler}
            function.__signature__ = self._signature  # type: ignore[attr-defined]
            function.__code__ = self.code
            _forget_parameters(function)

    def take_out(self) -> None:
        """Make the function what it was."""
        function = self._reference()
        if function is not None and function.__code__ is self.code:
            function.__code__ = self._original
            _forget_parameters(function)
            if not self._signed:
                del function.__signature__  # type: ignore[attr-defined]
            function.__kwdefaults__ = self._defaults


def calls_under_way(code: CodeType) -> int:
    """Count the calls of `code` that have begun and not ended, on all threads."""
    count = 0
    for frame in list(sys._current_frames().values()):
        caller: Any = frame
        while caller is not None:
            count += caller.f_code is code
            caller = caller.f_back
    del frame
    return count


@functools.cache
def _template(generates: bool, free: int) -> CodeType:
    """Return code that calls `xsp_handler`.

    It is compiled with as many free variables as the function has (one that says `super()` has
    one): were they only named, whoever looked at the variables of a frame, as debuggers do, would
    crash Python.

    Args:
        generates: Whether the code is of a generator function, which callers may recognize as one.
        free: How many free variables there are.
    """
    variables = ", ".join(f"free_{number}" for number in range(free))
    call = "xsp_handler(args, kwargs)"
    source = (
        f"def around({variables}):\n"
        "    def function(*args, xsp_handler, **kwargs):\n"
        f"        return {f'(yield from {call})' if generates else call}\n"
        f"        {variables}\n"
        "    return function"
    )
    made: dict[str, Any] = {}
    exec(source, made)
    code: CodeType = made["around"](*[None] * free).__code__
    return code


def _forget_parameters(function: FunctionType) -> None:
    """Have Dynamo look anew at the parameters of a function, which it keeps by function."""
    dynamo = sys.modules.get("torch._dynamo.variables.functions")
    getattr(dynamo, "_spec_cache", {}).pop(function, None)


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
