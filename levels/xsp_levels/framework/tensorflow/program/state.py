"""Variables and models of TensorFlow's in; what they were, and the way back, out.

A variable's value is a tensor, which nothing can change: writing to the variable gives it another
one, or copies first. So keeping a value costs memory only once the variable is written to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from xsp.provider import Kept, Role
from xsp_levels.framework.keras.backend import layer_class
from xsp_levels.framework.tensorflow.program.call import is_function
from xsp_levels.framework.tensorflow.program.effect import concrete_functions

# Modules of the libraries' own objects, large and no state of a model: graphs, caches, data.
_CLOSED = ("tensorflow.", "keras.src.")
_KERAS_BACK_ENDS = "keras.src.backend"
# What of theirs holds state, or holds what does.
_OPEN = (
    "keras.src.layers.",
    "keras.src.metrics.",
    "keras.src.models.",
    "keras.src.random.seed_generator",
    "keras.src.utils.tracking",
    "tensorflow.python.saved_model.load",
)


def role(cls: type) -> Role | None:
    """Return what the objects of a class are to a call, without importing TensorFlow."""
    if "tensorflow" not in sys.modules:
        return None
    if issubclass(cls, _variables()):
        return Role.VALUE
    layer = layer_class()
    if (layer is not None and issubclass(cls, layer)) or is_function_class(cls):
        return Role.MODEL
    module = str(cls.__module__)
    if module.startswith(_KERAS_BACK_ENDS) and _keras_is_on_torch():
        return None  # variables that wrap tensors of PyTorch's, whose provider knows these
    if module.startswith(_CLOSED) and not module.startswith(_OPEN):
        return Role.CLOSED
    return Role.MODEL if issubclass(cls, _modules()) else None


def keep(value: Any, room_bytes: int) -> Kept:
    """Return what a variable, or a generator of random numbers, is now."""
    variable = _variable(value)
    if type(variable).__module__.startswith("jax"):
        return KeptReference(value)
    return KeptVariable(variable, room_bytes)


def parts(model: Any) -> Iterable[tuple[str, Any]]:
    """Yield the variables that the graphs of a `tf.function` use."""
    if not is_function(model):
        return
    found = {
        id(variable): variable
        for trace in concrete_functions(model)
        for variable in trace.variables
    }
    for variable in found.values():
        yield str(variable.name), variable


def keep_random() -> Callable[[], None]:
    """Return a function that puts the random numbers of TensorFlow and Keras back."""
    put = [_keep_seeds(), *(kept.put_back for kept in map(_kept, _generators()) if kept)]

    def put_back() -> None:
        for each in put:
            each()

    return put_back


class KeptReference:
    """What a variable of Keras on JAX was, whose arrays do not change but are replaced.

    Args:
        variable: The variable.
    """

    nbytes = 0

    def __init__(self, variable: Any) -> None:
        self._variable, self._held = variable, variable._value
        self.trained = bool(variable.trainable)

    def changed(self) -> bool:
        """Return whether the variable was given another array."""
        return self._variable._value is not self._held

    def obstacle(self) -> str:
        """Return why the variable cannot be put back; empty if it can."""
        return "which is a parameter" if self.trained and self.changed() else ""

    def put_back(self) -> None:
        """Give the variable the array that it had."""
        if not self.trained:
            self._variable._value = self._held


class KeptVariable:
    """What a variable was.

    Args:
        variable: A `tf.Variable`.
        room_bytes: How large a copy may be; a trained variable is not put back between calls.
    """

    def __init__(self, variable: Any, room_bytes: int) -> None:
        self._variable = variable
        self.trained = bool(variable.trainable)
        self._readable = _is_readable(variable)
        self._held: Any = variable.read_value() if self._readable else None
        size = _array(self._held).nbytes if self._readable else 0
        self._fits = self.trained or size <= room_bytes
        self.nbytes = size if self._fits and not self.trained else 0
        self._size = size

    def changed(self) -> bool:
        """Return whether the variable was written to."""
        if not self._readable:
            return False
        now, held = _array(self._variable.read_value()), _array(self._held)
        if now.shape != held.shape:
            return True
        same = now.__array_interface__["data"] == held.__array_interface__["data"]
        return not (same or now.tobytes() == held.tobytes())

    def obstacle(self) -> str:
        """Return why the variable cannot be put back; empty if it can."""
        if self.trained:
            return "which is a parameter" if self.changed() else ""
        if not self._fits:
            return f"whose {self._size / 1e9:.2g} GB are too many to keep a copy of"
        return ""

    def put_back(self) -> None:
        """Give the variable the value that it had."""
        if self._readable and self._fits:
            self._variable.assign(self._held, read_value=False)


def is_function_class(cls: type) -> bool:
    """Return whether the objects of a class are `tf.function`s, without importing TensorFlow."""
    name = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    function = getattr(sys.modules.get(name), "Function", None)
    return function is not None and issubclass(cls, function)


def _variables() -> tuple[type, ...]:
    """Return the classes whose objects hold numbers: variables, and what wraps one."""
    places = [
        ("tensorflow.python.ops.variables", "Variable"),
        ("tensorflow.python.ops.stateful_random_ops", "Generator"),
    ]
    if not _keras_is_on_torch():
        places.append(("keras.src.backend.common.variables", "Variable"))
    return _classes(places)


def _modules() -> tuple[type, ...]:
    """Return the classes of what holds variables: modules, and what was read from a file."""
    places = (
        ("tensorflow.python.module.module", "Module"),
        ("tensorflow.python.trackable.autotrackable", "AutoTrackable"),
    )
    return _classes(places)


def _keras_is_on_torch() -> bool:
    back_end: Any = getattr(sys.modules.get("keras"), "backend", None)
    return back_end is not None and back_end.backend() == "torch"


def _classes(places: Iterable[tuple[str, str]]) -> tuple[type, ...]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in places)
    return tuple(cls for cls in found if cls is not None)


def _variable(value: Any) -> Any:
    """Return the `tf.Variable` that a generator, or a variable of Keras's, keeps its numbers in."""
    state = getattr(value, "_state_var", None)
    return state if state is not None else getattr(value, "_value", value)


def _is_readable(variable: Any) -> bool:
    """Return whether a variable has a value that Python can see: not in a graph of a session."""
    context: Any = sys.modules["tensorflow.python.eager.context"]
    if not context.executing_eagerly() or getattr(variable, "_in_graph_mode", True):
        return False
    return bool(variable.is_initialized())


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.numpy())


def _generators() -> list[Any]:
    """Return the generators of the process, as far as there are any."""
    random = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    names = sys.modules.get("keras.src.backend.common.global_state")
    found = [getattr(random, "global_generator", None)]
    if names is not None and sys.modules["keras"].backend.backend() == "tensorflow":
        seeds = names.get_global_attribute("global_seed_generator")
        found.append(getattr(seeds, "state", None))
    return [each for each in found if each is not None]


def _kept(generator: Any) -> KeptVariable | None:
    variable = _variable(generator)
    return KeptVariable(variable, sys.maxsize) if _is_readable(variable) else None


def _keep_seeds() -> Callable[[], None]:
    """Return a function that puts back what gives seeds to the operators that draw numbers."""
    context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    seeds = getattr(context, "_rng", None)
    if seeds is None:
        return lambda: None
    state = seeds.getstate()
    return lambda: seeds.setstate(state)
