"""Logs the outermost calls of Keras's layers in a program; on PyTorch they are modules.

The code of `keras.layers.Layer.__call__` is swapped (`entry_point`). A call that only traces a
graph, or describes shapes, is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from xsp.provider import CallFacts, Inputs, ModelCall, State
from xsp_levels.framework.keras.backend import backend
from xsp_levels.framework.keras.entry_point import CallEntryPoint, call_entry_point
from xsp_levels.framework.keras.layer_tree import root_name
from xsp_levels.framework.keras.shape import UNKNOWN, shape_of, tensors
from xsp_levels.framework.owner import Owners

# Makes and logs a call: number of its facts, the function, its arguments.
Make = Callable[[int, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_PLAIN = (bool, int, float, str)


def _divert(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Layer.__call__`; `CallEntryPoint.code` puts objects in the strings' place."""
    local: Any = "xsp:local"
    inner: Any = "xsp:inner"
    handler: Any = "xsp:handler"
    if local.inside is not None:
        return inner(self, *args, **kwargs)
    return handler(self, args, kwargs)


class KerasCalls:
    """Logs calls of layers that lie in no other call, from `resume` to `suspend`.

    Args:
        log: The log of the program.
        owners: Numbers and names of models.
        make: Makes and logs a call.
        taped: Returns whether gradients can be computed of what is called now.
    """

    def __init__(self, log: Any, owners: Owners, make: Make, taped: Callable[[], bool]) -> None:
        self._log: Any = log
        self._owners: Any = owners
        self._make: Any = make
        self._taped: Any = taped
        self._entry: CallEntryPoint | None = None
        self._backend: Any = None
        self._code: CodeType | None = None

    def resume(self) -> None:
        """Put the hook in place, if the program has imported Keras."""
        self._backend = backend()
        entry = self._entry = call_entry_point() if self._backend is not None else None
        if entry is None:
            return
        if self._code is None:
            constants = {
                "xsp:local": self._log.local,
                "xsp:inner": entry.inner,
                "xsp:handler": self._outermost,
            }
            self._code = entry.code(_divert, constants)
        entry.watch(self._code)

    def suspend(self) -> None:
        """Take the hook out."""
        if self._entry is not None:
            self._entry.watch(None)
            self._entry = None

    def end(self) -> None:
        """Take the hook out for good, and let go of everything.

        Nothing finds a cycle through a code object, and TensorFlow's graphs keep the code that was
        running when they were traced.
        """
        self.suspend()
        self._log = self._code = self._owners = self._make = self._taped = self._backend = None

    def _outermost(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        log, known, entry = self._log, self._backend, self._entry
        if entry is None:  # taken out meanwhile, by another thread
            return layer(*args, **kwargs)
        if log is None or not known.executing() or known.is_symbolic((args, kwargs)):
            return entry.inner(layer, *args, **kwargs)
        number = self._number(layer, args, kwargs)
        if log.keeping:
            log.keep(number, KerasCall.of(entry.bound(layer), args, kwargs))
        return self._make(number, entry.inner, (layer, *args), kwargs)

    def _number(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        owner = self._owners.of(layer, root_name(layer))
        taped, training = self._taped(), bool(kwargs.get("training"))
        inputs = inputs_of(args, kwargs)
        told = plain_arguments(args, {n: v for n, v in kwargs.items() if n != "training"})
        has_weights = bool(layer.variables)

        def facts() -> CallFacts:
            return CallFacts(
                owner.name,
                owner.number,
                gradients=taped and bool(layer.trainable_variables or not layer.built),
                training=training,
                inputs=inputs,
                arguments=told,
                settings=("layer by layer",),
                passed_over=layer.built and not has_weights,
            )

        number: int = self._log.call_number(
            (owner.number, has_weights, taped, training, inputs, told), facts
        )
        return number


class KerasCall(ModelCall):
    """A call of a model of Keras's, layer by layer."""

    __slots__ = ()

    @classmethod
    def of(cls, function: Any, args: tuple[Any, ...], kwargs: Any) -> KerasCall:
        """Return a call of a layer, or of what makes its call."""
        layer = getattr(function, "__self__", function)
        return cls(function, args, kwargs, subject=root_name(layer))

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating may be tried."""
        if self.kwargs.get("training"):
            return (
                f"{self.subject} was called with training=True, where a call may change its state"
            )
        return None

    def model(self) -> Any:
        """Return the layer."""
        return getattr(self.function, "__self__", self.function)

    def states(self) -> Iterator[State]:
        """Yield the variables that training does not change, and the seeds of operators."""
        for variable in self.model().non_trainable_variables:
            name = f"the variable {variable.path}"
            yield State(name, partial(_numbers, variable), variable.assign)
        context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
        seeds = getattr(context, "_rng", None)
        if seeds is not None:
            yield State("random numbers", seeds.getstate, seeds.setstate)


def _numbers(variable: Any) -> Any:
    """Return a copy of a variable's numbers: TensorFlow's own array is written to in place."""
    return np.array(variable.numpy())


def inputs_of(args: tuple[Any, ...], kwargs: Any) -> Inputs:
    """Return shape and type of the tensors among arguments, in plain containers as well.

    Of an iterator those of its elements. Nothing for arguments that cannot be looked at, or whose
    sizes are known to the graph alone.
    """
    try:
        given = (*(getattr(value, "element_spec", value) for value in args), kwargs)
        found = [shape_of(tensor) for tensor in tensors(given)]
    except Exception:  # noqa: BLE001  the user's own objects may raise anything
        return ()
    return tuple((size, dtype) for size, dtype in found if UNKNOWN not in size)


def plain_arguments(args: tuple[Any, ...], kwargs: Any) -> tuple[str, ...]:
    """Return the plain values among arguments, by which calls are told apart: `steps=9`."""
    told = [repr(value) for value in args if isinstance(value, _PLAIN)]
    return (*told, *(f"{name}={v!r}" for name, v in kwargs.items() if isinstance(v, _PLAIN)))
