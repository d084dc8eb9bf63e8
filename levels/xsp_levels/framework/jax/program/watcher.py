"""Calls of jitted functions, as the program makes them, in; evaluations and compiling out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic_ns
from types import MethodType
from typing import Any

from xsp.provider import Evaluations
from xsp_levels.framework.jax.program import output
from xsp_levels.framework.jax.program.call import is_own, jitted_call, phase_of
from xsp_levels.framework.jax.program.compilation import COMPILE, CompilationRecorder
from xsp_levels.framework.jax.program.door import MODULES, Door
from xsp_levels.imported import Imports
from xsp_levels.native import forked_child

_STATIC = (bool, int, float, str, bytes, type(None))


class Watch:
    """Hands the outermost calls of the program's jitted functions to `evaluations`, until `close`.

    A function that is not compiled for its arguments yet is compiled before the evaluation begins,
    and that is a part of the program.

    Args:
        evaluations: Runs the evaluations, and is told what was compiled.
    """

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations: Evaluations | None = evaluations
        self._local = _Local()
        self._seen: dict[int, tuple[Any, dict[Any, str]]] = {}
        self._door = Door(self._called)
        self._imports = Imports(MODULES, self._door.open)
        self._door.open()
        self._imports.begin()
        forked_child.register(self)

    def close(self) -> None:
        """Stop watching."""
        self.abandon()

    def abandon(self) -> None:
        """Take away what was put in place."""
        self._evaluations = None
        self._imports.end()
        self._door.close()
        self._seen.clear()

    def _called(
        self, original: Any, jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        evaluations, local = self._evaluations, self._local
        if evaluations is None or local.inside or is_own(jitted) or not _is_outermost():
            return original(jitted, *args, **kwargs)
        found_ns = monotonic_ns()
        local.inside = True
        try:
            return self._evaluate(evaluations, MethodType(original, jitted), args, kwargs, found_ns)
        finally:
            local.inside = False

    def _evaluate(
        self,
        evaluations: Evaluations,
        function: MethodType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> Any:
        jitted: Any = function.__self__
        if evaluations.by_hand:
            result = function(*args, **kwargs)
            output.keep(result)
            return result
        call = jitted_call(jitted, args, kwargs, function)
        if call.eager:
            return evaluations.run(replace(call, found_ns=found_ns))
        phases, key = self._known(jitted, call.inputs, args, kwargs)
        if key not in phases:
            phases[key], compiled = _compiled(jitted, args, kwargs, evaluations, call.subject)
            found_ns = monotonic_ns() if compiled else found_ns
        return evaluations.run(replace(call, found_ns=found_ns, phase=phases[key]))

    def _known(
        self, jitted: Any, inputs: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[Any, str], Any]:
        """Return the phases of a function's calls, and by which of them a call is known."""
        _, phases = self._seen.setdefault(id(jitted), (jitted, {}))
        return phases, (inputs, len(args), tuple(kwargs), told_apart(jitted, args, kwargs))


def told_apart(jitted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what of the arguments that are no arrays a function may be compiled anew for.

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


def _compiled(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    evaluations: Evaluations,
    name: str,
) -> tuple[str, bool]:
    """Have a function compiled without calling it, and tell of it.

    Returns:
        The phase of its calls, and whether it was compiled only now.
    """
    if not hasattr(jitted, "lower"):
        return phase_of(jitted), False
    recorder = CompilationRecorder()
    recorder.start()
    begin_ns = monotonic_ns()
    try:
        compiled = jitted.lower(*args, **kwargs).compile()
    except Exception:  # noqa: BLE001  the call itself raises it, where the program expects that
        return "", False
    finally:
        end_ns, stages = monotonic_ns(), recorder.stop()
    for stage in stages:
        evaluations.mark(stage.name, max(stage.start_ns, begin_ns), stage.end_ns, {})
    if stages:
        evaluations.mark(f"{COMPILE} {name}", begin_ns, end_ns, {})
    return phase_of(compiled), bool(stages)


def _is_outermost() -> bool:
    """Return whether the program itself calls, and not JAX, which traces another function."""
    core = sys.modules.get("jax._src.core")
    clean: Callable[[], bool] | None = getattr(core, "trace_state_clean", None)
    return clean is None or clean()


class _Local(threading.local):
    """What is known of each thread.

    Attributes:
        inside: Whether the thread is in a call that is handled.
    """

    inside = False
