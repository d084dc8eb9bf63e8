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
_NO_INSTANCE = frozenset({"SELF", "UNKNOWN_INSTANCE"})  # a method, a function
_LISTS = frozenset({"ModuleList", "ModuleDict"})  # are never called
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
        if node.op not in ("call_function", "call_method"):
            continue
        if getattr(node.target, "__module__", None) != "_operator":  # getitem and arithmetic
            yield _operator(node.target), _stack(node.meta)


def _operator(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    if schema is None:
        raise _UnknownError
    return str(schema.name)


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

    It says a module's own name and class. What holds a module in a list is not named.
    """

    def __init__(self, root: Any) -> None:
        named = root.named_modules(remove_duplicate=False)
        kinds = {path: _class(getattr(each, "original_name", type(each))) for path, each in named}
        # Modules by caller, name and class: those in lists, and those that are taken out of others.
        self._called: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        self._taken: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for path, kind in kinds.items():
            around, _, name = path.rpartition(".")
            for found, holders in ((self._called, _LISTS), (self._taken, {*_LISTS, "Sequential"})):
                caller = around
                while caller and kinds[caller] in holders:
                    caller = caller.rpartition(".")[0]
                found[caller, name, kind].append(path)

    def around(self, hierarchy: str) -> Layers:
        """Return the modules around a node, outermost first, as far as they can be told.

        Args:
            hierarchy: What TorchScript writes of the node: `SELF(Net).0(Block).act(ReLU)`.
        """
        found: Layers = {}
        caller = ""
        for name, mangled in _INSTANCE.findall(hierarchy):
            if name not in _NO_INSTANCE:
                key = (caller, name, _class(mangled))
                possible = self._called.get(key) or self._taken.get(key, [])
                if len(possible) != 1:
                    break
                (caller,) = possible
                found[caller] = key[2]
        return found


def _makes_tensors(node: Any) -> bool:
    """Return whether a node runs an operator; the interpreter itself reckons with numbers."""
    return any("Tensor" in str(output.type()) for output in node.outputs())
