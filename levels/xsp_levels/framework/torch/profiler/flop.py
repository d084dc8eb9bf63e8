"""Computes the operations of operators by formulas that the user registered with PyTorch.

`torch.utils.flop_counter.register_flop_formula` keeps them for the process, so they are asked
when the recording ends. PyTorch's own formulas are left to those who read the trace.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from xsp.text import element_type

UNKNOWN = -1
_COUNTER = "torch.utils.flop_counter"
_NO_TENSORS = frozenset({"", "Scalar", "ScalarList"})


class Formulas:
    """The formulas of some operators.

    Attributes:
        broken: Sentences about formulas that failed.
        names: Operators that have a formula of the user's.
    """

    def __init__(self, operators: Collection[str]) -> None:
        self.broken: dict[str, None] = {}  # an ordered set
        counter = sys.modules.get(_COUNTER)  # else nobody has registered a formula
        self._known = {
            name: (operator, formula)
            for operator, formula in (counter.flop_registry.items() if counter else ())
            if (name := getattr(operator, "_qualified_op_name", "")) in operators
            and getattr(formula, "__module__", None) != _COUNTER
        }
        self.names = frozenset(self._known)
        self._flops: dict[str, int] = {}

    def flops(self, event: Any) -> int:
        """Return the operations of one of Kineto's events; `UNKNOWN` where the formula fails."""
        given = event.dtypes(), event.shapes(), event.concrete_inputs()
        key = event.name() + repr(given)
        if key not in self._flops:
            self._flops[key] = UNKNOWN
            operator, formula = self._known[event.name()]
            try:
                self._flops[key] = _flops(operator, formula, list(zip(*given, strict=True)))
            except Exception as error:  # noqa: BLE001  the formula is the user's
                self.broken[
                    f"the operations of {event.name()} are unknown, because its formula raised "
                    f"{type(error).__name__}: {error}; correct what register_flop_formula was given"
                ] = None
        return self._flops[key]


def _flops(operator: Any, formula: Any, given: Sequence[tuple[str, Any, Any]]) -> int:
    """Return the operations of one call; the formula may need the shape of what comes out."""
    import torch  # noqa: PLC0415

    overloads = [getattr(operator, name) for name in operator.overloads()]
    fitting = [each for each in overloads if len(each._schema.arguments) == len(given)]
    if not fitting or any(dtype == "TensorList" for dtype, _, _ in given):
        return UNKNOWN  # of tensors in a list the profiler tells no shapes
    overload = fitting[0]
    args, kwargs = [], {}
    for argument, (dtype, shape, scalar) in zip(overload._schema.arguments, given, strict=True):
        value = scalar
        if dtype not in _NO_TENSORS:
            value = torch.empty(shape, dtype=getattr(torch, element_type(dtype)), device="meta")
        elif scalar is None and argument.has_default_value():
            value = argument.default_value
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    out = None
    # A mode of the user's would see this call, and so would an implementation with side effects.
    registered = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "Meta")
    if registered and not torch._C._len_torch_dispatch_stack():
        with torch.no_grad(), suppress(RuntimeError, NotImplementedError):  # it may lack a fake
            out = overload(*args, **kwargs)
    return int(formula(*args, **kwargs, out_val=out))
