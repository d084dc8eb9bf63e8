"""Nodes of a model in; the layers around each of them, and what is known of a layer, out.

PyTorch's exporters write where a node comes from: the older one into its name,
`/layer1/layer1.0/conv1/Conv`, the newer one into its metadata.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xsp_levels.framework.onnxruntime.fusion import origins
from xsp_levels.framework.onnxruntime.graph import Graph, Node, Weight

Path = tuple[str, ...]

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """Where a node that runs comes from.

    Attributes:
        layers: Names of the layers around the node, outermost first.
        fused_layers: Paths of the other layers whose nodes were fused into the node.
        sources: Operators of the model that the node stands for, where there are several.
        weights: Of each input the weight that it is; None where the input is computed.
    """

    layers: Path = ()
    fused_layers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    weights: tuple[Weight | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """What is known of a layer; null where the exporter did not write it.

    Attributes:
        path: Names of the layers around it, and its own.
        module_class: Class of the module.
        parameter_bytes: Size of the weights of all nodes in the layer.
    """

    path: Path
    module_class: str | None
    parameter_bytes: int


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a model.

    Attributes:
        nodes: Where each node comes from, by its name.
        layers: All layers.
    """

    nodes: dict[str, NodeOrigin] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()


def find_layers(model: Graph, optimised: Graph | None) -> Layers:
    """Return the layers of a model, and those of each node that ONNX Runtime runs.

    Args:
        model: The graph of the model.
        optimised: The graph that is run; None where it is not known, and the names of nodes are
            taken to be the model's.
    """
    run = model if optimised is None else optimised
    if optimised is None:
        found = {node.name: (node,) for node in model.nodes}
    else:
        found = origins(model, optimised)
    nodes = {
        node.name: _origin(found.get(node.name, ()), node, run.weights)
        for node in run.nodes
        if node.name
    }
    return Layers(nodes, tuple(_layers(model)))


def described(layers: Iterable[Layer]) -> Mapping[Path, Mapping[str, Any]]:
    """Return attributes of layers, by their paths."""
    return {
        layer.path: {
            "framework": "onnxruntime",
            "module_path": ".".join(layer.path),
            "module_class": layer.module_class,
            "parameter_bytes": layer.parameter_bytes,
        }
        for layer in layers
    }


def layer_path(node: Node) -> Path:
    """Return the names of the layers around a node, outermost first.

    >>> layer_path(Node("/layer1/layer1.0/conv1/Conv", "Conv", (), ()))
    ('layer1', '0', 'conv1')
    """
    if _SCOPES in node.metadata:
        scopes = _listed(node.metadata[_SCOPES])[:-1]  # the last one is the operator
        return _relative([scope for scope in scopes if scope])
    parts = [part for part in node.name.split("/")[:-1] if part]
    return tuple(
        part.removeprefix(f"{before}.") for before, part in zip(["", *parts], parts, strict=False)
    )


def _relative(dotted: list[str]) -> Path:
    return tuple(
        path.removeprefix(f"{before}.") for before, path in zip(["", *dotted], dotted, strict=False)
    )


def _listed(text: str) -> list[str]:
    """Return what the exporter wrote as a list of texts; nothing if it is none."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []


def _origin(sources: tuple[Node, ...], node: Node, weights: Mapping[str, Weight]) -> NodeOrigin:
    own, *others = list(dict.fromkeys(layer_path(each) for each in sources)) or [()]
    fused = [".".join(path) for path in others if path != own[: len(path)]]
    operators = tuple(each.op_type for each in sources) if len(sources) > 1 else ()
    inputs = tuple(weights.get(value) for value in node.inputs if value)
    return NodeOrigin(own, tuple(fused), operators, inputs)


def _layers(model: Graph) -> Iterable[Layer]:
    weights: dict[Path, set[str]] = {}
    classes: dict[Path, str] = {}
    owners = _parameters(model)
    for node in model.nodes:
        path = layer_path(node)
        for depth in range(1, len(path) + 1):
            weights.setdefault(path[:depth], set()).update(
                owners[value] for value in node.inputs if value in owners
            )
        classes |= _classes(node, path)
    for path, names in weights.items():
        size = sum(model.weights[name].nbytes for name in names)
        yield Layer(path, classes.get(path), size)


def _parameters(model: Graph) -> dict[str, str]:
    """Return the initializer of each value that is one, or the same as one."""
    found = {name: name for name in model.weights}
    for node in model.nodes:
        if node.op_type == "Identity" and node.inputs[:1] and node.inputs[0] in found:
            found |= dict.fromkeys(node.outputs, found[node.inputs[0]])
    return found


def _classes(node: Node, path: Path) -> dict[Path, str]:
    """Return the classes of the layers around a node, as far as its metadata tells."""
    named = _listed(node.metadata.get(_CLASSES, ""))[:-1]
    inner = named[len(named) - len(path) :] if len(named) >= len(path) else []
    return {
        path[: depth + 1]: name.rpartition(".")[2]
        for depth, name in enumerate(inner)
        if name.rpartition(".")[2]
    }
