"""A call of a PyTorch model in; the call's modes, and whether the call can be repeated, out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MethodType
from typing import Any

from xsp.provider import Inputs, Likeness, ModelCall, Work
from xsp_levels.framework.keras.layer_tree import is_layer
from xsp_levels.framework.torch.module.module_path import class_name, is_function
from xsp_levels.framework.torch.module.shape import tensors

TRAINING_STEP = "training step"
PREFILL, EXTEND, DECODE = "prefill", "extend", "decode"
_DEVICES = ("cpu", "cuda")
_NO_AUTOCAST = (None, None)
_LOOKED_AT = 8  # results of a call
_MOST_KEYS = 100  # of a mapping that is no dictionary: a batch has fewer


@dataclass(frozen=True, slots=True)
class Modes:
    """The thread's modes that decide what a call computes.

    Attributes:
        grad: Whether gradients are recorded.
        inference: Whether inference mode is on.
        autocast: The dtype for each device type of `_DEVICES`; None where autocast is off.
    """

    grad: bool
    inference: bool
    autocast: tuple[Any, ...]

    @classmethod
    def current(cls) -> Modes:
        """Return the modes of this thread."""
        import torch  # noqa: PLC0415

        enabled = torch.is_autocast_enabled
        autocast: tuple[Any, ...] = _NO_AUTOCAST
        if enabled(_DEVICES[0]) or enabled(_DEVICES[1]):
            autocast = tuple(
                torch.get_autocast_dtype(device) if enabled(device) else None for device in _DEVICES
            )
        return _modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Set these modes for the block, where the thread has others, and restore the thread's."""
        import torch  # noqa: PLC0415

        now = Modes.current()
        with contextlib.ExitStack() as stack:
            if self.inference != now.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype, other in zip(_DEVICES, self.autocast, now.autocast, strict=True):
                if dtype != other:
                    stack.enter_context(
                        torch.autocast(device, dtype=dtype, enabled=dtype is not None)
                    )
            yield


@functools.cache  # made anew at each call of a model, it would take a microsecond there
def _modes(grad: bool, inference: bool, autocast: tuple[Any, ...]) -> Modes:
    return Modes(grad, inference, autocast)


@dataclass(slots=True)
class TorchCall(ModelCall):
    """A call of a module.

    Attributes:
        modes: The modes of the original call; None: those of the thread.
        evaluated: Whether the module was in evaluation mode then.
    """

    modes: Modes | None = None
    evaluated: bool = False

    def take(self, work: Work, inputs: Inputs) -> None:
        """Become a call of other work and its inputs, under the modes that this thread has now."""
        self.function, self.args, self.kwargs = work
        self.inputs = inputs
        self.modes, self.evaluated = Modes.current(), not _module(self.function).training

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating is safe."""
        module: Any = getattr(self.function, "__self__", self.function)
        if is_function(module):
            return ModelCall.hazard(self)
        if is_layer(module):  # Keras leaves its modules in training mode, and says so in the call
            return _keras_hazard(self)
        since = self.evaluated and module.training  # `conditions` puts it back for the while
        if not since and any(part.training for part in module.modules()):
            return (
                f"{subject(module)} is in training mode, where a call may change its state "
                "(`model.eval()` ends that)"
            )
        if self.phase in (PREFILL, EXTEND) and _is_filled(_cache(self.kwargs), wait=True):
            return "its cache of keys and values has been filled since"
        modes = self.modes or Modes.current()
        if modes.grad and not modes.inference and _needs_gradients(module, self):
            return (
                f"{subject(module)} was called with gradients on (`with torch.no_grad():` turns "
                "them off)"
            )
        return None

    @contextlib.contextmanager
    def conditions(self) -> Iterator[None]:
        """Set the modes of the call, and of its module, for the block, and restore them."""
        module: Any = getattr(self.function, "__self__", self.function)
        since = self.evaluated and module.training
        training = [part for part in module.modules() if part.training] if since else []
        with contextlib.nullcontext() if self.modes is None else self.modes.entered():
            try:
                for part in training:
                    part.training = False
                yield
            finally:
                for part in training:
                    part.training = True


def _module(function: Any) -> Any:
    """Return the model, given itself or its bound `__call__`."""
    return function.__self__ if isinstance(function, MethodType) else function


def module_call(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchCall:
    """Return a call of `module` with the modes that this thread has now."""
    return found_call(module, args, kwargs, like=likeness(args, kwargs, subject(module)))


def likeness(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Likeness:
    """Return what a call of a model that is an evaluation has in common with others.

    Args:
        args: Its arguments.
        kwargs: Its keyword arguments.
        name: Name of the model for people.
    """
    inputs = tensor_inputs(args, kwargs)
    phase = generation_phase(kwargs, inputs)
    return name, phase, told_of(phase, inputs)


def told_of(phase: str, inputs: Inputs) -> Inputs:
    """Return the inputs of a call that tell it from others of the phase.

    What a model has seen grows with each token: masks and positions tell no steps apart.
    """
    return inputs[:1] if phase else inputs


def found_call(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    like: Likeness,
    found_ns: int = 0,
) -> TorchCall:
    """Return a call that is an evaluation, with the modes that this thread has now.

    Args:
        function: The model, or its bound `__call__`.
        args: Its arguments.
        kwargs: Its keyword arguments.
        like: What `likeness` returns of it.
        found_ns: When the call was found.
    """
    name, phase, inputs = like
    return TorchCall(
        function,
        args,
        kwargs,
        subject=name,
        phase=phase,
        inputs=inputs,
        found_ns=found_ns,
        modes=Modes.current(),
        evaluated=not _module(function).training,
    )


def training_call(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    inputs: Inputs,
    name: str,
    found_ns: int,
) -> TorchCall:
    """Return the first call of a training step, which is never repeated; as `found_call`."""
    return TorchCall(
        function,
        args,
        kwargs,
        name=TRAINING_STEP,
        subject=name,
        whole_model=False,
        phase=TRAINING_STEP,
        inputs=inputs,
        found_ns=found_ns,
    )


def generation_phase(kwargs: Mapping[str, Any], inputs: Inputs) -> str:
    """Return the phase of a call with a cache of keys and values: nothing of one without.

    The arguments are those of Hugging Face's transformers, and the second dimension of the
    leading input is the sequence: with a cache, one token at a time is decoded. Several tokens
    extend what is in the cache already: assisted generation checks candidates so, and a prompt may
    come in chunks, or in turns.
    """
    cache = _cache(kwargs)
    if cache is None and kwargs.get("use_cache") is not True:
        return ""
    leading = inputs[0][0] if inputs else ()
    if len(leading) > 1 and leading[1] == 1:
        return DECODE
    return EXTEND if _is_filled(cache) else PREFILL


def _cache(kwargs: Mapping[str, Any]) -> Any:
    """Return the cache of keys and values among the arguments of a call, or None.

    transformers calls the argument `cache` from 5.24 on. So may a model of anyone's: what it is
    given must say how long it is, as caches of transformers do.
    """
    if (cache := kwargs.get("past_key_values")) is not None:
        return cache
    cache = kwargs.get("cache")
    return cache if callable(getattr(cache, "get_seq_length", None)) else None


def _is_filled(cache: Any, *, wait: bool = False) -> bool:
    """Return whether a cache of transformers holds keys and values; False if that is not known.

    Args:
        cache: The cache; a static one tells its length by a tensor.
        wait: Whether the host may wait for a device that the length is on.
    """
    with contextlib.suppress(Exception):  # of a cache without any attention, ValueError
        length = cache.get_seq_length()
        device = getattr(length, "device", None)
        return bool(length) if wait or device is None or device.type == "cpu" else False
    return False


def tensor_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Return shape and dtype of the tensors among arguments, in lists and mappings as well.

    Nothing for arguments that cannot be looked at, such as nested tensors, which have no shape, and
    nothing while TorchScript traces a call, which would take note of each size that is read.
    """
    import torch  # noqa: PLC0415

    if torch.jit.is_tracing():
        return ()
    found: list[tuple[tuple[int, ...], str]] = []
    try:
        _note_inputs(args, found, 3)
        if kwargs:
            _note_inputs(kwargs.values(), found, 3)
    except Exception:  # noqa: BLE001  the user's own objects may raise anything
        return ()
    return tuple(found)


def _note_inputs(
    values: Iterable[Any], found: list[tuple[tuple[int, ...], str]], depth: int
) -> None:
    import torch  # noqa: PLC0415

    for value in values:
        if isinstance(value, torch.Tensor):
            found.append((tuple(value.shape), dtype_name(value.dtype)))
        elif depth and isinstance(value, (tuple, list)):
            _note_inputs(value, found, depth - 1)
        elif depth and isinstance(value, dict):
            _note_inputs(value.values(), found, depth - 1)
        elif depth and hasattr(type(value), "keys"):  # batches of many libraries are so
            with contextlib.suppress(Exception):  # the others are to be found all the same
                keys = list(islice(value.keys(), _MOST_KEYS))
                _note_inputs([value[key] for key in keys], found, 0)


def may_hold_tensors(value: Any) -> bool:
    """Return whether an argument is a tensor, or may have some that `tensor_inputs` finds."""
    import torch  # noqa: PLC0415

    return isinstance(value, (torch.Tensor, tuple, list, dict)) or hasattr(type(value), "keys")


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return a data type of PyTorch's as text: `float32`."""
    return str(dtype).removeprefix("torch.")


def is_module(function: Any) -> bool:
    """Return whether `function` is a module, without importing PyTorch."""
    torch = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    return module is not None and isinstance(function, module)


def trains(module: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of a module with these arguments is one of training."""
    import torch  # noqa: PLC0415

    if not torch.is_grad_enabled():
        return False
    return bool(kwargs.get("training") if is_layer(module) else module.training)


def learns_nothing(module: Any, call: ModelCall, result: Any) -> bool:
    """Return whether a call led to no gradients: that of a model that is frozen, as a teacher.

    What came out of it tells first. Where that is numbers without gradients, such as sampled
    tokens, the model may have kept others: its parameters tell, and what it was given.
    """
    tensor = sys.modules["torch"].Tensor
    try:
        leading = [each for each in _leading(result) if isinstance(each, tensor)]
        came_out = [each.requires_grad for each in leading]
        return bool(came_out) and not any(came_out) and not _needs_gradients(module, call)
    except Exception:  # noqa: BLE001  the user's own objects may raise anything
        return False


def _leading(result: Any) -> Iterable[Any]:
    """Return a result, or the first of the results that it holds."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return [getattr(result, field.name, None) for field in dataclasses.fields(result)]
    if isinstance(result, Mapping):
        return islice(result.values(), _LOOKED_AT)
    return result[:_LOOKED_AT] if isinstance(result, (tuple, list)) else [result]


def _keras_hazard(call: ModelCall) -> str | None:
    if not call.kwargs.get("training"):
        return None
    return f"{call.subject} was called with training=True, where a call may change its state"


def subject(module: Any) -> str:
    """Return the name of a model for people: its class; of a compiled model the original's."""
    return class_name(getattr(module, "_orig_mod", module))


def _needs_gradients(module: Any, call: ModelCall) -> bool:
    given = (*module.parameters(), *tensors((call.args, call.kwargs)))
    return any(tensor.requires_grad for tensor in given)
