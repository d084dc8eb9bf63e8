"""Imports a function `path.py:function` that a specification names, and binds its settings."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from xsp.errors import UnknownTargetError
from xsp.measuring.call import check_function
from xsp.measuring.target.spec import Spec, Subject, hint
from xsp.text import suggest


def subject(spec: Spec) -> Subject:
    """Return the function that a specification names; its file is imported.

    Raises:
        UnknownTargetError: There is no such function, or it does not take these settings.
    """
    if spec.train:
        raise UnknownTargetError(
            f"--train makes a training step of a model, and {spec.target} is a function: "
            "write the step into it, and leave --train out"
        )
    path, name, _ = spec.in_file
    function = attribute(path, name)
    # A source says itself what compiles functions and runs them.
    by_source = ("compiled", "framework") if spec.source else ()
    given = {key: value for key, value in spec.asked.items() if key not in by_source}
    _check_module(spec.target, function, given)
    _check_parameters(spec.target, function, given)
    if given:
        function = functools.partial(function, **given)
    return Subject(function, (), name, "function")


def attribute(path: str, name: str) -> Callable[..., Any]:
    """Return a function in a file by its name; the file is imported.

    Args:
        path: The file.
        name: Name of the function there, with dots where it is one of an object.

    Raises:
        UnknownTargetError: There is no such file, or no such function in it.
    """
    module = _load(Path(path))
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    functions = [key for key, value in vars(module).items() if callable(value)]
    if found is None:
        raise UnknownTargetError(f"{path} has no function {name!r}{suggest(name, functions)}")
    raise UnknownTargetError(f"{name} in {path} is a {type(found).__name__}, and cannot be called")


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownTargetError(f"there is no file {path}{hint(str(path))}")
    # As for a script, modules beside the file can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"_xsp_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownTargetError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as pickling and dataclasses look the module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _check_parameters(target: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    try:
        check_function(function)
    except TypeError as error:
        raise UnknownTargetError(f"{target}: {error}") from error
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(**given)
    except TypeError as error:
        asked = "".join(f" {_OPTIONS.get(key, f'--set {key}')}" for key in given)
        raise UnknownTargetError(
            f"{target} cannot be called{' with' + asked if asked else ''}: {error}. It is called "
            "without arguments, but for batch, device and other settings if it has such "
            "parameters and the options are given: wrap it in a function that supplies the rest"
        ) from error


def _check_module(target: str, function: object, given: Mapping[str, Any]) -> None:
    """Refuse a module of PyTorch that needs an input, which nobody here could make up."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return
    try:
        inspect.signature(function.forward).bind(**given)
    except TypeError as error:
        raise UnknownTargetError(
            f"{target} is a module ({type(function).__name__}), which takes an input ({error}): "
            "wrap it in a function that calls it with an input, and measure that"
        ) from error


# How settings are spelt on the command line; `--set` takes all others.
_OPTIONS = {
    "batch": "--batch",
    "device": "--device",
    "precision": "--precision",
    "compiled": "--compile",
    "framework": "--framework",
}
