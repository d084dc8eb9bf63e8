"""Makes the model of a specification `path.py:function[NAME]` with the function in the file.

The function returns, or yields one by one, names with what makes the model of that name:

- a function that makes the model: given those settings that it has parameters for, it returns a
  module of PyTorch with its inputs, or a function whose call is a step;
- or the module with its inputs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from xsp.errors import UnknownTargetError
from xsp.measuring.target.source import function, pytorch
from xsp.measuring.target.source.library import known, matching
from xsp.measuring.target.source.zoo import ModelWithInputs
from xsp.measuring.target.spec import Spec, Subject, Value

_FORM = (
    "a function that makes models returns a dictionary from each model's name to a function that "
    "makes it, or to a pair of a PyTorch module and its inputs"
)
_MODULE_TAKES = ("device", "precision", "compiled")  # of a module that is not told, xsp does it


def models(target: str, pattern: str = "") -> tuple[str, ...]:
    """Return the names of the models that a function makes; its file is imported, none is made.

    Args:
        target: `path.py:function`.
        pattern: Which of them; empty: all.

    Raises:
        UnknownTargetError: There is no such function, it makes none, or the pattern matches none.
    """
    return matching(pattern or "*", _makers(Spec(target)), target)


def check(spec: Spec) -> None:
    """Verify that there is the model, without making it.

    Raises:
        UnknownTargetError: There is none.
    """
    _maker(spec)


def subject(spec: Spec) -> Subject:
    """Make the model, and return it as a function to call.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
    """
    maker, asked = _maker(spec), spec.asked
    if not callable(maker):
        return _called(spec, maker, asked)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)  # the same weights and inputs in every process
    parameters = inspect.signature(maker).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    taken = {name: value for name, value in asked.items() if takes_all or name in parameters}
    rest = {name: value for name, value in asked.items() if name not in taken}
    return _called(spec, maker(**taken), rest)


def _maker(spec: Spec) -> Any:
    makers, name = _makers(spec), spec.in_file[2]
    known(name, makers, spec.target.removesuffix(f"[{name}]"))
    return makers[name]


def _makers(spec: Spec) -> dict[str, Any]:
    path, name, _ = spec.in_file
    returned = function.attribute(path, name)()
    pairs = returned.items() if isinstance(returned, Mapping) else returned
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise UnknownTargetError(f"{path}:{name} returned a {type(returned).__name__}: {_FORM}")
    makers: dict[str, Any] = {}
    for each in pairs:
        if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)):
            raise UnknownTargetError(f"{path}:{name} gave {each!r:.80} for a model: {_FORM}")
        if each[0] in makers:
            raise UnknownTargetError(f"{path}:{name} makes two models of the name {each[0]!r}")
        makers[each[0]] = each[1]
    return makers


def _called(spec: Spec, made: Any, rest: Mapping[str, Value]) -> Subject:
    """Turn a maker's product into a function to call.

    Args:
        spec: The specification.
        made: What the maker returned.
        rest: Settings that the maker did not take.
    """
    module = isinstance(made, tuple) and len(made) == 2 and _is_module(made[0])
    left = [name for name in rest if not module or name not in _MODULE_TAKES]
    if left:
        raise UnknownTargetError(
            f"{spec.target} takes no {' and no '.join(left)}: give the function that makes it "
            "such a parameter, or leave that out (batch = [] in a zoo file for no batch)"
        )
    if module:
        return _module(spec, made, rest)
    if spec.train:
        raise UnknownTargetError(
            f"{spec.target} is no module of PyTorch with its inputs, of which a training step "
            "could be made: write the step into the function, and leave train out"
        )
    if not callable(made) or _is_module(made):
        raise UnknownTargetError(
            f"what makes {spec.target} returned a {type(made).__name__}: return a PyTorch module "
            "with its inputs, (module, inputs), or a function without arguments"
        )
    return Subject(made, (), spec.name, "function")


def _module(spec: Spec, made: tuple[Any, Any], rest: Mapping[str, Value]) -> Subject:
    module, inputs = made
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    device = pytorch.device_of(spec) if "device" in rest else None
    precision = spec.precision if "precision" in rest else None
    built = ModelWithInputs(module, given).to(device, pytorch.dtype_of(precision))
    # A function that makes the model has seen to the settings that it takes.
    compiled = spec.compiled if "compiled" in rest else None
    return pytorch.subject_of(replace(spec, compiled=compiled, precision=precision), built)


def _is_module(made: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(made, torch.nn.Module)
