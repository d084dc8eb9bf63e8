"""Lists the layers inside a Keras layer, with their paths, classes and sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xsp_levels.framework.keras.backend import layer_class

Path = tuple[str, ...]

_BITS = re.compile(r"(\d+)")
_AUTOMATIC = re.compile(r"_\d+$")
_BYTES_OF_BOOL = 1
_BOOKKEEPING = (
    "_layers",
    "_modules",
    "_tracker",
    "_self_",
)  # attributes by which frameworks find layers


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Class and sizes of a layer; sizes include the layers inside.

    Attributes:
        class_name: Its class, such as `Dense`.
        type_name: The class with the name of the module it is from.
        parameter_bytes: Size of its parameters.
        buffer_bytes: Size of its other variables, such as moving means.
    """

    class_name: str
    type_name: str
    parameter_bytes: int
    buffer_bytes: int


def is_layer(value: Any) -> bool:
    """Return whether a value is a layer or a model of Keras's, without importing Keras."""
    cls = layer_class()
    return cls is not None and isinstance(value, cls)


def parts(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers right inside a layer, by names that are unique in it.

    The layers of a functional or sequential model, and of Keras's own layers, have the names that
    Keras gives them; others that of the attribute that holds them, `blocks.0` in a list.
    """
    inside: dict[int, Any] = {id(part): part for part in getattr(layer, "_layers", ())}
    for part in _listed(layer):
        inside.setdefault(id(part), part)
    # Whether the names that Keras gave to the layers inside say more than attributes.
    names = str(type(layer).__module__).startswith("keras.")
    named = set(map(id, inside.values() if names else _listed(layer)))
    attributes = dict(_attributes(layer, inside)) if len(named) < len(inside) else {}
    taken: set[str] = set()
    for key, part in inside.items():
        name = attributes.get(key, part.name) if key not in named else part.name
        if name not in taken:
            taken.add(name)
            yield name, part


def layers(root: Any) -> Iterator[tuple[Any, Path]]:
    """Yield every layer inside `root` and its path, outer ones first; `root` has an empty path.

    A layer that is found in several places has the path of the place found first.
    """
    found = {id(root)}
    queue: list[tuple[Any, Path]] = [(root, ())]
    for layer, path in queue:  # grows while it is read
        yield layer, path
        for name, part in parts(layer):
            if id(part) not in found:
                found.add(id(part))
                queue.append((part, (*path, name)))


def paths(root: Any) -> dict[int, Path]:
    """Return the path of every layer inside `root` by its id."""
    return {id(layer): path for layer, path in layers(root)}


def root_name(layer: Any) -> str:
    """Return the name of a model for people: the name that the user gave it, or its class."""
    plain, name = type(layer).__name__, str(getattr(layer, "name", ""))
    named = _AUTOMATIC.sub("", name).replace("_", "") != plain.lower()
    # A class of the user's says more than a name that Keras made; `Functional` says nothing.
    return name if named and name and str(type(layer).__module__).startswith("keras.") else plain


def own_variables(layer: Any) -> list[Any]:
    """Return the variables that a layer holds itself, without those of the layers inside."""
    return [*getattr(layer, "_trainable_variables", ()), *layer._non_trainable_variables]


def facts(layer: Any, known: dict[int, tuple[Any, Any]]) -> LayerFacts:
    """Return class and sizes of a layer.

    Args:
        layer: The layer.
        known: The variables of layers that were asked for before, by the layers' ids.
    """
    parameters, buffers = _variables(layer, known)
    kind = type(layer)
    return LayerFacts(
        class_name=kind.__name__,
        type_name=f"{kind.__module__}.{kind.__qualname__}",
        parameter_bytes=sum(map(_bytes, parameters.values())),
        buffer_bytes=sum(map(_bytes, buffers.values())),
    )


def _listed(layer: Any) -> list[Any]:
    """Return the layers of a functional or sequential model, in their order."""
    if not hasattr(layer, "_functional") and not hasattr(layer, "_operations_by_depth"):
        return []
    return list(layer.layers)


def _attributes(layer: Any, inside: Mapping[int, Any]) -> Iterator[tuple[int, str]]:
    """Yield id and attribute of layers; of several attributes the first one comes last."""
    # On PyTorch layers are modules, which keep attributes that are modules in a place of their own.
    attributes = {**vars(layer), **vars(layer).get("_modules", {})}
    held = [item for item in attributes.items() if not item[0].startswith(_BOOKKEEPING)]
    for name, value in reversed(held):
        for where, item in _items(name, value):
            if id(item) in inside:
                yield id(item), where


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _items(f"{name}.{number}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _items(f"{name}.{key}", item)
    else:
        yield name, value


def _variables(layer: Any, known: dict[int, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return parameters and other variables by id, each once, of a layer and those inside."""
    if id(layer) not in known:
        own = tuple(
            {id(variable): variable for variable in getattr(layer, name, ())}
            for name in ("_trainable_variables", "_non_trainable_variables")
        )
        known[id(layer)] = (own[0], own[1])
        for part in getattr(layer, "_layers", ()):
            for mine, inner in zip(own, _variables(part, known), strict=True):
                mine.update(inner)
    return known[id(layer)]


def _bytes(variable: Any) -> int:
    shape, bits = getattr(variable, "shape", None), _BITS.search(str(variable.dtype))
    if shape is None or any(size is None for size in shape):  # not built yet
        return 0
    size = int(bits[1]) // 8 if bits else _BYTES_OF_BOOL
    return math.prod(int(length) for length in shape) * size
