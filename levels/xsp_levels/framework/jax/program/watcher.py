"""Logs what JAX does in a program: calls of jitted functions, and of Keras's layers on JAX.

A call is one that lies in no other, and that the program itself makes (`door`). One that `jax.grad`
or `jax.vmap` has run is a call too; one that JAX only traces is none. A function that is not
compiled for its arguments yet is compiled before the call, and that is a part of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

from xsp.errors import guarded
from xsp.provider import END, PAUSE, CallFacts, ProgramLog
from xsp_levels.framework.jax.program import output
from xsp_levels.framework.jax.program.call import (
    WITHOUT_JIT,
    array_inputs,
    is_eager,
    is_own,
    jitted_call,
    keras_step,
    name_of,
    phase_of,
)
from xsp_levels.framework.jax.program.compilation import COMPILE, CompilationRecorder
from xsp_levels.framework.jax.program.door import MODULES, Door
from xsp_levels.framework.keras.backend import backend_name
from xsp_levels.framework.keras.calls import KerasCalls
from xsp_levels.framework.owner import Owner, Owners
from xsp_levels.framework.past_part import log_past
from xsp_levels.framework.recompiling import REASON, changed
from xsp_levels.hook import Handler, Hook
from xsp_levels.imported import Imports

_STATIC = (bool, int, float, str, bytes, type(None))
_EXPORT = "jax._src.export._export"
_TRANSFORMED, _AS_GRAPH = "in grad or vmap", "as a graph"
_EARLY = (
    "JAX returns before outputs are computed, so times of calls are too short, and the wait "
    "counts where your program reads outputs. `xsp.measure` waits for them."
)


class JaxWatcher:
    """See `xsp.provider.ProgramWatcher`."""

    logs_layers = False

    def __init__(self) -> None:
        self._log: Any = None
        self._door: Door | None = None
        self._keras: KerasCalls | None = None
        self._export: Hook | None = None

    def begin(self, log: ProgramLog) -> None:
        """Put the hooks in place, as soon as the program has imported JAX."""
        self._log = log
        self._owners, self._told = Owners(), False
        self._phases: dict[Any, str] = {}  # of what is known to be compiled
        self._compiled: dict[int, list[str]] = {}  # what each owner was compiled for last
        self._door = Door(self._called)
        self._keras = KerasCalls(log, self._owners, self._make, lambda: False)
        self._imports = Imports((*MODULES, _EXPORT, "keras"), self.resume)
        self.resume()

    def suspend(self) -> None:
        """Take the hooks out for a while."""
        self._imports.end()
        if self._door is not None:
            self._door.close()
        if self._keras is not None:
            self._keras.suspend()
        if self._export is not None:
            self._export.take_out()

    def resume(self) -> None:
        """Put the hooks in place, as far as what they belong to is imported."""
        if self._door is None or self._keras is None:
            return
        self._imports.begin()
        self._door.open()
        if backend_name() == "jax":
            self._keras.resume()
        exported = getattr(sys.modules.get(_EXPORT), "Exported", None)
        call = getattr(exported, "call", None)
        if self._export is None and isinstance(call, FunctionType):
            self._export = Hook(call, self._exported)
        if self._export is not None:
            self._export.place()

    def end(self) -> None:
        """Take the hooks out for good, and let go of everything."""
        self.suspend()
        if self._keras is not None:
            self._keras.end()
        self._log = self._door = self._keras = self._export = None
        self._phases.clear()
        self._compiled.clear()

    def _called(
        self, original: Any, jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        log = self._log
        if log is None or log.local.inside is not None or is_own(jitted):
            return original(jitted, *args, **kwargs)
        traced, gradients = _tracing()
        if traced is None:
            return original(jitted, *args, **kwargs)
        model, phase = keras_step(jitted)
        owner = self._owners.of(jitted if model is None else model, name_of(jitted, model))
        inputs = array_inputs(args, kwargs)
        key = (
            owner.number,
            phase,
            inputs,
            len(args),
            tuple(kwargs),
            told_apart(jitted, args, kwargs),
        )
        if is_eager():
            phase = WITHOUT_JIT
        elif not traced:
            if key not in self._phases:
                self._phases[key] = self._compile(jitted, args, kwargs, owner)
            phase = phase or self._phases[key]
        number = log.call_number(
            (key, phase, traced, gradients),
            lambda: CallFacts(
                owner.name, owner.number, phase=phase, gradients=gradients, inputs=inputs,
                settings=(_TRANSFORMED,) if traced else (_AS_GRAPH,) * (model is not None),
                batch_first=False,
            ),
        )  # fmt: skip
        if log.keeping and not traced:
            log.keep(number, jitted_call(jitted, args, kwargs, MethodType(original, jitted)))
        return self._make(number, original, (jitted, *args), kwargs)

    def _exported(self, call: Callable[..., Any]) -> Handler:
        """Return the handler of calls of functions that were exported, or read from a file."""

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            log = self._log
            if log is None or log.local.inside is not None or _tracing() != (False, False):
                return call(*args, **kwargs)
            owner = self._owners.of(args[0], str(args[0].fun_name))
            inputs = array_inputs(args[1:], kwargs)
            number = log.call_number(
                (owner.number, inputs),
                lambda: CallFacts(
                    f"{owner.name} (exported)", owner.number, inputs=inputs, batch_first=False
                ),
            )
            return self._make(number, call, args, kwargs)

        return handler

    def _make(
        self,
        number: int,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if not self._told:
            self._told = True
            self._log.warning(_EARLY)
        return self._log.make(number, self._awaited, (call, args, kwargs), {})

    def _awaited(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make a call; where operators are recorded, wait for them, which is no part of it."""
        result = call(*args, **kwargs)
        log = self._log
        if log is not None and log.deep:
            append, now = log.local.log.append, log.now
            append(PAUSE)
            append(now())
            try:
                output.await_outputs(result)
            finally:
                append(END)
                append(now())
        return result

    def _compile(
        self, jitted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: Owner
    ) -> str:
        """Have a function compiled without calling it, log that, and return its calls' phase.

        Looking for what is compiled already, and for the phase, is a pause.
        """
        if not hasattr(jitted, "lower"):
            return phase_of(jitted)
        log = self._log
        mine = log.local.log or log.begin_thread()
        if log.region.get() is not mine.region or log.generators:
            log.at(mine)
        recorder = CompilationRecorder()
        recorder.start()
        begin_ns = log.now()
        try:
            # The call itself raises what this does, where the program expects that.
            compiled = guarded(lambda: jitted.lower(*args, **kwargs).compile(), lambda _: None)
        finally:
            end_ns, stages = log.now(), recorder.stop()
        if compiled is None:
            return ""
        rows = [(stage.name, stage.start_ns, stage.end_ns) for stage in stages]
        name, facts = f"{COMPILE} {owner.name}" if rows else "", {}
        if rows:
            inputs = [f"{dtype} {list(shape)}" for shape, dtype in array_inputs(args, kwargs)]
            told = [*inputs, *map(str, told_apart(jitted, args, kwargs))]
            if owner.number in self._compiled:
                name, facts = f"re{name}", {REASON: changed(self._compiled[owner.number], told)}
            self._compiled[owner.number] = told
        log_past(log, (name, begin_ns, end_ns), rows, facts)
        begin_ns = log.now()
        phase = phase_of(compiled)
        log_past(log, ("", begin_ns, log.now()))
        return phase


def told_apart(jitted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """List the arguments that are no arrays and for which a function may be compiled again.

    That is the value of those that are static, and the type of the others, a counter of steps say.
    Functions of libraries that do not tell which are static take integers to be, and no floats: a
    function is not compiled anew for each learning rate.
    """
    info = getattr(jitted, "_jit_info", None)
    named: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
    static = {*info.static_argnums, *info.static_argnames} if info is not None else None
    return tuple(
        value if (not isinstance(value, float) if static is None else at in static) else type(value)
        for at, value in named
        if isinstance(value, _STATIC)
    )


def _tracing() -> tuple[bool | None, bool]:
    """Return whether a call on this thread is transformed, as by `vmap`, and has gradients.

    None: the call is only traced, and computes nothing. JAX has a chain of traces for each thread:
    what evaluates is at its end, and only traces of a jaxpr do not hand on to it.
    """
    core: Any = sys.modules.get("jax._src.core")
    clean = getattr(core, "trace_state_clean", None)
    if clean is None or clean():
        return False, False
    trace, kinds = getattr(getattr(core, "trace_ctx", None), "trace", None), set()
    while trace is not None:
        kinds.add(type(trace).__name__)
        trace = getattr(trace, "parent_trace", None)
    if "EvalTrace" not in kinds or "DynamicJaxprTrace" in kinds:
        return None, False
    return True, bool(kinds & {"JVPTrace", "LinearizeTrace"})
