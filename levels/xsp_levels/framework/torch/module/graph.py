"""Layers of exported, scripted and traced modules, which their operators are put into.

Such code calls no modules. Its graph knows of each operator in which module it was written, and a
call of the graph makes the operators in the order of the graph.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows
from xsp.scope import layered

Path = tuple[str, ...]

_OF = "\t"  # between the path of a layer and its class
# What TorchScript runs in training for an operator of the graph, beside `native_` ones.
_WRITTEN = {"aten::_batch_norm_impl_index": "aten::batch_norm"}

_INSTANCE = re.compile(r"(\w+)\(([\w.]*)\)")
_KINDS = ("GraphModule", "ScriptModule")
_FUNCTION = ("UNKNOWN_INSTANCE", "UNKNOWN_TYPE")
_REPEATED = re.compile(r"@\d+$")  # torch.export's mark of a module's second call

Layers = dict[str, str]  # class by path, outermost first


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that a graph makes.

    Attributes:
        name: What the profiler calls it: `aten::add`.
        layers: Paths of the modules around it, outermost first; None in a branch, which not every
            call takes, and in which the graph does not know the module.
    """

    name: str
    layers: Path | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators and module calls that one call of a graph makes.

    Attributes:
        operators: Its operators in order.
        classes: The class of each layer, by path.
    """

    operators: tuple[Operator, ...]
    classes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A call of a graph, whose paths begin at the module at `home`."""

    thread: int
    start_ns: int
    end_ns: int
    home: str
    graph: Graph


def in_layers(rows: SpanRows, calls: Sequence[GraphCall]) -> SpanRows:
    """Put the operators of graphs into derived layers, which follow the operators.

    An operator inside another one lies where the other does. A layer is on the thread that called
    its graph.
    """
    threads = {call.thread for call in calls}
    if not threads:
        return rows
    others = rows.filter(~pl.col("thread").is_in(threads))
    parts = [_on_thread(rows, thread, calls) for thread in sorted(threads)]
    return concat_rows([others, *parts])


def _on_thread(rows: SpanRows, thread: int, calls: Iterable[GraphCall]) -> SpanRows:
    rows = rows.filter(pl.col("thread") == thread)
    names = rows["name"].to_list()
    interval = rows.select("start_ns", "end_ns").to_numpy().T
    scopes: list[list[str] | None] = [None] * rows.height
    steps = np.zeros(rows.height, np.int64)
    for number, call in enumerate((call for call in calls if call.thread == thread), 1):
        home, graph = call.home, call.graph
        at = np.flatnonzero((interval[0] >= call.start_ns) & (interval[1] <= call.end_ns))
        steps[at] = number
        found = matched([names[i] for i in at.tolist()], interval[:, at], graph.operators)
        for i, operator in found.items():
            paths = operator.layers or ()
            scopes[at[i]] = [
                f"{home}.{path}".lstrip(".") + _OF + graph.classes[path] for path in paths
            ]
    inside = layered(
        rows,
        pl.Series(scopes, dtype=pl.List(pl.String)),
        steps=pl.Series(steps),
        describe=_described,
    )
    is_layer = pl.col("kind") == Kind.LAYER.value
    last = pl.col("name").str.extract(rf"([^.{_OF}]*){_OF}")
    own = pl.lit(thread, rows.schema["thread"])
    return inside.with_columns(
        name=pl.when(is_layer).then(last).otherwise("name"),
        thread=pl.when(is_layer).then(own).otherwise("thread"),
    )


def _described(path: Path) -> dict[str, str]:
    module_path, module_class = path[-1].split(_OF)
    return {"module_path": module_path, "module_class": module_class}


def matched(
    names: Sequence[str], interval: npt.NDArray[np.int64], graph: Sequence[Operator]
) -> dict[int, Operator]:
    """Match operators that ran with those of a graph, by the number of the operator that ran.

    An operator inside another is what the other is. Operators are told by their order: those that
    are named in the graph and also ran must have run in the graph's order, or none is told. Not
    told either is an operator for which branches leave several places in the graph.

    Args:
        names: Names of the operators that ran in one call of the graph.
        interval: `[2, n]`: start and end of each.
        graph: The operators of the graph, in order.
    """
    start, end = interval
    outer: list[int] = []
    inside: list[tuple[int, int]] = []  # operator, and the place in `outer` of what encloses it
    known = {each.name for each in graph}
    names = [_as_written(name, known) for name in names]
    reach = np.iinfo(np.int64).min
    for i in np.lexsort((-end, start)).tolist():
        if "::" not in names[i] and names[i] not in known:
            continue  # a mark, such as `forward` around a scripted module's operators
        if start[i] >= reach:
            outer.append(i)
            reach = end[i]
        inside.append((i, len(outer) - 1))
    shared = {names[i] for i in outer} & known
    ran = [place for place, i in enumerate(outer) if names[i] in shared]
    order = [each for each in graph if each.name in shared]
    found = _in_order([names[outer[place]] for place in ran], order)
    operators = {ran[number]: operator for number, operator in found.items()}
    return {i: operators[place] for i, place in inside if place in operators}


def _as_written(name: str, known: Set[str]) -> str:
    """Return the graph's name of an operator, for which TorchScript may run another."""
    written = _WRITTEN.get(name) or name.replace("::native_", "::")
    return written if name not in known and written in known else name


def _in_order(ran: Sequence[str], graph: Sequence[Operator]) -> dict[int, Operator]:
    """Return the operator of the graph that each is, where only one is possible."""
    counts = [{0}]  # how many may have run before each operator of the graph
    for each in graph:
        after = {i + 1 for i in counts[-1] if i < len(ran) and ran[i] == each.name}
        counts.append(after if each.layers is not None else after | counts[-1])
    possible: dict[int, list[Operator]] = {}
    then = counts[-1] & {len(ran)}  # of these, those from which the rest can have run
    for each, before in zip(reversed(graph), reversed(counts[:-1]), strict=True):
        made = {i for i in before if i + 1 in then and ran[i] == each.name}
        for i in made:
            possible.setdefault(i, []).append(each)
        then = made if each.layers is not None else made | (before & then)
    return {
        i: first
        for i, (first, *rest) in possible.items()
        if first.layers is not None and all(each.layers == first.layers for each in rest)
    }


class _UnknownError(Exception):
    """Raised for a graph with a node whose operators are not known."""


class WrittenGraphs:
    """The graphs of modules, each read once for as long as its module lives."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, Graph | None] = WeakKeyDictionary()

    def of(self, module: Any) -> Graph | None:
        """Return a module's graph; None where there is none or nothing is known of its layers."""
        if not is_graph(module):
            return None
        if module not in self._known:
            self._known[module] = _graph(module)
        return self._known[module]


def is_graph(module: Any) -> bool:
    """Return whether a module was exported, scripted or traced."""
    return not {kind.__name__ for kind in type(module).__mro__}.isdisjoint(_KINDS)


def _graph(module: Any) -> Graph | None:
    exported = any(kind.__name__ == "GraphModule" for kind in type(module).__mro__)
    # RuntimeError, AttributeError: a scripted module without `forward`, or an old PyTorch.
    with contextlib.suppress(_UnknownError, RuntimeError, AttributeError):
        found = list(
            _exported(module) if exported else _nodes(module.inlined_graph, _Modules(module))
        )
        classes = {path: kind for _, layers in found for path, kind in (layers or {}).items()}
        each_with = ((name, layers if layers is None else tuple(layers)) for name, layers in found)
        return Graph(tuple(Operator(*each) for each in each_with), classes) if classes else None
    return None


def _exported(module: Any) -> Iterator[tuple[str, Layers | None]]:
    for node in module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None:
            yield str(schema.name), _stack(node.meta)
        elif node.op == "call_function":
            picks = getattr(node.target, "__module__", None) == "_operator"
            if not picks and hasattr(node.meta.get("val"), "dtype"):  # it makes a tensor
                raise _UnknownError


def _stack(meta: Mapping[str, Any]) -> Layers:
    stack = list(meta.get("nn_module_stack", {}).values())
    if any("[" in str(path) for path, _ in stack):  # Dynamo's, from another root
        raise _UnknownError
    named = ((_REPEATED.sub("", str(path)), kind) for path, kind in stack)
    return {path: _class(kind) for path, kind in named if path}


def _class(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


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
    """

    def __init__(self, root: Any) -> None:
        self._modules = dict(root.named_modules(remove_duplicate=False))
        self._called: dict[str, dict[tuple[str, str], set[str]]] = {}  # by the caller's path

    def around(self, hierarchy: str) -> Layers:
        """Return the modules around a node of which TorchScript says `SELF(Net).act(ReLU)`."""
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
