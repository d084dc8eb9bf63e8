"""Exported, scripted and traced modules in; the module that each operator was written in, out.

Such code calls no modules. Its graph knows of each operator from which module's code the operator
is; a call of the graph makes the operators in the order of the graph.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

# In order: operator (`aten::add`) and path of its module; None in a branch, which not every call
# takes, and in which the graph does not know the module.
Scopes = tuple[tuple[str, str | None], ...]

_INSTANCE = re.compile(r"(\w+)\(")
_NO_INSTANCE = frozenset({"SELF", "UNKNOWN_INSTANCE"})  # a method, a function
_CALL = re.compile(r"@\d+$")  # torch.export's mark of a module's second call


class _UnknownError(Exception):
    """The graph holds something of which it is not known which operators that makes."""


def scopes(module: Any) -> Scopes:
    """Return the operators of a module's graph in order, and the path of each one's module.

    Empty for modules without a graph, and where the graph repeats operators or calls Python.
    """
    kinds = {kind.__name__ for kind in type(module).__mro__}
    # RuntimeError, AttributeError: a scripted module without `forward`, or an old PyTorch.
    with contextlib.suppress(_UnknownError, RuntimeError, AttributeError):
        if "GraphModule" in kinds:
            return _exported(module)
        if "ScriptModule" in kinds:
            return _scripted(module)
    return ()


def scope_paths(
    names: Sequence[str], interval: npt.NDArray[np.int64], graph: Scopes
) -> dict[int, str]:
    """Return the paths of operators that ran in one call of a graph, by their number.

    An operator inside another has the other's path. Operators are told by their order: those that
    are named in the graph and also ran must have run in the graph's order, or none has a path.
    An operator has none either where branches leave several places in the graph for it.

    Args:
        names: Names of the operators.
        interval: `[2, n]`: start and end of each.
        graph: What `scopes` returned.
    """
    start, end = interval
    outer: list[int] = []
    inside: list[tuple[int, int]] = []  # operator, and the place in `outer` of what encloses it
    known = {name for name, _ in graph}
    reach = np.iinfo(np.int64).min
    for i in np.lexsort((-end, start)).tolist():
        if (
            "::" not in names[i] and names[i] not in known
        ):  # a mark, such as `forward` around a scripted module's operators
            continue
        if start[i] >= reach:
            outer.append(i)
            reach = end[i]
        inside.append((i, len(outer) - 1))
    shared = {names[i] for i in outer} & known
    ran = [place for place, i in enumerate(outer) if names[i] in shared]
    told = _told([names[outer[place]] for place in ran], [n for n in graph if n[0] in shared])
    paths = {ran[number]: path for number, path in told.items()}
    return {i: paths[place] for i, place in inside if place in paths}


def scope_column(rows: pl.DataFrame, calls: Sequence[tuple[int, int, int, str, Scopes]]) -> Any:
    """Return the column of paths for rows of operators.

    Args:
        rows: The operators.
        calls: Of each call of a graph its thread, start, end, the path of the module that was
            called, and the graph.
    """
    names = rows["name"].to_list()
    interval = rows.select("start_ns", "end_ns").to_numpy().T
    thread = rows["thread"].to_numpy()
    found: dict[int, str] = {}
    for number, start, end, home, graph in calls:
        within = (thread == number) & (interval[0] >= start) & (interval[1] <= end)
        where = np.flatnonzero(within).tolist()
        paths = scope_paths([names[i] for i in where], interval[:, where], graph)
        found |= {where[i]: ".".join(filter(None, (home, path))) for i, path in paths.items()}
    return pl.Series([found.get(i) for i in range(rows.height)], dtype=pl.String)


def _told(ran: Sequence[str], graph: Sequence[tuple[str, str | None]]) -> dict[int, str]:
    """Return the path of each operator that ran, where only one is possible, by its number."""
    counts = [{0}]  # how many may have run before each node of the graph
    for name, path in graph:
        after = {i + 1 for i in counts[-1] if i < len(ran) and ran[i] == name}
        counts.append(after if path is not None else after | counts[-1])
    paths: dict[int, set[str | None]] = {}
    then = counts[-1] & {len(ran)}  # of these, those from which the rest can have run
    for (name, path), before in zip(reversed(graph), reversed(counts[:-1]), strict=True):
        made = {i for i in before if i + 1 in then and ran[i] == name}
        for i in made:
            paths.setdefault(i, set()).add(path)
        then = made if path is not None else made | (before & then)
    told = ((i, possible.pop()) for i, possible in paths.items() if len(possible) == 1)
    return {i: path for i, path in told if path is not None}


def _exported(module: Any) -> Scopes:
    return tuple(
        (_operator(node.target), _path(node.meta))
        for node in module.graph.nodes
        if node.op in ("call_function", "call_method")
        and getattr(node.target, "__module__", None) != "_operator"  # getitem and arithmetic
    )


def _operator(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    if schema is None:
        raise _UnknownError
    return str(schema.name)


def _path(meta: Mapping[str, Any]) -> str:
    stack = list(meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    if "[" in path:  # Dynamo's, from another root
        raise _UnknownError
    return _CALL.sub("", path)


def _scripted(module: Any) -> Scopes:
    paths = {path for path, _ in module.named_modules()}
    found = tuple(_nodes(module.inlined_graph))
    if any(path is not None and path not in paths for _, path in found):
        raise _UnknownError
    return found


def _nodes(graph: Any) -> Iterator[tuple[str, str | None]]:
    for node in graph.nodes():
        for branch in node.blocks():
            inner = tuple(_nodes(branch))
            if inner and node.kind() != "prim::If":
                raise _UnknownError
            yield from ((name, None) for name, _ in inner)
        if not node.kind().startswith("prim::") and _makes_tensors(node):
            instances = _INSTANCE.findall(node.getModuleHierarchy())
            path = ".".join(name for name in instances if name not in _NO_INSTANCE)
            yield node.kind(), path


def _makes_tensors(node: Any) -> bool:
    """Return whether a node runs an operator; the interpreter itself reckons with numbers."""
    return any("Tensor" in str(output.type()) for output in node.outputs())
