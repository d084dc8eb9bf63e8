"""Tells when Dynamo, PyTorch's compiler, compiles, and which code it leaves alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from xsp_levels.imported import Imports

_CALLBACK = "torch._dynamo.callback"


class Compilations:
    """Tells when a compilation begins, and when it has ended.

    Args:
        told: Called with True when one begins, with False when it has ended, on its thread, and
            with what PyTorch tells of it.
        whole: Whether to tell of backward passes that are compiled later, and of CUDA graphs.
    """

    def __init__(self, told: Callable[[bool, Any], None], *, whole: bool = False) -> None:
        self._told = told
        self._whole = whole
        self._wanted = False
        self._imports = Imports({_CALLBACK}, self._register)

    def tell(self, wanted: bool) -> None:
        """Begin to tell, or end that; does next to nothing where nothing changes."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if not wanted:
            self._imports.end()
            handler = _handler()
            # `torch._dynamo.reset` forgets all callbacks.
            if handler is not None and self._begin in handler.start_callbacks:
                handler.remove_start_callback(self._begin)
                handler.remove_end_callback(self._end)
        elif _CALLBACK in sys.modules:
            self._register()
        else:
            self._imports.begin()

    def _register(self) -> None:
        handler = _handler()
        if handler is not None and self._begin not in handler.start_callbacks:
            handler.register_start_callback(self._begin)
            handler.register_end_callback(self._end)

    def _begin(self, about: Any = None) -> None:
        if self._whole or _is_of_dynamo(about):
            self._told(True, about)

    def _end(self, about: Any = None) -> None:
        if self._whole or _is_of_dynamo(about):
            self._told(False, about)


def _handler() -> Any:
    return getattr(sys.modules.get(_CALLBACK), "callback_handler", None)


def _is_of_dynamo(about: Any) -> bool:
    """Return whether Dynamo reads code; backward passes are compiled later, from graphs.

    An older PyTorch tells nothing about what it compiles.
    """
    trigger = getattr(about, "callback_trigger", None)
    return trigger is None or trigger.name == "DYNAMO"


@functools.cache
def hide_from_compiler(*names: str) -> None:
    """Have Dynamo run the functions of these modules uncompiled, and compile what they call.

    Without this, functions that run between two parts of a compiled model are compiled too.
    """
    for name in names:
        for code in _codes(vars(sys.modules[name]), name):
            skip_code(code)


def skip_code(code: CodeType) -> None:
    """Have Dynamo run this code uncompiled, and compile what it calls; imports torch."""
    import torch  # noqa: PLC0415

    frame = torch._C._dynamo.eval_frame
    if not hasattr(frame, "set_code_exec_strategy"):
        frame.skip_code(code)  # PyTorch before 2.6
        return
    skip = frame._FrameExecStrategy(frame._FrameAction.SKIP, frame._FrameAction.DEFAULT)
    frame.set_code_exec_strategy(code, skip)


def _codes(members: Mapping[str, Any], module: str) -> Iterator[CodeType]:
    for member in members.values():
        function = getattr(member, "__wrapped__", member)  # of a cached function
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield from _nested_codes(function.__code__)
        elif isinstance(member, type) and member.__module__ == module:
            yield from _codes(vars(member), module)


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)
