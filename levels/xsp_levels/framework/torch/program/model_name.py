"""Models and optimizers in; a name for people out: the class, with a number."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

from xsp_levels.framework.torch.module.module_path import is_function
from xsp_levels.framework.torch.program.call import subject

_ORDINARY = "torch.nn."  # classes of layers, which say little of what a model is
_QUANTIZED = "torch.ao.nn.quantized"
_DEEPEST, _MOST = 3, 50  # objects in objects, and values of each, that are looked at


class ModelNames:
    """Names of models, and of functions, for people; looked up at each outermost call."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._of_class: dict[str, list[weakref.ref[Any] | None]] = {}
        self._batch_first: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._holding: dict[int, tuple[weakref.ref[Any], bool, int]] = {}

    def of(self, module: Any) -> str:
        """Return the name of a model; empty for a module without parameters, which is none.

        The name is the model's class, with a number for each further model of the class. A part of
        a model that was called before, if PyTorch has its class, is named by that model and its
        path there: `VAE.fc3`. A module that stands for a compiled function has the function's name.
        """
        known = self._known.get(id(module))
        # A module may get further parts, and parameters with them.
        if known is not None and known[0]() is module and known[2] == _size(module):
            return known[1]
        name = self._new_name(module)
        self._known[id(module)] = (weakref.ref(module), name, _size(module))
        return name

    def holds_model(self, module: Any) -> bool:
        """Return whether a module without parameters holds a model that is none of its parts.

        It is in a list, or in another object, where PyTorch does not look for parts. What is
        compiled holds none: its calls are no calls of Python.
        """
        known, size = self._holding.get(id(module)), len(vars(module))
        if known is None or known[0]() is not module or known[2] != size:
            holds = False
            with suppress(Exception):  # the user's own objects may raise anything
                holds = not _is_compiled(module) and any(True for _ in _models_in(module, _DEEPEST))
            known = self._holding[id(module)] = (weakref.ref(module), holds, size)
        return known[1]

    def is_batch_first(self, module: Any) -> bool:
        """Return whether no part of a model is known to want sequences before samples."""
        if module not in self._batch_first:
            self._batch_first[module] = True
            with suppress(Exception):  # the user's own objects may raise anything
                told = [getattr(part, "batch_first", None) for part in module.modules()]
                self._batch_first[module] = all(first is not False for first in told)
        return self._batch_first[module]

    def trained_by(self, optimizer: Any, first: Any) -> str:
        """Return the name of the model that an optimizer trains, in a step that another one begins.

        Args:
            optimizer: The optimizer.
            first: The model whose call began the step; None if it is not known.

        Returns:
            The empty text if that model itself is trained, or no model that has been called holds
            all parameters.
        """
        with suppress(Exception):  # the user's own objects may raise anything
            trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
            if first is not None and not trained <= _parameters(first):
                called = self._called()
                return next((name for whole, name in called if trained <= _parameters(whole)), "")
        return ""

    def _new_name(self, module: Any) -> str:
        if not is_function(module) and not has_weights(module):
            return ""
        plain = self._part_name(module) or subject(module)
        number = self._number(plain, module)
        return plain if number == 0 else f"{plain} ({number + 1})"

    def _part_name(self, module: Any) -> str:
        """Return the path of a part in a model that is known; empty if its own class says more."""
        if not type(module).__module__.startswith(_ORDINARY):
            return ""
        with suppress(Exception):  # the user's own objects may raise anything
            for whole, name in self._called():
                for path, part in whole.named_modules():
                    if part is module and path:
                        return f"{name}.{path}"
        return ""

    def _called(self) -> list[tuple[Any, str]]:
        """Return the models that have been called and still live, with their names."""
        known = [(place(), name) for place, name, _ in list(self._known.values())]
        return [(whole, name) for whole, name in known if whole is not None and name]

    def _number(self, name: str, module: Any) -> int:
        """Return the model's number in its class: its own, or the least that no other has."""
        places = self._of_class.setdefault(name, [])
        living = [place() if place is not None else None for place in places]
        for number, other in enumerate(living):
            if other is module or other is None:
                places[number] = weakref.ref(module)
                return number
        places.append(weakref.ref(module))
        return len(places) - 1


class OptimizerNames:
    """Names of optimizers for people, which tell training steps apart.

    Args:
        models: Names of the models that they may train.
    """

    def __init__(self, models: ModelNames) -> None:
        self._models = models
        self._known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._last: tuple[Callable[[], Any], str] = (lambda: None, "")

    def of(self, optimizer: Any, first: Any) -> str:
        """Return the class of an optimizer, with its number among all optimizers.

        With it comes the model that is trained, if the step begins with a call of another one.

        Args:
            optimizer: The optimizer.
            first: The model whose call began the step; None if it is not known.
        """
        last, name = self._last
        if last() is optimizer:
            return name
        if optimizer not in self._known:
            name = f"{type(optimizer).__name__} {len(self._known) + 1}"
            trained = self._models.trained_by(optimizer, first)
            self._known[optimizer] = f"{name} of {trained}" if trained else name
        self._last = weakref.ref(optimizer), self._known[optimizer]
        return self._last[1]


def _parameters(module: Any) -> set[int]:
    return {id(each) for each in module.parameters()}


def _models_in(holder: Any, depth: int) -> Iterator[Any]:
    """Yield the modules with parameters that an object holds, in lists and objects as well."""
    from torch.nn import Module  # noqa: PLC0415

    held = holder if isinstance(holder, (list, tuple)) else getattr(holder, "__dict__", None)
    values = holder.values() if isinstance(holder, dict) else held
    if isinstance(values, dict):
        values = values.values()
    for value in islice(values or (), _MOST):
        if isinstance(value, Module) and has_weights(value):
            yield value
        elif depth and not isinstance(value, (type, ModuleType, FunctionType)):
            yield from _models_in(value, depth - 1)


def has_weights(module: Any) -> bool:
    """Return whether a module has parameters, or weights that PyTorch has quantized and packed."""
    if next(iter(module.parameters()), None) is not None:
        return True
    return any(type(part).__module__.startswith(_QUANTIZED) for part in module.modules())


def _is_compiled(module: Any) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _size(module: Any) -> int:
    return len(module._modules) + len(module._parameters)
