"""Finds the layers around each node of a model, and describes the layers.

PyTorch's exporters write where a node comes from: the older one into its name,
`/layer1/layer1.0/conv1/Conv`, the newer one into its metadata.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xsp_levels.framework.onnxruntime.graph import Graph, Node, Weight

Path = tuple[str, ...]

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """Origin of a node in the model: its path and layers.

    Attributes:
        layers: Names of the layers around the node, outermost first.
        fused_layers: Paths of the other layers whose nodes were fused into the node.
        sources: Operators of the model that the node stands for, where there are several.
        weights: Of each input the weight that it is; None where the input is computed.
        inputs: Names of the nodes whose outputs the node takes; None where that is not known.
    """

    layers: Path = ()
    fused_layers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    weights: tuple[Weight | None, ...] = ()
    inputs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model; its class is None where the exporter did not write the class.

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


def find_layers(model: Graph, optimized: Graph | None) -> Layers:
    """Return the layers of a model, and those of each node that ONNX Runtime runs.

    Args:
        model: The graph of the model.
        optimized: The graph that is run; None where it is not known, and the names of nodes are
            taken to be the model's.
    """
    run = model if optimized is None else optimized
    found: dict[str, tuple[Node, ...]]
    if optimized is None:
        found = {node.name: (node,) for node in model.nodes}
    else:
        found = origins(model, optimized)
    made_by = {value: node.name for node in run.nodes for value in node.outputs if value}
    nodes = {
        node.name: _origin(found.get(node.name, ()), node, run.weights, made_by)
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
        dotted = [scope for scope in scopes if scope]
        return tuple(
            path.removeprefix(f"{before}.")
            for before, path in zip(["", *dotted], dotted, strict=False)
        )
    parts = [part for part in node.name.split("/")[:-1] if part]
    return tuple(
        part.removeprefix(f"{before}.") for before, part in zip(["", *parts], parts, strict=False)
    )


def _listed(text: str) -> list[str]:
    """Read a list of texts that the exporter wrote; empty if it is none."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []


def _origin(
    sources: tuple[Node, ...],
    node: Node,
    weights: Mapping[str, Weight],
    made_by: Mapping[str, str],
) -> NodeOrigin:
    own, *others = list(dict.fromkeys(layer_path(each) for each in sources)) or [()]
    fused = [".".join(path) for path in others if path != own[: len(path)]]
    operators = tuple(each.op_type for each in sources) if len(sources) > 1 else ()
    given = tuple(weights.get(value) for value in node.inputs if value)
    inputs = tuple(dict.fromkeys(made_by[value] for value in node.inputs if value in made_by))
    return NodeOrigin(own, tuple(fused), operators, given, inputs)


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


# Finds the model's nodes that each node of ONNX Runtime's optimized graph came from.

_BLOCKED = "_nchwc"  # ends names of nodes that compute the value of the name before in blocks
_REORDER = "Reorder"  # begins operators that change the memory format and nothing else
_INPUTS_OF_CONV = 3  # more: it adds what else is put in
_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid")
_SIZES = ("Shape", "Size")  # operators that depend on the sizes of what is put in, and no number


def origins(model: Graph, optimized: Graph) -> dict[str, tuple[Node, ...]]:
    """Return the nodes of the model that each node came from, by the name of the latter.

    Nodes that only depend on weights are left out where others are found: they were computed
    when the session was made. First comes the node that says most of what the new node is.

    >>> conv = Node("conv", "Conv", ("x", "w"), ("c",))
    >>> relu = Node("act", "Relu", ("c",), ("y",))
    >>> fused = Node("y_nchwc", "Conv", ("x", "w"), ("y",))
    >>> found = origins(Graph([conv, relu], {"x"}), Graph([fused], {"x"}))
    >>> [node.name for node in found["y_nchwc"]]
    ['conv', 'act']
    """
    producers = {
        value: at for at, node in enumerate(model.nodes) for value in node.outputs if value
    }
    known = _known_values(model, optimized.nodes, producers)
    alive = {*known.values(), *model.inputs}
    found: dict[str, list[int]] = {}
    made = {value: node for node in optimized.nodes for value in node.outputs}
    shared = set()
    for node in optimized.nodes:
        ends = [known[value] for value in node.outputs if value in known]
        found[node.name] = _between(model.nodes, producers, ends, alive)
        if _reorders(node) and made.keys() & set(node.inputs[:1]):
            found[node.name] = found.get(made[node.inputs[0]].name, [])
        if _reorders(node) or not made.keys() & set(node.inputs) <= known.keys():
            shared.add(node.name)
    shared |= _name_the_rest(model, optimized.nodes, found)
    dynamic = _dynamic(model)
    return {
        node.name: tuple(_by_weight(node, model.nodes, found[node.name], dynamic))[
            : 1 if node.name in shared else None
        ]
        for node in optimized.nodes
        if found[node.name]
    }


def _known_values(
    model: Graph, nodes: Iterable[Node], producers: Mapping[str, int]
) -> dict[str, str]:
    """Return the name in the model of each value that the model has as well."""
    users: dict[str, list[Node]] = {}
    for node in model.nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    known = {
        value: value
        for node in nodes
        for value in node.outputs
        if value in producers and not _reorders(node)
    }
    for node in nodes:
        value, named = "".join(node.outputs[:1]), node.name.split(_BLOCKED)[0]
        if not value or value in known:
            continue
        if _BLOCKED in node.name and named in producers:
            summed = len(node.inputs) > _INPUTS_OF_CONV
            known[value] = _after_sum(named, users, known) if summed else named
        elif _reorders(node):
            before = "".join(node.inputs[:1])
            same = value if value in producers else known.get(before, before)
            known |= {value: same} if same in producers or same in model.inputs else {}
    return known


def _reorders(node: Node) -> bool:
    return node.op_type.startswith(_REORDER)


def _after_sum(value: str, users: Mapping[str, list[Node]], known: Mapping[str, str]) -> str:
    """Follow a value through the sum, and the activation behind, that are computed with it.

    Such a node keeps the name that it had before these were fused into it.
    """
    for operators in (("Add", "Sum"), _ACTIVATIONS):
        using = users.get(value, [])
        if len(using) == 1 and using[0].op_type in operators and using[0].outputs[0] not in known:
            value = using[0].outputs[0]
    return value


def _between(
    nodes: Sequence[Node], producers: Mapping[str, int], ends: Sequence[str], alive: set[str]
) -> list[int]:
    """Return places of nodes from some values back to others that are alive."""
    found: set[int] = set()
    waiting = [producers[value] for value in ends if value in producers]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            before = (value for value in nodes[at].inputs if value not in alive)
            waiting += [producers[value] for value in before if value in producers]
    return sorted(found)


def _dynamic(model: Graph) -> set[int]:
    """Return places of the nodes that depend on the numbers that are put in."""
    values, found = set(model.inputs), set()
    for at, node in enumerate(model.nodes):
        if node.op_type not in _SIZES and not values.isdisjoint(node.inputs):
            values.update(node.outputs)
            found.add(at)
    return found


def _name_the_rest(model: Graph, nodes: Sequence[Node], found: dict[str, list[int]]) -> set[str]:
    """Find nodes without a known value by their names, else by what uses their values.

    Returns:
        Names of the nodes that stand for one node of the model among others, at most.
    """
    places = {node.name: at for at, node in enumerate(model.nodes) if node.name}
    users = {value: node for node in reversed(nodes) for value in node.inputs if value}
    rest = [node for node in reversed(nodes) if not found[node.name]]
    for node in rest:
        name = node.name
        while name and name not in places:
            name = name.rpartition("/")[0]
        using = [users[value].name for value in node.outputs if value in users]
        found[node.name] = [places[name]] if name else found[using[0]] if using else []
    return {node.name for node in rest}


def _by_weight(
    node: Node, nodes: Sequence[Node], places: Sequence[int], dynamic: set[int]
) -> list[Node]:
    """Return the nodes at some places, the one whose operator the new operator names first."""
    chosen = [nodes[at] for at in places if at in dynamic] or [nodes[at] for at in places]
    named = [each for each in chosen if each.op_type in node.op_type]
    return sorted(chosen, key=lambda each: each not in named[:1])
