"""Exported, scripted and traced modules in; their operators, with the modules around each, out.

Such code calls no modules. Its graph knows of each operator from which module's code the operator
is; a call of the graph makes the operators in the order of the graph (`graph`).
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from xsp_levels.framework.torch.module.graph import Graph, Operator

_INSTANCE = re.compile(r"(\w+)\(([\w.]*)\)")
_FUNCTION = ("UNKNOWN_INSTANCE", "UNKNOWN_TYPE")
_REPEATED = re.compile(r"@\d+$")  # torch.export's mark of a module's second call

Layers = dict[str, str]  # class by path, outermost first


class _UnknownError(Exception):
    """The graph holds something of which it is not known which operators that makes."""


class WrittenGraphs:
    """The graphs of modules, each read once for as long as its module lives."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, Graph | None] = WeakKeyDictionary()

    def of(self, module: Any) -> Graph | None:
        """Return a module's graph; None where there is none or nothing is known of its layers."""
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds.isdisjoint(("GraphModule", "ScriptModule")):
            return None
        if module not in self._known:
            self._known[module] = _graph(module, exported="GraphModule" in kinds)
        return self._known[module]


def _graph(module: Any, *, exported: bool) -> Graph | None:
    # RuntimeError, AttributeError: a scripted module without `forward`, or an old PyTorch.
    with contextlib.suppress(_UnknownError, RuntimeError, AttributeError):
        found = list(_exported(module) if exported else _scripted(module))
        classes = {path: kind for _, layers in found for path, kind in (layers or {}).items()}
        told = ((name, layers if layers is None else tuple(layers)) for name, layers in found)
        return Graph(tuple(Operator(*each) for each in told), classes) if classes else None
    return None


def _exported(module: Any) -> Iterator[tuple[str, Layers | None]]:
    for node in module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None:
            yield str(schema.name), _stack(node.meta)
        elif node.op == "call_function" and _makes_tensor(node):
            raise _UnknownError


def _makes_tensor(node: Any) -> bool:
    """Return whether a function that is no operator makes a tensor, and does not only pick one."""
    picks = getattr(node.target, "__module__", None) == "_operator"
    return not picks and hasattr(node.meta.get("val"), "dtype")


def _stack(meta: Mapping[str, Any]) -> Layers:
    stack = list(meta.get("nn_module_stack", {}).values())
    if any("[" in str(path) for path, _ in stack):  # Dynamo's, from another root
        raise _UnknownError
    named = ((_REPEATED.sub("", str(path)), kind) for path, kind in stack)
    return {path: _class(kind) for path, kind in named if path}


def _class(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def _scripted(module: Any) -> Iterator[tuple[str, Layers | None]]:
    return _nodes(module.inlined_graph, _Modules(module))


def _nodes(graph: Any, modules: _Modules) -> Iterator[tuple[str, Layers | None]]:
    for node in graph.nodes():
        for branch in node.blocks():
            inner = tuple(_nodes(branch, modules))
            if inner and node.kind() != "prim::If":
                raise _UnknownError
            yield from ((name, None) for name, _ in inner)
        if not node.kind().startswith("prim::") and _makes_tensors(node):
            yield node.kind(), modules.around(node.getModuleHierarchy())


class _Modules:
    """The modules below a scripted or traced one, by what TorchScript says of their calls.

    Of each call it says the last name of the module and its class: `act` where the caller wrote
    `self.body.act(x)`, `0` of a module in a list. The graph of the caller says the rest.

    Args:
        root: The module.
    """

    def __init__(self, root: Any) -> None:
        self._modules = dict(root.named_modules(remove_duplicate=False))
        self._called: dict[str, dict[tuple[str, str], set[str]]] = {}  # by the caller's path

    def around(self, hierarchy: str) -> Layers:
        """Return the modules around a node, outermost first, as far as they can be told.

        Args:
            hierarchy: What TorchScript writes of the node: `SELF(Net).0(Block).act(ReLU)`.
        """
        found: Layers = {}
        caller = ""
        for name, kind in _INSTANCE.findall(hierarchy):
            if (name, kind) == _FUNCTION or name == "SELF":
                continue
            possible = self._called_by(caller).get((name, _class(kind)), ())
            if len(possible) != 1:
                break
            (caller,) = possible
            found[caller] = _class(kind)
        return found

    def _called_by(self, caller: str) -> dict[tuple[str, str], set[str]]:
        """Return the paths of the modules that a module calls, by their last name and class."""
        if caller not in self._called:
            found = self._called[caller] = defaultdict(set)
            code = self._modules[caller]._c
            for method in map(code._get_method, code._method_names()):
                for path in _receivers(method.graph):
                    whole = f"{caller}.{path}".lstrip(".")
                    called = self._modules.get(whole)  # None: an object that is no module
                    if called is not None:
                        found[path.rpartition(".")[2], called.original_name].add(whole)
        return self._called[caller]


def _receivers(graph: Any) -> Iterator[str]:
    """Yield the paths of the modules that a method calls, below the method's own module."""
    own = next(graph.inputs()).debugName()
    known = {own: ""}
    rest = list(graph.nodes())[::-1]
    while rest:
        node = rest.pop()
        given = [value.debugName() for value in node.inputs()]
        if node.kind() == "prim::GetAttr" and given[0] in known:
            path = f"{known[given[0]]}.{node.s('name')}".lstrip(".")
            known[next(node.outputs()).debugName()] = path
        elif node.kind() == "prim::CallMethod" and known.get(given[0]):
            yield known[given[0]]
        for branch in node.blocks():
            rest += list(branch.nodes())[::-1]


def _makes_tensors(node: Any) -> bool:
    """Return whether a node runs an operator; the interpreter reckons with numbers and lists."""
    given, made = ([str(value.type()) for value in side()] for side in (node.inputs, node.outputs))
    of_list = given[:1] == ["Tensor[]"] and made == ["Tensor[]"]
    return any("Tensor" in each for each in made) and not of_list
