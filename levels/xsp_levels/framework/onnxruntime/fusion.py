"""The graph of a model and the graph that ONNX Runtime runs in; nodes that each came from, out.

Optimising replaces nodes by others: `Conv`, `Add` and `Relu` by one `Conv` in another memory
format, with a name such as `r0_nchwc`. Values that are in both graphs have the same names there, so
a node came from the nodes of the model on the way from its outputs back to any other such value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xsp_levels.framework.onnxruntime.graph import Graph, Node

_BLOCKED = "_nchwc"  # ends names of nodes that compute the value of the name before in blocks
_REORDER = "Reorder"  # begins operators that change the memory format and nothing else
_INPUTS_OF_CONV = 3  # more: it adds what else is put in
_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid")
_SIZES = ("Shape", "Size")  # operators that depend on the sizes of what is put in, and no number


def origins(model: Graph, optimised: Graph) -> dict[str, tuple[Node, ...]]:
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
    known = _known_values(model, optimised.nodes, producers)
    alive = {*known.values(), *model.inputs}
    found: dict[str, list[int]] = {}
    made = {value: node for node in optimised.nodes for value in node.outputs}
    shared = set()
    for node in optimised.nodes:
        ends = [known[value] for value in node.outputs if value in known]
        found[node.name] = _between(model.nodes, producers, ends, alive)
        if _reorders(node) and made.keys() & set(node.inputs[:1]):
            found[node.name] = found.get(made[node.inputs[0]].name, [])
        if _reorders(node) or not made.keys() & set(node.inputs) <= known.keys():
            shared.add(node.name)
    shared |= _name_the_rest(model, optimised.nodes, found)
    dynamic = _dynamic(model)
    return {
        node.name: tuple(_by_weight(node, model.nodes, found[node.name], dynamic))[
            : 1 if node.name in shared else None
        ]
        for node in optimised.nodes
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
    """Return what a value is once the sum, and the activation behind, are computed with it.

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
