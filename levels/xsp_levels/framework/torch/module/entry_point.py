"""A function of a recorder or a watcher in; calls of PyTorch's entry points handed to it out.

The entry points are the functions by which a program enters PyTorch: a module's call, the
backward pass; an optimizer's step has a file of its own.

`torch.nn.Module.__call__` stays the same function object and gets other code: another
function in the class would empty the method caches of every module class, and would be seen
by Dynamo, which compares functions. `torch.autograd.backward` is wrapped.
"""

from __future__ import annotations

import dis
import functools
import os
import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from xsp.errors import ProviderError
from xsp_levels.framework.torch.compiler import Compilations

_abandon: list[Callable[[], None]] = []
_free: list[Callable[[], None]] = []


class CallEntryPoint:
    """The code of `torch.nn.Module.__call__`.

    Two other codes can take the place of the original code: a watcher's, which is handed
    outermost calls only, and a recorder's, which sees the calls inside as well. While a
    watched call is under way (`inside`), and while there is no watcher, the recorder's code
    is in place, unless the recorder is paused. Where several threads call models, the watcher's
    code stays in place, and hands calls inside of a watched call on to `inner`. While Dynamo
    compiles, PyTorch's own code is in place, which Dynamo reads of modules that have hooks. Any
    thread may call the methods; a recorded call calls none of them.

    Attributes:
        call: A function with the original code, which runs a call unobserved.
        inner: A function with the code that calls inside of a watched call have.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._original = function.__code__
        self._watching: CodeType | None = None
        self._sparing: CodeType | None = None
        self._recording: CodeType | None = None
        self._inside = False
        self._paused = False
        self._lock = threading.RLock()  # a signal's handler may call a model, too
        self._threads = False
        self._compiling = False
        self._compilations = Compilations(self._compile)
        name, scope = function.__name__, function.__globals__
        self.call: Callable[..., Any] = FunctionType(self._original, scope, name)
        self.inner = FunctionType(self._original, scope, name)

    def code(self, template: Callable[..., Any], constants: Mapping[str, Any]) -> CodeType:
        """Return the template's code, with its placeholder strings replaced by `constants`.

        Constants need no names in the globals of PyTorch's module, and are the fastest
        to load. The code carries the file, name and line of the original code: Dynamo
        decides by file which code to leave alone.
        """
        code = template.__code__
        original = self._original
        values = tuple(constants.get(c, c) if type(c) is str else c for c in code.co_consts)
        shift = _call_line(original) - _call_line(code)
        first = max(1, code.co_firstlineno + shift)
        code = code.replace(
            co_consts=values, co_filename=original.co_filename, co_firstlineno=first
        )
        code = code.replace(co_qualname=original.co_qualname)
        return code.replace(co_name=original.co_name)

    def bound(self, module: Any) -> Callable[..., Any]:
        """Return what makes a call of a module that has come to the entry point.

        That is the module, unless its class has a `__call__` of its own, which must not run twice.
        """
        plain = type(module).__call__ is self._function
        return module if plain else MethodType(self._function, module)

    def record(self, code: CodeType | None) -> None:
        """Put a recorder's code in place; None takes the recorder's code out."""
        with self._lock:
            self._recording, self._paused = code, False
            self._apply()

    def watch(self, code: CodeType | None, *, threads: bool = False) -> None:
        """Put a watcher's code in place; None takes the watcher's code out.

        Args:
            code: The code.
            threads: Whether several threads call models, so that `inside` has no effect.
        """
        with self._lock:
            self._watching, self._inside, self._threads = code, False, threads
            self._sparing = None
            self._apply()

    def spare(self, code: CodeType | None) -> None:
        """Have other code in the place of a watcher's between watched calls; None ends that."""
        with self._lock:
            self._sparing = code
            if not (self._compiling or self._threads or self._inside):
                # as `_apply` does, at less cost
                self._function.__code__ = code or self._watching or self.inner.__code__

    def inside(self, code: CodeType, inside: bool, spare: CodeType | None = None) -> None:
        """Say whether a call watched by `code` is under way; ignored once `code` is taken out.

        Args:
            code: The watcher's code.
            inside: Whether a call is under way.
            spare: What is to be in its place between watched calls from now on (`spare`), if given.
        """
        with self._lock:
            if code is self._watching and not self._threads:
                self._inside, self._sparing = inside, spare or self._sparing
                if self._compiling:
                    return
                # what follows is `_apply`, at less cost
                self._function.__code__ = self.inner.__code__ if inside else self._sparing or code

    def pause(self, code: CodeType, paused: bool) -> None:
        """Say whether calls run unrecorded by `code`; ignored once `code` is taken out."""
        with self._lock:
            if code is self._recording:
                self._paused = paused
                self._apply()

    def is_nested(
        self, frame: FrameType | None, *, watched: bool, shell: FrameType | None = None
    ) -> bool:
        """Return whether a module call is under way in this frame or its callers.

        Args:
            frame: The innermost frame to look at.
            watched: Whether a call that the watcher handed on counts as under way.
            shell: The frame that made a call which does not count, nor do those around it; None:
                each call does.
        """
        original, recording, watching = self._original, self._recording, self._watching
        while frame is not None:
            code = frame.f_code
            if code is watching and code is not None:
                return watched
            if code is original or code is recording:
                return shell is None or frame.f_back is not shell
            frame = frame.f_back
        return False

    def restore(self) -> None:
        """Take everything out."""
        self.record(None)
        self.watch(None)

    def free_child(self) -> None:
        """Replace the lock: the thread that held the old lock does not exist in a forked child."""
        self._lock = threading.RLock()

    def _compile(self, begun: bool) -> None:
        with self._lock:
            self._compiling = begun
            self._apply()

    def _apply(self) -> None:
        wanted = self._watching is not None or self._recording is not None
        self._compiling = self._compiling and wanted  # else nobody tells of the end
        self._compilations.tell(wanted)
        recording = None if self._paused or self._compiling else self._recording
        code = self.inner.__code__ = recording or self._original
        watching = None if self._compiling else self._sparing or self._watching
        if watching is not None and (self._threads or not self._inside):
            code = watching
        if self._function.__code__ is not code:
            self._function.__code__ = code


class BackwardEntryPoint:
    """The function `torch.autograd.backward`, wrapped while there is a recorder or a watcher."""

    def __init__(self, autograd: Any) -> None:
        self._autograd = autograd
        self._original: Callable[..., Any] = autograd.backward
        self._around: Callable[..., Any] | None = None
        self._after: Callable[[int, int], None] | None = None

    def record(self, around: Callable[..., Any] | None) -> None:
        """Have `around(backward, args, kwargs)` make each call; None: calls are made directly."""
        self._around = around
        self._apply()

    def watch(self, after: Callable[[int, int], None] | None) -> None:
        """Have `after(start_ns, end_ns)` called after each backward pass; None ends that."""
        self._after = after
        self._apply()

    def restore(self) -> None:
        """Take everything out."""
        self._around = self._after = None
        self._apply()

    def _apply(self) -> None:
        wanted = self._around is not None or self._after is not None
        current = self._autograd.backward
        if wanted and getattr(current, "__xsp__", None) is not self:
            self._original = current
            self._autograd.backward = self._wrapped(current)
        elif not wanted and getattr(current, "__xsp__", None) is self:
            self._autograd.backward = self._original

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            around, start = self._around, monotonic_ns()
            result = around(original, args, kwargs) if around else original(*args, **kwargs)
            end, after = monotonic_ns(), self._after
            if after is not None:
                after(start, end)
            return result

        backward.__xsp__ = self  # type: ignore[attr-defined]
        return backward


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
