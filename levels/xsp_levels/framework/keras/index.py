"""Finds the Keras layers around an operator of a graph by the operator's scopes.

While a graph is traced Keras opens a scope with the name of each layer, inside that of the layer
around. TensorFlow makes the names unique by a number at the end (`dense_1` for the layer `dense`,
and `dense_1_2` for `dense_1`), JAX does not.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xsp_levels.framework.keras.backend import layer_class
from xsp_levels.framework.keras.layer_tree import LayerFacts, Path, facts, parts, root_name

_NUMBERED = re.compile(r"(.+)_\d+$")

# What `gc` found last, and for which state of the program.
_last: list[tuple[object, LayerIndex]] = []


@dataclass(frozen=True, slots=True)
class IndexedLayer:
    """One layer of the program.

    Attributes:
        scope: Names by which Keras calls the layers from the outermost one to this one.
        path: Names that the rows have of the same layers.
        facts: Class and sizes.
    """

    scope: Path
    path: Path
    facts: LayerFacts


@dataclass(frozen=True)
class LayerIndex:
    """The layers of a program, by their scopes.

    Attributes:
        layers: The layers, outer ones before those inside.
        unique: Whether names of scopes are made unique by a number at their end.
    """

    layers: tuple[IndexedLayer, ...] = field(default=())
    unique: bool = True

    def path(self, name: str) -> Path:
        """Return the layers around an operator, outermost first, as parts of their path.

        Scopes that are no layer's are skipped: those of the user, of gradients, of functions.

        Args:
            name: Name of the operator with its scopes: `net_1/dense_1/MatMul`.
        """
        return self._path(tuple(name.split("/")[:-1]))

    def describe(self, path: Path) -> Mapping[str, Any] | None:
        """Return the attributes of a layer by the path that `path` returned; None if unknown."""
        layer = self._by_path.get(tuple(path))
        if layer is None:
            return None
        return {
            "framework": "keras",
            "module_path": ".".join(layer.path[1:]),
            "module_class": layer.facts.class_name,
            "module_type": layer.facts.type_name,
            "parameter_bytes": layer.facts.parameter_bytes,
            "buffer_bytes": layer.facts.buffer_bytes,
        }

    def _path(self, scopes: Path) -> Path:
        known, inside = self._by_scope, self._inside
        at: Path = ()
        for scope in scopes:
            name = self._name(scope, inside.get(at, frozenset()))
            if name is not None:
                at = (*at, name)
            elif not at:
                name = self._name(scope, frozenset(self._lone))
                at = () if name is None else self._lone[name]
        return known[at].path if at else ()

    def _name(self, scope: str, names: frozenset[str]) -> str | None:
        numbered = _NUMBERED.match(scope)
        if self.unique and numbered and numbered[1] in names:
            return numbered[1]
        return scope if scope in names else None

    @functools.cached_property
    def _by_scope(self) -> dict[Path, IndexedLayer]:
        return {layer.scope: layer for layer in self.layers}

    @functools.cached_property
    def _by_path(self) -> dict[Path, IndexedLayer]:
        return {layer.path: layer for layer in self.layers}

    @functools.cached_property
    def _lone(self) -> dict[str, Path]:
        """The scopes of layers right inside a model, by their names, where one model has it.

        A model that is asked for its results without being called (`stateless_call`, by which Keras
        predicts and trains on JAX) opens no scope of its own.
        """
        found = [layer.scope for layer in self.layers if len(layer.scope) == 2]
        names = Counter(scope[1] for scope in found)
        return {scope[1]: scope for scope in found if names[scope[1]] == 1}

    @functools.cached_property
    def _inside(self) -> dict[Path, frozenset[str]]:
        found: dict[Path, set[str]] = {}
        for layer in self.layers:
            found.setdefault(layer.scope[:-1], set()).add(layer.scope[-1])
        return {scope: frozenset(names) for scope, names in found.items()}


def layer_index() -> LayerIndex:
    """Return the layers of all models that are alive; none while Keras is not imported.

    Looking takes some ten milliseconds, so what was found is kept until Keras has named something
    anew, as it does when layers are made or built.
    """
    cls = layer_class()
    if cls is None:
        return LayerIndex()
    # What changes whenever Keras names something.
    names = sys.modules["keras.src.backend.common.global_state"]
    counts = names.get_global_attribute("object_name_uids", {})
    state = tuple(sorted((str(prefix), count) for prefix, count in counts.items()))
    if not _last or _last[0][0] != state:
        # The type alone: objects that load a library when they are asked for their class stay
        # asleep.
        layers = [each for each in gc.get_objects() if issubclass(type(each), cls)]
        inside = {id(part) for layer in layers for _, part in parts(layer)}
        # Models inside of sequential ones are their graphs, and share their layers.
        inside |= {id(getattr(layer, "_functional", None)) for layer in layers}
        known: dict[int, Any] = {}
        found: dict[Path, IndexedLayer] = {}
        for root in layers:
            if id(root) not in inside:
                for layer in _tree(root, known):
                    found.setdefault(layer.scope, layer)
        backend = sys.modules["keras"].backend.backend()
        index = LayerIndex(tuple(found.values()), unique=backend == "tensorflow")
        _last[:] = [(state, index)]
    return _last[0][1]


def _tree(root: Any, known: dict[int, Any]) -> Iterator[IndexedLayer]:
    """Yield a layer and those inside; one that is shared by several layers, in each of them."""
    name = root_name(root)
    queue: list[tuple[Any, Path, Path, frozenset[int]]] = [
        (root, (str(root.name),), (name,), frozenset())
    ]
    for layer, scope, path, around in queue:  # outer layers first: it grows while it is read
        yield IndexedLayer(scope, path, facts(layer, known))
        within = around | {id(layer)}
        for part_name, part in parts(layer):
            if id(part) not in within:
                queue.append((part, (*scope, str(part.name)), (*path, part_name), within))
