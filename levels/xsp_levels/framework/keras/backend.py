"""Tells executed calls of Keras layers from traced ones, on the back end that Keras uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Backend:
    """A test and classes that tell executed calls of layers from calls that trace or describe.

    Attributes:
        executing: Returns whether operators run when they are called on this thread, and are not
            put into a graph.
        tensor: The class of most results of executed calls.
        symbolic: The class of results that stand for shapes and types only.
    """

    executing: Callable[[], bool]
    tensor: type
    symbolic: type

    def is_symbolic(self, value: Any) -> bool:
        """Return whether anything in results or arguments stands for shapes only."""
        if isinstance(value, self.symbolic):
            return True
        items: Iterable[Any] = ()
        if isinstance(value, (tuple, list)):
            items = value
        elif isinstance(value, Mapping):
            items = value.values()
        return any(self.is_symbolic(item) for item in items)


def backend() -> Backend | None:
    """Return the `Backend` of the back end that Keras uses.

    None where the program has not imported Keras, or where the back end's own provider records
    the layers: on PyTorch they are modules.
    """
    keras, layer = sys.modules.get("keras"), sys.modules.get("keras.src.layers.layer")
    if keras is None or layer is None or not hasattr(keras, "KerasTensor"):
        return None
    name = keras.backend.backend()
    if name == "tensorflow":
        context = sys.modules["tensorflow.python.eager.context"]
        tensor = sys.modules["tensorflow.python.framework.ops"].EagerTensor
        return Backend(context.executing_eagerly, tensor, keras.KerasTensor)
    if name == "jax":
        core, array = sys.modules["jax._src.core"], sys.modules["jax._src.array"]
        return Backend(core.trace_state_clean, array.ArrayImpl, keras.KerasTensor)
    return None


def backend_name() -> str:
    """Return the name of the back end that Keras runs on; empty while Keras is not imported."""
    keras: Any = sys.modules.get("keras")
    known: Any = getattr(keras, "backend", None)
    return str(known.backend()) if hasattr(known, "backend") else ""


def describing() -> bool:
    """Return whether Keras calls layers on this thread only to learn shapes and types."""
    scope = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return scope is not None and bool(scope.in_symbolic_scope())


def layer_class() -> type | None:
    """Return `keras.layers.Layer`; None where the program has not imported Keras."""
    module = sys.modules.get("keras.src.layers.layer")
    found: type | None = getattr(module, "Layer", None)
    return found
