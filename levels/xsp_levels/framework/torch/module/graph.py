"""Operators and the graphs whose calls made them in; the operators in the graphs' layers out.

Code of a graph calls no modules, but makes operators in the order of the graph, and this knows in
which module each was written: `written` reads exported, scripted and traced modules, `compiled`
what torch.compile made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows
from xsp_levels.framework.scope import layered

Path = tuple[str, ...]

_OF = "\t"  # between the path of a layer and its class
# What TorchScript runs in training for an operator of the graph, beside `native_` ones.
_WRITTEN = {"aten::_batch_norm_impl_index": "aten::batch_norm"}


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that a graph makes.

    Attributes:
        name: What the profiler calls it: `aten::add`, `cpp_fused_relu_0`.
        layers: Paths of the modules around it, outermost first; None in a branch, which not every
            call takes, and in which the graph does not know the module.
        fused_layers: Paths of other modules whose operators are known to be in it.
    """

    name: str
    layers: Path | None
    fused_layers: Path = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """What one call of a graph makes.

    Attributes:
        operators: Its operators in order.
        classes: The class of each layer, by path.
        of_module: Whether the paths begin at the module that is called.
    """

    operators: tuple[Operator, ...]
    classes: Mapping[str, str]
    of_module: bool = True


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A call of a graph.

    Attributes:
        thread: The thread that called it.
        start_ns: Begin of the call.
        end_ns: End of the call.
        home: Path of the module at which the graph's paths begin.
        graph: The graph.
    """

    thread: int
    start_ns: int
    end_ns: int
    home: str
    graph: Graph


def in_layers(rows: SpanRows, calls: Sequence[GraphCall]) -> SpanRows:
    """Return operators, those of graphs in derived layers, followed by these layers.

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
    """Return the operators of a thread in the layers of the graphs that it called."""
    rows = rows.filter(pl.col("thread") == thread)
    names = rows["name"].to_list()
    interval = rows.select("start_ns", "end_ns").to_numpy().T
    scopes: list[list[str] | None] = [None] * rows.height
    fused: list[list[str] | None] = [None] * rows.height
    steps = np.zeros(rows.height, np.int64)
    for number, call in enumerate((call for call in calls if call.thread == thread), 1):
        home, graph = call.home, call.graph
        at = np.flatnonzero((interval[0] >= call.start_ns) & (interval[1] <= call.end_ns))
        steps[at] = number
        found = told([names[i] for i in at.tolist()], interval[:, at], graph.operators)
        for i, operator in found.items():
            paths = operator.layers or ()
            scopes[at[i]] = [f"{_joined(home, path)}{_OF}{graph.classes[path]}" for path in paths]
            fused[at[i]] = [_joined(home, path) for path in operator.fused_layers] or None
    texts = pl.List(pl.String)
    inside = layered(
        rows.with_columns(pl.Series("attr.fused_layers", fused, dtype=texts)),
        pl.Series(scopes, dtype=texts),
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
    """Return the attributes of the layer that the last part of a path is of."""
    module_path, module_class = path[-1].split(_OF)
    return {"module_path": module_path, "module_class": module_class}


def told(
    names: Sequence[str], interval: npt.NDArray[np.int64], graph: Sequence[Operator]
) -> dict[int, Operator]:
    """Return which operators of a graph some operators are, by their number.

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
    """Return the name in the graph, for which TorchScript may run another operator."""
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
    return {i: first for i, (first, *rest) in possible.items() if _known(first, rest)}


def _known(first: Operator, rest: Sequence[Operator]) -> bool:
    """Return whether the layers of an operator are known, whichever of some it is."""
    return first.layers is not None and all(each.layers == first.layers for each in rest)


def _joined(home: str, path: str) -> str:
    return f"{home}.{path}" if home else path
