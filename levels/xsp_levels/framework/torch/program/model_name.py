"""Names of PyTorch models and of the layers in them, for people."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic_ns
from types import FrameType, FunctionType, ModuleType
from typing import Any

from xsp.provider import NamedLayer
from xsp_levels.framework.keras import layer_tree
from xsp_levels.framework.torch.module.module_path import (
    COMPILED,
    class_name,
    is_compiled,
    is_function,
)

_QUANTIZED = "torch.ao.nn.quantized"
_DEEPEST, _MOST = 3, 50  # objects in objects, and values of each, that are looked at
_WEIGHT_BYTES = 4096  # of plain tensors that a module holds, from which on it is a model


@dataclass(frozen=True, slots=True)
class Named:
    """Name and place of a module that is called outermost.

    Attributes:
        owner: Number of the model that it is, or is a part of.
        name: Name of that model.
        layer: The module's own path in the model, if it is a part, and class.
        is_model: Whether it has weights, or holds a model.
        batch_first: Whether no part of it is known to want sequences before samples.
    """

    owner: int
    name: str
    layer: str
    is_model: bool
    batch_first: bool


class ModelNames:
    """Numbers and names of models; their layers are told to the log by the ids of modules."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._owners: dict[int, tuple[Any, int]] = {}  # by id: weak reference, number
        self._known: dict[int, Named] = {}  # by number
        self._of_class: dict[str, int] = {}
        self._layers: dict[int, dict[int, Any]] = {}  # by number of the model: weak references
        self._count = 0

    def owner(self, module: Any) -> int:
        """Return the number of a module that is called outermost; ids are used again."""
        known = self._owners.get(id(module))
        if known is None or known[0]() is not module:
            self._count += 1
            known = self._owners[id(module)] = weakref.ref(module), self._count
        return known[1]

    def of(self, module: Any, caller: FrameType | None) -> Named:
        """Return name and owner of a module, and name the layers in it the first time.

        If the caller's frame is in a method of a model that the module is a part of, as
        `training_step`, the module is a part of that model.
        """
        number = self.owner(module)
        if number not in self._known:
            self._known[number] = self._new(module, number, caller)
        return self._known[number]

    def look_again(self, module: Any) -> None:
        """Name layers that a model has got since it was looked through."""
        number = self.owner(module)
        if number in self._known:
            with suppress(Exception):  # the user's own objects may raise anything
                self._name_layers(number, module)

    def _new(self, module: Any, number: int, caller: FrameType | None) -> Named:
        holder, path = _holder(module, caller)
        with suppress(Exception):  # the user's own objects may raise anything
            self._name_layers(number, module)
        first = True
        with suppress(Exception):
            parts = list(module.modules())
            first = all(getattr(part, "batch_first", None) is not False for part in parts)
            if any(map(is_compiled, parts)):
                self._log.warning(COMPILED)
        own = class_name(getattr(module, "_orig_mod", module))
        if holder is not None:
            around = self.of(holder, None)
            return Named(around.owner, around.name, f"{path} {own}", around.is_model, first)
        is_model = True
        with suppress(Exception):
            is_model = is_function(module) or has_weights(module) or holds_model(module)
        if not is_model:
            return Named(number, own, own, False, first)
        same = self._of_class[own] = self._of_class.get(own, 0) + 1
        name = own if same == 1 else f"{own} ({same})"
        return Named(number, name, own, True, first)

    def _name_layers(self, number: int, module: Any) -> None:
        known = self._layers.setdefault(number, {})
        new: dict[int, NamedLayer] = {}
        now = monotonic_ns()
        for path, part in _parts(module):
            ident = id(part)
            before = known.get(ident)
            if before is not None and before() is part:
                continue
            known[ident] = weakref.ref(part, partial(_died, weakref.ref(self._log), ident))
            keras = bool(path) and layer_tree.is_layer(part)
            own = type(part).__name__ if keras else class_name(part)
            new[ident] = NamedLayer(path, own, now if self._known.get(number) else 0)
        if new:
            self._log.name_layers(number, new)


def _died(log: Any, ident: int, _: object) -> None:
    if (living := log()) is not None:
        living.died(ident)


def _parts(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules in a module with their paths, those in lists and objects as well."""
    if layer_tree.is_layer(module):  # Keras registers no modules in modules
        for part, path in layer_tree.layers(module):
            yield ".".join(path), part
        return
    seen: set[int] = set()
    for path, part in module.named_modules(remove_duplicate=True):
        seen.add(id(part))
        yield path, part
    if not getattr(module, "_modules", None):
        for name, held in _models_in(module, _DEEPEST):
            for path, part in held.named_modules():
                if id(part) not in seen:
                    seen.add(id(part))
                    yield f"{name}.{path}".rstrip("."), part


def _holder(module: Any, frame: FrameType | None) -> tuple[Any, str]:
    """Return the model in whose method a module is called, and the module's path in it."""
    from torch.nn import Module  # noqa: PLC0415

    for _ in range(8):  # frames of hooks and of PyTorch's own lie between
        if frame is None:
            break
        names = frame.f_code.co_varnames
        if names[:1] == ("self",):
            value: Any = frame.f_locals.get("self")
            if value is not module and issubclass(type(value), Module):
                paths = (path for path, part in value.named_modules() if part is module and path)
                path = next(paths, "")
                return (value, path) if path else (None, "")
        frame = frame.f_back
    return None, ""


def holds_model(module: Any) -> bool:
    """Return whether a module without weights holds a model that is none of its parts.

    It is in a list, or in another object, where PyTorch does not look for parts. What is compiled
    holds none: its calls are no calls of Python.
    """
    return not is_compiled(module) and any(True for _ in _models_in(module, _DEEPEST))


def _models_in(holder: Any, depth: int, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the modules with weights that an object holds, in lists and objects as well."""
    from torch.nn import Module  # noqa: PLC0415

    if isinstance(holder, (list, tuple)):
        members: Any = enumerate(holder)
    elif isinstance(holder, dict):
        members = holder.items()
    else:
        members = getattr(holder, "__dict__", {}).items()
    for key, value in islice(members, _MOST):
        path = f"{name}.{key}" if name else str(key)
        if isinstance(value, Module):
            if has_weights(value):
                yield path, value
        elif depth and not isinstance(
            value, (type, ModuleType, FunctionType, str, int, float, bool, type(None))
        ):
            yield from _models_in(value, depth - 1, path)


def has_weights(module: Any) -> bool:
    """Return whether a module holds weights: parameters, buffers, packed or plain tensors.

    What is scripted or frozen may have its weights among its constants.
    """
    from torch import Tensor, jit  # noqa: PLC0415

    if next(iter(module.parameters()), None) is not None:
        return True
    if isinstance(module, jit.ScriptModule) or is_compiled(module):
        return True
    parts = list(module.modules())
    if any(type(part).__module__.startswith(_QUANTIZED) for part in parts):
        return True
    held = [*module.buffers()]
    held += [v for part in parts for v in vars(part).values() if isinstance(v, Tensor)]
    return sum(v.numel() * v.element_size() for v in held) >= _WEIGHT_BYTES
