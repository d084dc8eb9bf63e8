"""Calls of jitted functions: their names, their inputs, and whether they can be repeated."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from xsp.provider import TRAINING_STEP, Inputs, ModelCall
from xsp_levels.framework.jax.profiler.scope import GRADIENT
from xsp_levels.framework.jax.program.door import is_jitted
from xsp_levels.framework.keras.layer_tree import is_layer, root_name

WITHOUT_JIT = "without jit"  # a phase

_OWN_PACKAGES = ("jax", "jaxlib")
_STEPS = {"train_step": TRAINING_STEP, "test_step": "test step"}
_SMALL = 8  # containers of more arguments hold weights


@dataclass(slots=True)
class JaxCall(ModelCall):
    """A call of a jitted function.

    Attributes:
        jitted: The function.
        eager: Whether it was called under `jax.disable_jit`, which has its operators run one by
            one.
    """

    jitted: Any = None
    eager: bool = False

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating is safe."""
        if donates(self.jitted):
            return (
                f"{self.subject} is given arrays to overwrite (donate_argnums), which are gone "
                "after a call"
            )
        if type(self.jitted).__module__.startswith("flax.nnx"):
            return f"{self.subject} is compiled by nnx.jit, which writes to its modules"
        effects = _effects(self)
        return f"{self.subject} has effects besides its result ({effects})" if effects else None

    def copied(self, memo: dict[int, Any]) -> JaxCall:
        """Return the call itself: once compiled, a function writes to nothing that it is given."""
        return ModelCall.copied(self, memo) if self.eager else self

    def conditions(self) -> AbstractContextManager[None]:
        """Return a context in which functions are compiled, or not, as when the call was made."""
        jax = sys.modules.get("jax")
        if jax is None or self.eager == is_eager():
            return nullcontext()
        return cast("AbstractContextManager[None]", jax.disable_jit(self.eager))


def jitted_call(
    jitted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], function: Any = None
) -> JaxCall:
    """Return a call of a jitted function.

    Args:
        jitted: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
        function: What makes the call, if not `jitted` itself.
    """
    eager = is_eager()
    return JaxCall(
        jitted if function is None else function,
        args,
        kwargs,
        subject=name_of(jitted),
        eager=eager,
        jitted=jitted,
    )


def is_eager() -> bool:
    """Return whether this thread is under `jax.disable_jit`."""
    return bool(getattr(getattr(sys.modules.get("jax"), "config", None), "jax_disable_jit", False))


def is_model(function: Any) -> bool:
    """Return whether an object is a jitted function of the program, and none of JAX's own."""
    return is_jitted(function) and not is_own(function)


def is_own(jitted: Any) -> bool:
    """Return whether a jitted function is one of JAX itself, as all of `jax.numpy` are."""
    module = getattr(jitted, "__module__", None) or ""
    return module.partition(".")[0] in _OWN_PACKAGES and type(jitted).__name__ != "Compiled"


def keras_step(jitted: Any) -> tuple[Any, str]:
    """Return the model of Keras's whose step a jitted function is, and the step's phase."""
    step = getattr(jitted, "__wrapped__", None)
    model = getattr(step, "__self__", None)
    if model is None or not is_layer(model):
        return None, ""
    return model, _STEPS.get(getattr(step, "__name__", ""), "")


def name_of(jitted: Any, model: Any = None) -> str:
    """Return the name of a jitted function for people; of the model, if it is a step of one."""
    if model is not None:
        return root_name(model)
    for each in (jitted, getattr(jitted, "__wrapped__", None), getattr(jitted, "fun", None)):
        name = getattr(each, "__name__", None)
        if isinstance(name, str):
            return name
    executable = getattr(jitted, "_executable", None)  # of what was compiled ahead of time
    name = getattr(getattr(executable, "unsafe_call", None), "name", None)
    if not isinstance(name, str):
        return type(jitted).__name__
    return name.removeprefix("jit(").removesuffix(")")


def phase_of(compiled: Any) -> str:
    """Return the phase of the calls of a compiled function: a training step, if it has gradients.

    Libraries have classes of their own around JAX's compiled functions.
    """
    for each in (compiled, getattr(compiled, "compiled", None)):
        text = getattr(each, "as_text", None)
        if callable(text):
            return TRAINING_STEP if GRADIENT in (text() or "") else ""
    return ""


def donates(jitted: Any) -> bool:
    """Return whether a jitted function overwrites some of the arrays that it is given."""
    if hasattr(jitted, "donate_rest"):  # Equinox divides arguments by itself
        return bool(jitted.donate_first or jitted.donate_rest)
    info = getattr(getattr(jitted, "jitted_fn", jitted), "_jit_info", None)
    if info is None:  # compiled ahead of time
        return bool(getattr(jitted, "donate_argnums", ()))
    return bool(info.donate_argnums or info.donate_argnames)


def array_inputs(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Inputs:
    """Return shape and element type of the arrays among arguments, then in small containers."""
    found: list[tuple[tuple[int, ...], str]] = []
    inside: list[tuple[tuple[int, ...], str]] = []  # often parameters
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)) and len(value) <= _SMALL:
            inside += filter(None, map(_described, value))
        elif isinstance(value, dict) and len(value) <= _SMALL:
            inside += filter(None, map(_described, value.values()))
        elif (described := _described(value)) is not None:
            found.append(described)
    return (*found, *inside)


def _described(value: Any) -> tuple[tuple[int, ...], str] | None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return shape, _dtype_name(dtype)
    return None


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype)  # 6 µs


def _effects(call: JaxCall) -> str:
    """Return which effects a call has besides its result; empty if none are known."""
    if call.eager or not hasattr(call.jitted, "trace") or "jax" not in sys.modules:
        return ""
    traced = call.jitted.trace(*call.args, **call.kwargs)
    effects = getattr(getattr(traced, "jaxpr", None), "effects", ())
    return ", ".join(sorted({type(each).__name__ for each in effects}))
