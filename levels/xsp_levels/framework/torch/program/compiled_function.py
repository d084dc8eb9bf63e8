"""Counts calls of functions that torch.compile made, as calls of a module.

A program that calls a compiled function calls no module: what the function calls was compiled
with it. So a module stands for the function, and has the modules that the function refers to as
its parts.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any

from xsp.provider import OPTIMIZER
from xsp_levels.framework.torch.program.model_name import has_weights
from xsp_levels.hook import Handler, Hook
from xsp_levels.imported import Imports

_DYNAMO = "torch._dynamo.eval_frame"
_ORIGINAL = "_torchdynamo_orig_callable"  # Dynamo's name for what it made a function of
_HOOK = "xsp_hook"
_CALLS = frozenset({"__call__", "_call_impl", "_wrapped_call_impl"})  # of a module
_DEEPEST, _MOST = 2, 50  # functions in functions, and values of an object, that are looked at


class CompiledFunctions:
    """Makes outermost calls of compiled functions calls of modules, from `watch` to `unwatch`.

    A function that only makes an optimizer's step is told of as that step: while code is compiled,
    the optimizer's own hooks do nothing.

    Args:
        log: The log of the program.
        stepped: Called with an optimizer whose step a function has made.
    """

    def __init__(self, log: Any, stepped: Callable[[Any], None]) -> None:
        self._log = log
        self._stepped = stepped
        self._imports = Imports({_DYNAMO}, self._begin)
        self._codes: frozenset[CodeType] = frozenset()
        self._made: Hook | None = None
        # Each function keeps its hook: a program may drop a function, and the model with it.
        self._functions: weakref.WeakSet[FunctionType] = weakref.WeakSet()

    def watch(self) -> None:
        """Put the hooks in place, and one that hooks functions which are compiled later."""
        if _DYNAMO in sys.modules:
            self._begin()
        else:
            self._imports.begin()

    def unwatch(self) -> None:
        """Take the hooks out."""
        self._imports.end()
        if self._made is not None:
            self._made.take_out()
            self._made = None
        for function in tuple(self._functions):
            vars(function).pop(_HOOK).take_out()
        self._functions.clear()

    def _begin(self) -> None:
        context = getattr(sys.modules[_DYNAMO], "_TorchDynamoContext", None)
        make = getattr(context, "__dict__", {}).get("__call__")
        if not isinstance(make, FunctionType):
            return
        self._codes = frozenset(c for c in make.__code__.co_consts if isinstance(c, CodeType))
        for function in gc.get_referrers(*self._codes):
            self._hook(function)
        self._made = Hook(make, self._making)
        self._made.place()

    def _making(self, make: Callable[..., Any]) -> Handler:
        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            made = make(*args, **kwargs)
            self._hook(made)
            return made

        return handler

    def _hook(self, function: Any) -> None:
        """Hook a function that Dynamo made, unless it makes the calls of a module."""
        made = isinstance(function, FunctionType) and function.__code__ in self._codes
        if not made or function in self._functions:
            return
        with suppress(Exception):  # what it was made of may be anything, of C or the user's
            original = _innermost(function)
            if original is not None and not _is_call_of_module(original):
                hook = Hook(function, functools.partial(self._calling, original))
                vars(function)[_HOOK] = hook
                self._functions.add(function)
                hook.place()

    def _calling(self, original: Any, call: Callable[..., Any]) -> Handler:
        local, is_compiling = self._log.local, sys.modules["torch"].compiler.is_compiling
        stand_in: Any = None
        holders: tuple[int, ...] | None = None  # of its parts, once they were looked for

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal stand_in, holders
            # A module's call has an argument `self` of its own.
            if local.inside is not None or is_compiling() or "self" in kwargs:
                return call(*args, **kwargs)
            try:
                if stand_in is None:
                    stand_in = _stand_in(original, call, args)
                if holders != (holders := _holders(original, args, kwargs)):
                    _refer(stand_in, original, args, kwargs)
                parts = (*stand_in._modules.values(), *args, *kwargs.values())
                stand_in.training = any(map(_trains, parts))
            except Exception:  # noqa: BLE001  the user's own objects may raise anything
                return call(*args, **kwargs)
            return self._call(stand_in, args, kwargs)

        return handler

    def _call(self, stand_in: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        optimizers, log = stand_in.xsp_optimizers, self._log
        if optimizers and not stand_in._modules and not stand_in.xsp_backward:
            number = log.name(type(optimizers[0]).__name__, {"optimizer": id(optimizers[0])})
            with log.part(number, OPTIMIZER):
                return stand_in._compiled_call_impl(*args, **kwargs)
        result = stand_in(*args, **kwargs)
        for optimizer in optimizers:
            self._stepped(optimizer)
        return result


def _trains(value: Any) -> bool:
    torch: Any = sys.modules["torch"]
    # Of the type alone: objects that load a library when asked for their class stay asleep.
    if issubclass(type(value), torch.nn.Module):
        return bool(value.training)
    return issubclass(type(value), torch.Tensor) and value.requires_grad


def _holders(original: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of the modules that a call is given or refers to, and of a method's object."""
    module, code = sys.modules["torch"].nn.Module, getattr(original, "__code__", None)
    known = getattr(original, "__globals__", {})
    referred = [known.get(name) for name in getattr(code, "co_names", ())]
    held = (*args, *kwargs.values(), *referred, *_contents(original))
    found = tuple(id(each) for each in held if issubclass(type(each), module))
    is_method = args and getattr(code, "co_varnames", ())[:1] == ("self",)
    return (id(args[0]), *found) if is_method else found


def _stand_in(original: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return a module whose calls are those of a function that was compiled of `original`."""
    name = getattr(original, "__qualname__", type(original).__qualname__)
    if getattr(original, "__name__", "") in _CALLS and args:  # of a class that was compiled
        name = type(args[0]).__qualname__
    members = {"__module__": getattr(original, "__module__", ""), "xsp_optimizers": ()}
    code = getattr(original, "__code__", None)
    members["xsp_backward"] = "backward" in getattr(code, "co_names", ())
    module: Any = sys.modules["torch"].nn.Module
    made = type(name.rpartition("<locals>.")[2], (module,), members)()
    made._compiled_call_impl = call
    return made


def _refer(stand_in: Any, original: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Give a stand-in the models and optimizers that its function refers to or is given."""
    torch: Any = sys.modules["torch"]
    found: dict[str, Any] = dict(kwargs)
    for variable, value in _referred(original, args, _DEEPEST):
        found.setdefault(variable, value)
    stand_in._modules.clear()
    for variable, value in found.items():
        with suppress(Exception):  # a module that is not whole has no parameters to ask for
            if issubclass(type(value), torch.nn.Module) and has_weights(value):
                stand_in._modules[variable] = value
    steps = _stepped(original)
    stepped = [value for variable, value in found.items() if variable in steps]
    kind = torch.optim.Optimizer
    stand_in.xsp_optimizers = tuple(each for each in stepped if issubclass(type(each), kind))


def _innermost(function: Any) -> Any:
    found = None
    while (inner := getattr(function, "__dict__", {}).get(_ORIGINAL)) is not None:
        found = function = inner
    return found


def _is_call_of_module(function: Any) -> bool:
    module: Any = sys.modules["torch"].nn.Module
    if isinstance(getattr(function, "__wrapped__", None), module):
        return True
    own = getattr(function, "__self__", None)
    return isinstance(own, module) and function.__name__ in _CALLS


def _stepped(function: Any) -> set[str]:
    """Return the names of variables whose `step` a function takes; `self`, if it is a `step`."""
    code = getattr(function, "__code__", None)
    read = list(dis.get_instructions(code)) if code else []
    stepped = {
        str(before.argval)
        for before, after in pairwise(read)
        if after.argval == "step" and after.opname in ("LOAD_ATTR", "LOAD_METHOD")
    }
    return stepped | ({"self"} if getattr(function, "__name__", "") == "step" else set())


def _referred(function: Any, args: tuple[Any, ...], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield objects that a function refers to, with the variables' names, and what they hold."""
    code, own = getattr(function, "__code__", None), getattr(function, "__self__", None)
    held = {} if own is None else {"self": own}
    if code is not None:
        known = getattr(function, "__globals__", {})
        held |= {name: known[name] for name in code.co_names if name in known}
        held |= zip(code.co_varnames[own is not None :], args, strict=False)
        held |= zip(code.co_freevars, _contents(function), strict=False)
    for name, value in held.items():
        yield name, value
        if type(value) is FunctionType:
            yield from _referred(value, (), depth - 1) if depth else ()
        elif not issubclass(type(value), (type, ModuleType)):
            with suppress(Exception):  # the user's own objects may raise anything
                yield from islice(vars(value).items(), _MOST)


def _contents(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # of a variable that has no value yet
            yield None
