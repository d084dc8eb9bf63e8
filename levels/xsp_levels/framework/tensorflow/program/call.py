"""A call of a model, function or session in; its name, phase and whether to repeat it, out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

from xsp.provider import Inputs, ModelCall
from xsp_levels.framework.keras.layer_tree import is_layer, root_name
from xsp_levels.framework.keras.shape import UNKNOWN, shape_of, tensors
from xsp_levels.framework.tensorflow.program.effect import (
    Effect,
    Effects,
    concrete_functions,
    effect,
    fetched_nodes,
)

TRAINING_STEP = "training step"
TEST_STEP = "test step"

_TRAINER = "keras.src.backend.tensorflow.trainer"
_RESTORED = "tensorflow.python.saved_model"
_INTERNAL = ("tensorflow.", "keras.src.")
_STEPS = {"train_step": TRAINING_STEP, "test_step": TEST_STEP, "predict_step": ""}
_DEPTH = 6  # of functions that Keras wraps around its step


@dataclass(slots=True)
class TensorFlowCall(ModelCall):
    """A call of a Keras model, a function or a session.

    Attributes:
        effect: Returns what the call changes, once it was made; None for a model called layer by
            layer.
    """

    effect: Callable[[], Effect] | None = None

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating is safe."""
        if self.effect is not None:
            return _hazard(self.subject, self.effect())
        if self.kwargs.get("training"):
            return (
                f"{self.subject} was called with training=True, where a call may change its state"
            )
        return None


@dataclass(frozen=True, slots=True)
class Subject:
    """What a function of TensorFlow's is to people.

    Attributes:
        name: The name of the model, or that of the function.
        phase: What the function does, where its name tells; None where its graph must be asked.
        owner: The object that the name stands for.
    """

    name: str
    phase: str | None
    owner: Any


def subject_of(function: Any) -> Subject | None:
    """Return what a `tf.function`, or one trace of it, is to people.

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
    return Subject(_function_name(function, plain), None, function)


def layer_call(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    found_ns: int = 0,
) -> TensorFlowCall:
    """Return a call of a Keras model that is an evaluation."""
    inputs = inputs_of(args, kwargs)
    return TensorFlowCall(function, args, kwargs, subject=name, inputs=inputs, found_ns=found_ns)


def training_call(call: TensorFlowCall) -> TensorFlowCall:
    """Return a call as the first one of a training step, which is never repeated."""
    return replace(call, name=TRAINING_STEP, phase=TRAINING_STEP, whole_model=False)


def untraced_call(call: TensorFlowCall) -> TensorFlowCall:
    """Return a call that takes the phase of its graph once it has been made, and so traced."""
    make, ask = call.function, call.effect
    assert ask is not None

    def trace(*args: Any, **kwargs: Any) -> Any:
        object.__setattr__(first, "function", make)
        result = make(*args, **kwargs)
        if ask().trains:
            for name, value in (("name", TRAINING_STEP), ("phase", TRAINING_STEP)):
                object.__setattr__(first, name, value)
            object.__setattr__(first, "whole_model", False)
        return result

    first = replace(call, function=trace)
    return first


def graph_call(  # noqa: PLR0913  what is known of a call when it is found
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    phase: str,
    effect: Callable[[], Effect],
    inputs: Inputs | None = None,
    found_ns: int = 0,
) -> TensorFlowCall:
    """Return a call that runs a graph; `args` are those of the function that is called.

    Args:
        call: Makes the call.
        args: Arguments, without the function itself.
        kwargs: Keyword arguments.
        name: Name of the model or function for people.
        phase: What the call does.
        effect: Returns what the graph changes, once the call was made.
        inputs: Shape and type of each tensor put in; None: those among the arguments.
        found_ns: When the call was found.
    """
    return TensorFlowCall(
        call,
        args,
        kwargs,
        name=phase or "predict",
        subject=name,
        whole_model=not phase,
        phase=phase,
        inputs=inputs_of(args, kwargs) if inputs is None else inputs,
        found_ns=found_ns,
        effect=effect,
    )


def model_call(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TensorFlowCall | None:
    """Return the call if `function` is a Keras model or a `tf.function`, else None."""
    if is_layer(function):
        return layer_call(function, args, kwargs, name=root_name(function))
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


def fed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Return shape and type of the arrays that a session is fed, given the arguments of `run`."""
    given = args[1] if len(args) > 1 else kwargs.get("feed_dict")
    return inputs_of(tuple((given or {}).values()), {})


def session_subject(fetches: Any) -> tuple[str, Effect]:
    """Return a name for what a session runs, the fetched operators', and what that changes."""
    fetched = [each for each in _flat(fetches) if hasattr(each, "graph")]
    names = [str(getattr(each, "op", each).name) for each in fetched]
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else ""), effect(fetched_nodes(fetched))


def inputs_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Return shape and type of the tensors among arguments, in plain containers as well.

    Of an iterator those of its elements. Nothing for arguments that cannot be looked at, or whose
    sizes are known to the graph alone.
    """
    try:
        found = [shape_of(tensor) for tensor in tensors((*map(_elements, args), kwargs))]
    except Exception:  # noqa: BLE001  the user's own objects may raise anything
        return ()
    return tuple((size, dtype) for size, dtype in found if UNKNOWN not in size)


def _elements(value: Any) -> Any:
    return getattr(value, "element_spec", value)


def _hazard(name: str, known: Effect) -> str | None:
    if known.consumes:
        return f"{name} takes its input out of an iterator"
    if known.writes:
        return f"{name} writes to variables"
    if known.calls_python:
        return f"{name} calls functions of Python's, and what these do is not known"
    return None


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


def _function_name(function: Any, plain: Any) -> str:
    name = str(getattr(plain, "__qualname__", "")) or str(getattr(function, "_name", "function"))
    return name.rpartition("<locals>.")[2].removesuffix(".__call__")


def _traced_name(function: Any) -> str:
    """Return the name of a function that was read from a file: `SavedModel serving_default`."""
    traces = concrete_functions(function)
    name = traces[0].name if traces else b""
    plain = (name.decode() if isinstance(name, bytes) else str(name)).removeprefix("__inference_")
    called = plain.rpartition("_")[0].replace("signature_wrapper_", "signature ")
    return " ".join(("SavedModel", *called.replace("__", " ").split()))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, Mapping):
        yield from _flat(list(value.values()))
    else:
        yield value
