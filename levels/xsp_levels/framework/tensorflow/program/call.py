"""Names and repeats calls of TensorFlow's functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from xsp.provider import TRAINING_STEP, ModelCall
from xsp_levels.framework.keras.calls import KerasCall
from xsp_levels.framework.keras.layer_tree import is_layer, root_name
from xsp_levels.framework.tensorflow.program.effect import (
    Effect,
    Effects,
    concrete_functions,
)

TEST_STEP = "test step"

_TRAINER = "keras.src.backend.tensorflow.trainer"
_RESTORED = "tensorflow.python.saved_model"
_INTERNAL = ("tensorflow.", "keras.src.")
_STEPS = {"train_step": TRAINING_STEP, "test_step": TEST_STEP, "predict_step": ""}
_DEPTH = 6  # of functions that Keras wraps around its step


@dataclass(slots=True)
class TensorFlowCall(ModelCall):
    """A call of a function.

    Attributes:
        effect: Returns what the call changes, once it was made.
    """

    effect: Callable[[], Effect] = Effect

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating is safe."""
        known = self.effect()
        if known.consumes:
            return f"{self.subject} takes its input out of an iterator"
        if known.writes:
            return f"{self.subject} writes to variables"
        if known.calls_python:
            return f"{self.subject} calls functions of Python's, and what these do is not known"
        return None

    def copied(self, memo: dict[int, Any]) -> TensorFlowCall:
        """Return the call itself: what its graph writes to is known (`hazard`)."""
        return self


@dataclass(frozen=True, slots=True)
class Subject:
    """Name, phase and inputs by which people know a function of TensorFlow.

    Attributes:
        name: The name of the model, or that of the function.
        phase: What the function does, where its name tells; None where its graph must be asked.
        owner: The object that the name stands for.
    """

    name: str
    phase: str | None
    owner: Any


def subject_of(function: Any) -> Subject | None:
    """Name a `tf.function`, or one trace of it, for people.

    None for functions that TensorFlow and Keras make for themselves, such as those that save.
    """
    plain = getattr(function, "_python_function", None)
    module = str(getattr(plain, "__module__", ""))
    if module == _TRAINER:
        found = next(_keras_steps(function, _DEPTH), None)
        return None if found is None else Subject(root_name(found[0]), *found[1:], found[0])
    if plain is None or module.startswith(_RESTORED):
        return Subject(_traced_name(function), None, function)
    if is_layer(plain):
        return Subject(root_name(plain), None, plain)
    if module.startswith(_INTERNAL):
        return None
    name = str(getattr(plain, "__qualname__", "")) or str(getattr(function, "_name", "function"))
    function_name = name.rpartition("<locals>.")[2].removesuffix(".__call__")
    return Subject(function_name, None, function)


def graph_call(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    phase: str,
    effect: Callable[[], Effect],
) -> TensorFlowCall:
    """Return a call that runs a graph; `args` are those of the function that is called.

    Args:
        call: Makes the call.
        args: Arguments, without the function itself.
        kwargs: Keyword arguments.
        name: Name of the model or function for people.
        phase: What the call does.
        effect: Returns what the graph changes, once the call was made.
    """
    return TensorFlowCall(
        call,
        args,
        kwargs,
        name=phase or "predict",
        subject=name,
        whole_model=not phase,
        effect=effect,
    )


def model_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModelCall | None:
    """Return the call if `function` is a Keras model or a `tf.function`, else None."""
    if is_layer(function):
        return KerasCall.of(function, args, kwargs)
    if is_function(function):
        subject = subject_of(function)
        name, effects = subject.name if subject else "function", Effects()
        phase = subject.phase if subject else None
        if phase is None:
            phase = TRAINING_STEP if effects.of(function).trains else ""
        return graph_call(
            function, args, kwargs, name=name, phase=phase, effect=lambda: effects.of(function)
        )
    return None


def is_function(value: Any) -> bool:
    """Return whether a value is a `tf.function` or a trace of one, without importing TensorFlow."""
    prefix = "tensorflow.python.eager.polymorphic_function"
    modules = (
        (f"{prefix}.polymorphic_function", "Function"),
        (f"{prefix}.concrete_function", "ConcreteFunction"),
    )
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in modules]
    return isinstance(value, tuple(kind for kind in kinds if kind is not None))


def synchronize() -> bool:
    """Wait for TensorFlow's devices, and return whether there are any to wait for.

    On a CPU operators have ended when their calls return.
    """
    context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if context is None or not context._initialized:
        return False
    if any(device.device_type == "GPU" for device in context._logical_devices or ()):
        context.sync_executors()
        return True
    if context.executor.is_async():
        context.executor.wait()
        return True
    return False


def _keras_steps(value: Any, depth: int) -> Iterator[tuple[Any, str]]:
    """Yield model and phase of the step that Keras's own functions are wrapped around."""
    if isinstance(value, MethodType) and value.__name__ in _STEPS and is_layer(value.__self__):
        yield value.__self__, _STEPS[value.__name__]
    plain = getattr(value, "_python_function", value)
    cells: Iterable[Any] = plain.__closure__ or () if isinstance(plain, FunctionType) else ()
    held = [cell.cell_contents for cell in cells]
    if depth:
        for each in held:
            yield from _keras_steps(each, depth - 1)
    for each in held:  # what predicts holds the model alone
        if is_layer(each):
            yield each, ""


def _traced_name(function: Any) -> str:
    """Return the name of a function that was read from a file: `SavedModel serving_default`."""
    traces = concrete_functions(function)
    name = traces[0].name if traces else b""
    plain = (name.decode() if isinstance(name, bytes) else str(name)).removeprefix("__inference_")
    called = plain.rpartition("_")[0].replace("signature_wrapper_", "signature ")
    return " ".join(("SavedModel", *called.replace("__", " ").split()))
