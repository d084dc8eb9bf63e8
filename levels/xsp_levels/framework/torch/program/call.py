"""Tells calls of PyTorch models apart, names and repeats them."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import MethodType
from typing import Any

from xsp.provider import TRANSFORMED, CallFacts, Inputs, ModelCall, State
from xsp_levels.framework.keras.layer_tree import is_layer
from xsp_levels.framework.torch.module.module_path import class_name, is_function, tensors
from xsp_levels.framework.torch.program.model_name import ModelNames

PREFILL, EXTEND, DECODE = "prefill", "extend", "decode"
_DEVICES = ("cpu", "cuda")
_MOST_KEYS = 100  # of a mapping that is no dictionary: a batch has fewer
_DESCRIBED = 8  # members of a list or mapping that tell calls apart
# Keys of one model, above which numbers among its arguments tell no calls apart: each call of a
# diffusion model has another step, and a new key costs 20 µs.
_MOST_VALUES = 64
_PLAIN = (bool, str, type(None))


@dataclass(frozen=True, slots=True)
class Modes:
    """The thread's modes that decide what a call computes.

    Attributes:
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
        autocast = tuple(
            torch.get_autocast_dtype(device) if enabled(device) else None for device in _DEVICES
        )
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

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


@dataclass(slots=True)
class TorchCall(ModelCall):
    """A call of a module.

    Attributes:
        modes: The modes of the original call; None: those of the thread.
        found: What the call found: settings, and the model's own attributes.
    """

    modes: Modes | None = None
    found: Hashable = None

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating may be tried."""
        module: Any = _module(self.function)
        if is_function(module):
            return ModelCall.hazard(self)
        modes = self.modes or Modes.current()
        given = (*module.parameters(), *tensors((self.args, self.kwargs)))
        gradients = modes.grad and not modes.inference
        if gradients and any(tensor.requires_grad for tensor in given):
            return (
                f"{class_of(module)} was called with gradients on (`with torch.no_grad():` turns "
                "them off)"
            )
        if changing := next(filter(_changes_when_training, module.modules()), None):
            return (
                f"{class_of(module)} is in training mode, where its {class_of(changing)} changes "
                "with each call (`model.eval()`)"
            )
        kinds = ("_forward", "_forward_pre", "_backward", "_backward_pre")
        if any(getattr(part, f"{kind}_hooks") for part in module.modules() for kind in kinds):
            return f"{class_of(module)} has hooks of the program's, which would be called again"
        if self.found != _found(module):
            return f"settings, or attributes of {class_of(module)}, have changed since the call"
        return None

    @contextlib.contextmanager
    def conditions(self) -> Iterator[None]:
        """Set the modes of the call for the block, and restore the thread's."""
        with contextlib.nullcontext() if self.modes is None else self.modes.entered():
            yield

    def copied(self, memo: dict[int, Any]) -> TorchCall:
        """Return the call of a copy of the module, with the same parameters, on copied arguments.

        Of a compiled module what was compiled is copied, for a copy would be compiled anew.
        """
        import torch  # noqa: PLC0415

        module = _module(self.function)
        with torch.inference_mode(False):  # else copies are tensors without a count of writes
            scripted = isinstance(module, torch.jit.ScriptModule)
            if scripted or is_function(module) or is_layer(module):
                return ModelCall.copied(self, memo)
            memo.update((id(parameter), parameter) for parameter in module.parameters())
            original = getattr(module, "_orig_mod", module)
            return replace(ModelCall.copied(self, memo), function=copy.deepcopy(original, memo))

    def model(self) -> Any:
        """Return the module."""
        return _module(self.function)

    def layer_calls(self, paths: Collection[str]) -> dict[str, ModelCall]:
        """Make the call once, and return the last call of each module, with its arguments."""
        found: dict[str, ModelCall] = {}
        with contextlib.ExitStack() as stack:
            for path, module in _module(self.function).named_modules():
                if path in paths:
                    hook = partial(_keep, found, path)
                    kept = module.register_forward_pre_hook(hook, with_kwargs=True)
                    stack.callback(kept.remove)
            self()
        return found

    def states(self) -> Iterator[State]:
        """Yield the states of PyTorch's own generators of random numbers that are in use."""
        torch = sys.modules["torch"]
        cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        for generator in (torch.default_generator, *cuda):

            def numbers(generator: Any = generator) -> Any:
                return generator.get_state().numpy()

            yield State("random numbers", numbers, partial(_seed, generator))


def _keep(
    found: dict[str, ModelCall], path: str, module: Any, args: tuple[Any, ...], kwargs: Any
) -> None:
    """Keep a call of a module; gradients of its inputs are of another call."""
    detached = [value.detach() if hasattr(value, "detach") else value for value in args]
    found[path] = TorchCall(module, tuple(detached), dict(kwargs), modes=Modes.current())


def module_call(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchCall:
    """Return a call of `module` with the modes and settings that there are now."""
    return TorchCall(
        module, args, kwargs, subject=class_of(module), modes=Modes.current(), found=_found(module)
    )


class CallKeys:
    """Numbers of calls; calls with equal facts have one number in a program's log."""

    def __init__(self, log: Any) -> None:
        import torch  # noqa: PLC0415

        self._log = log
        self._names = ModelNames(log)
        self._grad = torch.is_grad_enabled
        self._settings = _settings_getter()
        self._tensor = torch.Tensor
        self._keys_of: dict[int, int] = {}  # how many keys each model has
        self._optimizers: dict[int, tuple[Any, int]] = {}
        self._stepped = 0  # how many optimizers have

    def number(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Return the number of a call's facts."""
        kind, owner = self._tensor, self._names.owner(module)
        if len(args) == 1 and not kwargs and type(args[0]) is kind:
            given: Any = args[0].shape, args[0].dtype
        else:
            many = self._keys_of.get(owner, 0) > _MOST_VALUES
            try:
                given = (
                    *(self._described(value, many) for value in args),
                    *((name, self._described(value, many)) for name, value in kwargs.items()),
                )
            except Exception:  # noqa: BLE001  the user's own objects may raise anything
                given = len(args), *kwargs
        key = owner, self._grad(), getattr(module, "training", False), self._settings(), given
        number: int = self._log.call_number(key, lambda: self._facts(owner, module, args, kwargs))
        return number

    def look_again(self, module: Any) -> None:
        """Name layers that a model has got since it was looked through."""
        self._names.look_again(module)

    def optimizer(self, optimizer: Any) -> int:
        """Return the number of the name of an optimizer's steps, which tells it from others."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._stepped += 1
            name = type(optimizer).__name__
            number = self._log.name(name, {"optimizer": self._stepped})
            known = self._optimizers[id(optimizer)] = weakref.ref(optimizer), number
        return known[1]

    def of_package(
        self, package: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Hashable, Callable[[], CallFacts]]:
        """Return key and facts of a call of a package that AOTInductor made."""
        inputs = tensor_inputs(args, kwargs)
        name = "AOTInductor package"
        return (id(package), inputs), lambda: CallFacts(name, owner=id(package), inputs=inputs)

    def _described(self, value: Any, many: bool, depth: int = 2) -> Any:  # noqa: PLR0911  # kinds
        if isinstance(value, self._tensor):
            return value.shape, value.dtype
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, (int, float)):
            return type(value) if many else value
        if (length := cache_length(value)) is not None:
            return "cache", length.bit_length()
        if isinstance(value, (list, tuple)) and depth:
            return len(value), *(self._described(v, many, depth - 1) for v in value[:_DESCRIBED])
        if isinstance(value, Mapping) and depth:
            return tuple(
                (name, self._described(v, many, depth - 1))
                for name, v in islice(value.items(), _DESCRIBED)
            )
        return type(value)

    def _facts(
        self, owner: int, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CallFacts:
        self._keys_of[owner] = self._keys_of.get(owner, 0) + 1
        named = self._names.of(module, sys._getframe(6))  # the frame that calls the module
        inputs = tensor_inputs(args, kwargs)
        phase = generation_phase(kwargs, inputs)
        many = self._keys_of[owner] > _MOST_VALUES
        arguments = []
        for name, value in (*(("", each) for each in args), *kwargs.items()):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if isinstance(value, (bool, str)) or (number and not many):
                arguments.append(f"{name}={value!r}" if name else repr(value))
        length = cache_length(_cache(kwargs))
        trained = kwargs.get("training") if is_layer(module) else getattr(module, "training", False)
        return CallFacts(
            model=named.name,
            owner=named.owner,
            layer=named.layer,
            phase=phase,
            gradients=self._grad(),
            training=bool(trained),
            inputs=inputs[:1] if phase else inputs,  # masks and positions grow with each token
            arguments=tuple(arguments),
            cache=0 if not length else 1 << (length - 1).bit_length(),
            settings=_words(self._settings()),
            batch_first=named.batch_first,
            passed_over=not named.is_model,
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
    return EXTEND if cache_length(cache) else PREFILL


def _cache(kwargs: Mapping[str, Any]) -> Any:
    """Return the cache of keys and values among the arguments of a call, or None.

    transformers calls the argument `cache` from 5.24 on. So may a model of anyone's: what it is
    given must say how long it is, as caches of transformers do.
    """
    if (cache := kwargs.get("past_key_values")) is not None:
        return cache
    cache = kwargs.get("cache")
    return cache if callable(getattr(cache, "get_seq_length", None)) else None


def cache_length(value: Any) -> int | None:
    """Return how many tokens a cache of transformers holds; None if it is none.

    A static cache tells its length by a tensor; one that lies on a device is not waited for.
    """
    length = getattr(type(value), "get_seq_length", None)
    if length is None:
        return None
    with contextlib.suppress(Exception):  # of a cache without any attention, ValueError
        found = value.get_seq_length()
        device = getattr(found, "device", None)
        return int(found) if device is None or device.type == "cpu" else 0
    return 0


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


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return a data type of PyTorch's as text: `float32`."""
    return str(dtype).removeprefix("torch.")


def is_module(function: Any) -> bool:
    """Return whether `function` is a module, without importing PyTorch."""
    torch = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    return module is not None and isinstance(function, module)


def class_of(module: Any) -> str:
    """Return the name of a model for people: its class; of a compiled model the original's."""
    return class_name(getattr(module, "_orig_mod", module))


def _module(function: Any) -> Any:
    """Return the model, given itself or its bound `__call__`."""
    return function.__self__ if isinstance(function, MethodType) else function


def _changes_when_training(module: Any) -> bool:
    """Return whether a module draws random numbers, or writes running means, scripted or not."""
    means = getattr(module, "running_mean", None) is not None
    return bool(module.training and (means or "Dropout" in class_of(module)))


def _found(module: Any) -> Hashable:
    """Return settings and plain attributes of a model, which a repetition must find unchanged."""
    attributes = tuple(
        (name, value)
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, (bool, int, float, str))
    )
    return _settings_getter()(), attributes


@functools.cache
def _settings_getter() -> Callable[[], tuple[Any, ...]]:
    """Return a function that reads the settings by which calls are grouped; it takes 0.3 µs."""
    import torch  # noqa: PLC0415

    c = torch._C
    threads, autocast = torch.get_num_threads, torch.is_autocast_enabled
    onednn, math, flash = c._get_mkldnn_enabled, c._get_math_sdp_enabled, c._get_flash_sdp_enabled
    fixed = c._get_deterministic_algorithms
    transforms = c._functorch.peek_interpreter_stack

    def settings() -> tuple[Any, ...]:
        return (
            threads(), autocast("cpu"), autocast("cuda"), onednn(), math(), flash(), fixed(),
            transforms() is not None,
        )  # fmt: skip

    return settings


def _words(settings: tuple[Any, ...]) -> tuple[str, ...]:
    threads, cpu, cuda, onednn, math, flash, fixed, transformed = settings
    words = [f"{threads} threads" if threads != 1 else "1 thread"]
    words += ["autocast"] * bool(cpu or cuda)
    words += ["without oneDNN"] * (not onednn)
    words += ["without math attention"] * (not math) + ["without flash attention"] * (not flash)
    return tuple(words + ["deterministic"] * bool(fixed) + [TRANSFORMED] * transformed)


def fingerprint(value: Any) -> Hashable:
    """Return a value that a write to a tensor, or a draw from a generator, changes, or None.

    PyTorch counts the writes to a tensor, but not those through `.data`, from other libraries, or
    to tensors made in inference mode: so numbers on the CPU have a checksum besides.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, torch)
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, torch.jit.ScriptModule):  # whose buffers lie outside of Python's objects
        return tuple(_of_tensor(buffer, torch) for buffer in value.buffers())
    return None


def _seed(generator: Any, numbers: Any) -> None:
    generator.set_state(sys.modules["torch"].from_numpy(numbers))


def _of_tensor(tensor: Any, torch: Any) -> Hashable:
    version = None if tensor.is_inference() else tensor._version
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_meta
        or torch.nn.parameter.is_lazy(tensor)
        or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
    ):
        return id(tensor), version
    where = id(tensor), version, tensor.requires_grad, tensor.data_ptr(), tensor.shape
    if isinstance(tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return where  # a gigabyte of weights takes a second, and only training writes to them
    with torch.no_grad():
        numbers = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return *where, zlib.crc32(numbers.view(torch.uint8).numpy())
