"""The functions by which a program enters PyTorch: a module's call, a backward pass, a step.

A recorder or a watcher is handed their calls. `torch.nn.Module.__call__` stays the same function
object and gets other code: another function in the class would empty the method caches of every
module class, and would be seen by Dynamo, which compares functions. `torch.autograd.backward` is
wrapped, steps of optimizers have PyTorch's own hooks.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns
from types import CodeType, FrameType, FunctionType
from typing import Any

from xsp.errors import ProviderError
from xsp_levels.framework.torch.compiler import Compilations, hide_from_compiler
from xsp_levels.hook import Handler, Hook

_KERAS = "keras.src.optimizers.base_optimizer"

_abandon: list[Callable[[], None]] = []
_free: list[Callable[[], None]] = []


class CallEntryPoint:
    """The code of `torch.nn.Module.__call__`.

    Two other codes can take the place of the original code: that of a program's watcher, else that
    of a recorder, unless the recorder is paused. While Dynamo compiles, PyTorch's own code is in
    place, which Dynamo reads of modules that have hooks. Any thread may call the methods; a
    recorded call calls none of them.

    Attributes:
        call: A function with the original code, which runs a call unobserved.
        original: PyTorch's own code.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self.original = function.__code__
        self._watching: CodeType | None = None
        self._recording: CodeType | None = None
        self._paused = False
        self._lock = threading.RLock()  # a signal's handler may call a model, too
        self._compiling = False
        self._compilations = Compilations(self._compile)
        name, scope = function.__name__, function.__globals__
        self.call: Callable[..., Any] = FunctionType(self.original, scope, name)

    def code(self, template: Callable[..., Any], constants: Mapping[str, Any]) -> CodeType:
        """Return the template's code, with its placeholder strings replaced by `constants`.

        Constants need no names in the globals of PyTorch's module, and are the fastest
        to load. The code carries the file, name and line of the original code: Dynamo
        decides by file which code to leave alone.
        """
        code, original = template.__code__, self.original
        values = tuple(constants.get(c, c) if type(c) is str else c for c in code.co_consts)
        # The table of lines of code that is all on its first line, as tracebacks show it.
        # Each entry is for eight instructions at most; 13 says that it has a line and no columns,
        # and the line is that of the entry before.
        instructions = len(code.co_code) // 2
        entries = [min(8, instructions - at) for at in range(0, instructions, 8)]
        one_line = b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in entries)
        return code.replace(
            co_consts=values,
            co_filename=original.co_filename,
            co_qualname=original.co_qualname,
            co_linetable=one_line,
            co_name=original.co_name,
            co_firstlineno=_call_line(original),
        )

    def record(self, code: CodeType | None) -> None:
        """Put a recorder's code in place; None takes the recorder's code out."""
        with self._lock:
            self._recording, self._paused = code, False
            self._apply()

    def watch(self, code: CodeType | None) -> None:
        """Put a watcher's code in place; None takes the watcher's code out."""
        with self._lock:
            self._watching = code
            self._apply()

    def pause(self, code: CodeType, paused: bool) -> None:
        """Say whether calls run unrecorded by `code`; ignored once `code` is taken out."""
        with self._lock:
            if code is self._recording:
                self._paused = paused
                self._apply()

    def is_nested(self, frame: FrameType | None) -> bool:
        """Return whether a module call is under way in a frame or its callers.

        A call that the watcher handed on does not count, nor do those around it.
        """
        original, recording, watching = self.original, self._recording, self._watching
        while frame is not None:
            code = frame.f_code
            if code is watching and code is not None:
                return False
            if code is original or code is recording:
                return True
            frame = frame.f_back
        return False

    def restore(self) -> None:
        """Take everything out."""
        self.record(None)
        self.watch(None)

    def free_child(self) -> None:
        """Replace the lock: the thread that held the old lock does not exist in a forked child."""
        self._lock = threading.RLock()

    def _compile(self, begun: bool, _: Any) -> None:
        with self._lock:
            self._compiling = begun
            self._apply()

    def _apply(self) -> None:
        wanted = self._watching is not None or self._recording is not None
        self._compiling = self._compiling and wanted  # else nobody tells of the end
        self._compilations.tell(wanted)
        code = self.original
        if not self._compiling:
            code = self._watching or (None if self._paused else self._recording) or code
        if self._function.__code__ is not code:
            self._function.__code__ = code


class BackwardEntryPoint:
    """The function `torch.autograd.backward`, wrapped while there is a recorder."""

    def __init__(self, autograd: Any) -> None:
        self._autograd = autograd
        self._original: Callable[..., Any] = autograd.backward
        self._around: Callable[..., Any] | None = None

    def record(self, around: Callable[..., Any] | None) -> None:
        """Have `around(backward, args, kwargs)` make each call; None: calls are made directly."""
        self._around = around
        current = self._autograd.backward
        is_ours = getattr(current, "__xsp__", None) is self
        if around is not None and not is_ours:
            self._original = current
            self._autograd.backward = self._wrapped(current)
        elif around is None and is_ours:
            self._autograd.backward = self._original

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            around = self._around
            return around(original, args, kwargs) if around else original(*args, **kwargs)

        backward.__xsp__ = self  # type: ignore[attr-defined]
        return backward


class OptimizerEntryPoint:
    """Hooks around the steps of all optimizers, while there is a recorder or a watcher.

    Those of Keras on PyTorch are no optimizers of PyTorch's, and are hooked besides.
    """

    def __init__(self, optimizer: Any, is_compiling: Callable[[], bool]) -> None:
        self._optimizer = optimizer
        self._is_compiling = is_compiling  # Dynamo traces hooks: these must do nothing then
        self._hooks: list[Any] = []
        self._keras: Hook | None = None
        self._begin: Callable[[Any], None] | None = None
        self._end: Callable[[Any], None] | None = None
        self._before: Callable[[Any, int], None] | None = None
        self._after: Callable[[Any], None] | None = None

    def record(
        self, begin: Callable[[Any], None] | None, end: Callable[[Any], None] | None
    ) -> None:
        """Have `begin(optimizer)` called right before, `end(optimizer)` right after a step."""
        self._begin, self._end = begin, end
        self._apply()

    def watch(
        self, before: Callable[[Any, int], None] | None, after: Callable[[Any], None] | None
    ) -> None:
        """Tell a watcher of steps; None ends that.

        Args:
            before: Called with the optimizer, and the time in ns when the hook was entered, before
                the step is recorded.
            after: Called with the optimizer when a step has been made and recorded.
        """
        self._before, self._after = before, after
        self._apply()

    def _apply(self) -> None:
        wanted = any((self._begin, self._end, self._before, self._after))
        if wanted and not self._hooks:
            self._hooks = [
                self._optimizer.register_optimizer_step_pre_hook(self._before_step),
                self._optimizer.register_optimizer_step_post_hook(self._after_step),
            ]
            self._keras = self._keras or _keras_hook(self._before_step, self._after_step)
            if self._keras is not None:
                self._keras.place()
        elif not wanted:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            if self._keras is not None:
                self._keras.take_out()

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_compiling():
            return
        if (before := self._before) is not None:
            before(optimizer, monotonic_ns())
        if (begin := self._begin) is not None:  # armed by `before`, perhaps
            begin(optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_compiling():
            return
        if (end := self._end) is not None:
            end(optimizer)
        if (after := self._after) is not None:
            after(optimizer)


@functools.cache
def call_entry_point() -> CallEntryPoint:
    """Return the entry point `torch.nn.Module.__call__`; imports torch.

    Raises:
        ProviderError: Another tool has replaced the function, so its code cannot be swapped.
    """
    from torch.nn import Module  # noqa: PLC0415

    function = Module._wrapped_call_impl
    if not isinstance(function, FunctionType) or function.__code__.co_freevars:
        raise ProviderError(
            "torch: another tool has replaced torch.nn.Module's call function, so layers cannot "
            f"be recorded (it is {function!r}); stop that tool first"
        )
    return CallEntryPoint(function)


@functools.cache
def backward_entry_point() -> BackwardEntryPoint:
    """Return the entry point `torch.autograd.backward`; imports torch."""
    import torch  # noqa: PLC0415

    return BackwardEntryPoint(torch.autograd)


@functools.cache
def optimizer_entry_point() -> OptimizerEntryPoint:
    """Return the entry points of all optimizers' steps; imports torch."""
    import torch  # noqa: PLC0415
    from torch.optim import optimizer  # noqa: PLC0415

    hide_from_compiler(__name__)
    return OptimizerEntryPoint(optimizer, torch.compiler.is_compiling)


def abandon_in_child(callback: Callable[[], None]) -> None:
    """Have `callback` called in every process forked from now on."""
    _register_fork()
    _abandon.append(callback)


def keep_in_child(callback: Callable[[], None]) -> None:
    """Forget a callback given to `abandon_in_child`."""
    if callback in _abandon:
        _abandon.remove(callback)


def free_in_child(callback: Callable[[], None]) -> None:
    """Have `callback` called in every forked process, before what `abandon_in_child` was given."""
    _register_fork()
    _free.append(callback)


@functools.cache
def _register_fork() -> None:
    os.register_at_fork(after_in_child=_restore_child)


def _restore_child() -> None:
    if call_entry_point.cache_info().currsize:
        call_entry_point().free_child()
    for free in _free:
        free()
    while _abandon:
        _abandon.pop()()


def _call_line(code: CodeType) -> int:
    """Return the line of the call that passes all arguments on, which tracebacks show."""
    calls = [i for i in dis.get_instructions(code) if i.opname.startswith("CALL")]
    passing = [i for i in calls if i.opname == "CALL_FUNCTION_EX"] or calls
    offsets = [i.offset for i in passing]
    for start, end, line in code.co_lines():
        if offsets and line is not None and start <= offsets[-1] < end:
            return line
    return code.co_firstlineno


def _keras_hook(
    before: Callable[[Any, tuple[Any, ...], dict[str, Any]], None], after: Callable[[Any], None]
) -> Hook | None:
    """Return a hook of steps of Keras's optimizers, if the program runs Keras on PyTorch."""
    keras, module = sys.modules.get("keras"), sys.modules.get(_KERAS)
    if keras is None or module is None or keras.backend.backend() != "torch":
        return None

    def handler(call: Callable[..., Any]) -> Handler:
        def step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            before(args[0], (), {})
            result = call(*args, **kwargs)
            after(args[0])
            return result

        return step

    return Hook(module.BaseOptimizer.apply, handler)
