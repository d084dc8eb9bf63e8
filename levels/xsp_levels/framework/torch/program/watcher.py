"""Logs a program's use of PyTorch: calls, layers, backward passes, optimizers' steps, parts.

The code of `torch.nn.Module.__call__` is swapped, which leaves the class, its method caches and
Dynamo's guards as they are; while Dynamo compiles, PyTorch's own code is in its place. A hook
appends codes and times (`xsp.provider.watching`) and returns.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, FrameType, FunctionType
from typing import Any

from xsp.allocator import peak_sentence
from xsp.clock import SystemClock
from xsp.provider import (
    BACKWARD,
    CALL,
    END,
    ENTER,
    KIND_BITS,
    OPTIMIZER,
    RAISED,
    WORKED,
    ProgramLog,
)
from xsp_levels.framework.keras.backend import describing
from xsp_levels.framework.torch.compiler import hide_from_compiler, skip_code
from xsp_levels.framework.torch.module.entry_point import call_entry_point, optimizer_entry_point
from xsp_levels.framework.torch.profiler.kineto import free_thread
from xsp_levels.framework.torch.program.call import CallKeys, module_call
from xsp_levels.framework.torch.program.compiled_function import CompiledFunctions
from xsp_levels.framework.torch.program.compiling import CompileParts
from xsp_levels.framework.torch.program.loop import NOTHING, Note, loop
from xsp_levels.hook import Handler, Hook
from xsp_levels.imported import Imports

PACKED_FROM = 20_000  # entries of a thread's list, above which it is packed
_LEAVES, _GIVEN = BACKWARD, 1 << KIND_BITS | BACKWARD  # passes to leaves; `torch.autograd.grad`
# Checkpointing ends a recomputation by it when it has all it needs.
_NO_ERRORS = ("_StopRecomputationError",)
_PACKAGES = "torch._inductor.package.package"


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Module.__call__`; `CallEntryPoint.code` puts objects in the strings' place."""
    local: Any = "xsp:local"
    append = local.inside
    if append is None:
        outermost: Any = "xsp:outermost"
        return outermost(self, args, kwargs)
    if append is False:
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)
    now: Any = "xsp:now"
    append(id(self))
    append(now())
    try:
        if self._compiled_call_impl is not None:
            result = self._compiled_call_impl(*args, **kwargs)
        else:
            result = self._call_impl(*args, **kwargs)
    except BaseException as error:
        end = now()
        raised: Any = "xsp:raised"
        append(raised(error))
        append(end)
        raise
    end = now()
    append(1)
    append(end)
    return result


class TorchWatcher:
    """See `xsp.provider.ProgramWatcher`."""

    logs_layers = True

    def __init__(self) -> None:
        self._imports = Imports({"torch"}, self._begin)
        self._log: Any = None
        self._code: CodeType | None = None
        self._backward: Any = None
        self._package: Any = None
        self._moves: Moves | None = None
        self._on = False

    def begin(self, log: ProgramLog) -> None:
        """Put the hooks in place, as soon as the program has imported PyTorch."""
        self._log = log
        if hasattr(sys.modules.get("torch"), "nn"):
            self._begin()
        else:
            self._imports.begin()

    def suspend(self) -> None:
        """Take the hooks out for a while."""
        self._imports.end()
        if not self._on:
            return
        self._on = False
        self._entry.watch(None)
        optimizer_entry_point().watch(None, None)
        for hook in (self._backward, self._package):
            if hook is not None:
                hook.take_out()
        loop().watch(None)
        self._functions.unwatch()
        self._compiling.unwatch()
        if self._moves is not None:
            self._moves.close()
            self._moves = None

    def resume(self) -> None:
        """Put the hooks in place."""
        if self._code is None and self._log is not None:
            self.begin(self._log)
        if self._on or self._code is None:
            return
        self._on = True
        self._entry.watch(self._code)
        optimizer_entry_point().watch(self._before_step, self._after_step)
        self._place_others()
        loop().watch(self._log)
        self._functions.watch()
        self._compiling.watch()
        self._moves = Moves(self._moved) if has_device() else None

    def _place_others(self) -> None:
        for hook in (self._backward, self._package):
            if hook is not None:
                hook.place()

    def end(self) -> None:
        """Take the hooks out for good, and let go of everything.

        Nothing finds a cycle through a code object: the code has the watcher in its constants.
        """
        self.suspend()
        if self._code is not None:
            free_thread()
        log, known = self._log, self._code is not None
        self._code = self._backward = self._package = self._log = None
        if known:
            _tell_memory(log)

    def _begin(self) -> None:
        if self._log is None:
            return
        import torch  # noqa: PLC0415
        from torch.autograd import graph  # noqa: PLC0415

        hide_from_compiler(__name__, CallKeys.__module__, CompiledFunctions.__module__)
        hide_from_compiler(type(self._log).__module__)
        self._entry = call_entry_point()
        self._is_compiling = torch.compiler.is_compiling
        self._keys = CallKeys(self._log)
        self._functions = CompiledFunctions(self._log, self._step_of)
        self._compiling = CompileParts(self._log)
        self._optimizers: dict[int, Any] = {}  # logs of threads by the optimizer that steps
        self._code = self._entry.code(
            _call,
            {
                "xsp:local": self._log.local,
                "xsp:now": self._log.now,
                "xsp:outermost": self._outermost,
                "xsp:raised": self._raised,
            },
        )
        run = getattr(graph, "_engine_run_backward", None)
        if isinstance(run, FunctionType):
            self._backward = Hook(run, self._passing)
            skip_code(self._backward.code)
        with suppress(Exception):  # nothing of the program's depends on it
            self._find_packages()
        self.resume()

    def _outermost(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make and log a module's call that lies in no other."""
        log = self._log
        call = module._compiled_call_impl
        if call is None:
            call = module._call_impl
        if log is None or (self._stand_aside(log) and log.local.inside is None):
            return call(*args, **kwargs)
        now = log.now
        entered = now()
        local = log.local
        mine = local.log
        number = self._keys.number(module, args, kwargs)
        # A loss begins no window: its backward pass is that of the model before.
        if entered >= log.until and not log.facts[number].passed_over:
            log.boundary(entered)
            self._keys.look_again(module)
        if log.region.get() is not mine.region or log.generators:
            log.at(mine, entered)
        if log.keeping:
            log.keep(number, module_call(module, args, kwargs))
        append = mine.append
        append(mine.depth << KIND_BITS | ENTER)
        append(entered)
        if len(mine.events) > PACKED_FROM:
            mine.pack()
        error: BaseException | None = None
        local.inside = append if log.layers else False
        append(number << KIND_BITS | CALL)
        append(now())
        try:
            return call(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:  # a signal's handler may raise anywhere: the state is put back all the same
            end = now()
            append(END if error is None else self._raised(error))
            append(end)
            local.inside = error = None

    def _stand_aside(self, log: Any) -> bool:
        """Return whether a call is not logged: it is around the block, or of Keras for shapes.

        A thread may be in a call that began before the hooks were in place; then what comes as
        outermost are layers of that call, until it has ended.
        """
        mine = log.local.log
        if mine is None:
            mine = log.begin_thread()
        if mine.checked != log.placed:
            mine.checked, mine.stale = log.placed, self._under_way(log.home)
        elif mine.stale is not None:
            frame: FrameType | None = sys._getframe(2)
            while frame is not None and frame is not mine.stale:
                frame = frame.f_back
            mine.stale = frame
        return mine.stale is not None or describing()

    def _under_way(self, home: int) -> FrameType | None:
        """Return the frame of a module's call that this thread is in, within the block's frame."""
        original = self._entry.original
        frame: FrameType | None = sys._getframe(3)
        if frame is not None:
            frame = frame.f_back  # the hook's own is that of this call
        while frame is not None and id(frame) != home:
            code = frame.f_code
            if code.co_name == original.co_name and code.co_filename == original.co_filename:
                return frame
            frame = frame.f_back
        return None

    def _raised(self, error: BaseException) -> int:
        name = type(error).__name__
        log = self._log
        if name in _NO_ERRORS or log is None:
            return END
        number: int = log.name(name)
        return number << KIND_BITS | RAISED

    def _passing(self, call: Callable[..., Any]) -> Handler:
        """Return the handler of backward passes, whose recomputed layers are the pass's own."""

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            log = self._log
            if log is None or self._is_compiling():
                return call(*args, **kwargs)
            # As `begin_part` and `end_part` do: each function that is called costs 0.5 µs here,
            # where a backward pass has emptied the caches.
            now, local = log.now, log.local
            entered = now()
            log.backwards += 1
            mine = local.log or log.begin_thread()
            if log.region.get() is not mine.region or log.generators:
                log.at(mine, entered)
            append, was = mine.append, local.inside
            if was is None:
                local.inside = append if log.layers else False
            mine.depth += 1
            append(WORKED)
            append(entered)
            append(_LEAVES if kwargs.get("accumulate_grad") else _GIVEN)
            append(now())
            error: BaseException | None = None
            try:
                return call(*args, **kwargs)
            except BaseException as raised:
                error = raised
                raise
            finally:
                end = now()
                append(END if error is None else self._raised(error))
                append(end)
                mine.depth -= 1
                local.inside = was
                error = None

        return handler

    def _before_step(self, optimizer: Any, entered_ns: int) -> None:
        log = self._log
        if log is not None:
            number = self._keys.optimizer(optimizer)
            self._optimizers[id(optimizer)] = log.begin_part(number, OPTIMIZER, entered_ns)

    def _after_step(self, optimizer: Any) -> None:
        log, mine = self._log, self._optimizers.pop(id(optimizer), None)
        if log is not None and mine is not None and mine is log.local.log:
            log.end_part(mine, None)

    def _moved(self, name: str, start_ns: int, end_ns: int, facts: Mapping[str, Any]) -> None:
        if (log := self._log) is not None:
            log.past_part(log.name(name, facts), start_ns, end_ns)

    def _step_of(self, optimizer: Any) -> None:
        self._before_step(optimizer, 0)
        self._after_step(optimizer)

    def _find_packages(self) -> None:
        """Hook the calls of packages that AOTInductor made, which are no modules."""
        package = getattr(sys.modules.get(_PACKAGES), "AOTICompiledModel", None)
        self._imports.end()
        if package is None:
            self._imports = Imports({_PACKAGES}, self._found_packages)
            self._imports.begin()
            return
        self._package = Hook(package.__call__, self._packaged)

    def _found_packages(self) -> None:
        if self._log is not None and self._package is None:
            self._find_packages()
            if self._on:
                self._place_others()

    def _packaged(self, call: Callable[..., Any]) -> Handler:
        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            log = self._log
            if log is None or log.local.inside is not None:
                return call(*args, **kwargs)
            key, facts = self._keys.of_package(args[0], args[1:], kwargs)
            return log.make(log.call_number(key, facts), call, args, kwargs)

        return handler


# Times tensors that programs move to another device.

MOVE = "move to device"
_METHODS = ("to", "cuda")


class Moves:
    """The methods of tensors that may move a tensor, wrapped until `close`.

    They are PyTorch's own, in C, so their names in `torch.Tensor` are given wrappers, and only
    while a program is watched on a machine with a GPU. A move's time is the host's: a copy that the
    host does not wait for goes on after it.

    Args:
        note: Told of each move that has ended; a call that moves nothing is none.
    """

    def __init__(self, note: Note) -> None:
        import torch  # noqa: PLC0415

        self._note = note
        self._tensor = torch.Tensor
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._wrappers = {name: self._wrapped(getattr(torch.Tensor, name)) for name in _METHODS}
        for name, wrapper in self._wrappers.items():
            setattr(torch.Tensor, name, wrapper)

    def close(self) -> None:
        """Take the wrappers out, unless another tool has put something else in their place."""
        for name, wrapper in self._wrappers.items():
            if vars(self._tensor).get(name) is wrapper:
                delattr(self._tensor, name)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        plain, note, now = self._plain, self._note, SystemClock.now

        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self) not in plain:  # such as the tensors that compilers trace with
                return original(self, *args, **kwargs)
            start = now()
            result = original(self, *args, **kwargs)
            end = now()
            if result is not self and result.device != self.device:
                note(MOVE, start, end, NOTHING)
            return result

        return move


def has_device() -> bool:
    """Return whether there is a GPU to move tensors to, without beginning to use one."""
    import torch  # noqa: PLC0415

    with warnings.catch_warnings():
        # Where another framework has looked for a GPU before, and there is none, PyTorch warns.
        warnings.simplefilter("ignore")
        return bool(torch.cuda.device_count())


def _tell_memory(log: ProgramLog) -> None:
    """Tell who owns GPU memory at its peak, if the program records the allocator's history."""
    import torch  # noqa: PLC0415

    is_recorded = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # private, and so may vanish
    if not torch.cuda.is_initialized() or is_recorded is None or not is_recorded():
        return
    if sentence := peak_sentence(torch.cuda.memory._snapshot()):
        log.warning(sentence)
