"""Reads the graphs of functions, and finds the nodes that TensorFlow fused into each operator.

Grappler puts a convolution, its bias and an activation into one operator (`_FusedConv2D`), and
gives that the name of the last node. What lies between that node and the convolution is known from
the graph as it was before.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from xsp_levels.framework.tensorflow.profiler.parameter import (
    CALLS,
    definition,
    functions,
    source_of,
)

# Of a node, by its name once inlined: its type, and the nodes that its inputs come from. Of a call:
# the nodes that its outputs come from. Of an argument: the node that it is given by.
Nodes = Mapping[str, tuple[str, ...]]

_FUSED = re.compile(r"^_(?:Mkl(?:Native)?)?Fused(?P<main>\w+?)(?:Ex)?$")
_DEEPEST = 6  # nodes that are fused into one, but for rare cases


def graphs(space: bytes) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the nodes of each function that ran.

    Args:
        space: What the profiler recorded, which names the functions.
    """
    return {name: nodes for name in functions(space) if (nodes := _graph(name))}


def with_main(table: pl.DataFrame, known: Mapping[str, Nodes]) -> pl.DataFrame:
    """Return operators with `origin` of fused ones that of their main node, and with `fused`.

    Args:
        table: Operators, with `origin`.
        known: Nodes of each function (`graphs`).

    Returns:
        The operators; `fused` are the nodes that were fused into each, the main one first; null
        for operators that stand for themselves.
    """
    ran = {name: set(nodes) for name, nodes in _ran(table)}
    told = table.select("function", "name", "node").iter_rows()
    fused = [
        chain(node, name, known[function], ran[function])
        if node is not None and function in known
        else ()
        for function, name, node in told
    ]
    main = pl.Series([each[0] if each else None for each in fused], dtype=pl.String)
    nodes = pl.Series([list(each) or None for each in fused], dtype=pl.List(pl.String))
    return table.with_columns(origin=pl.coalesce(main, "origin"), fused=nodes)


def chain(node: str, name: str, nodes: Nodes, ran: Collection[str]) -> tuple[str, ...]:
    """Return the nodes that an operator was fused of, its main one first; none if unknown.

    Args:
        node: Name of the operator's node, which is the last one of those.
        name: Type of the operator.
        nodes: The graph before anything was fused.
        ran: Nodes that ran as operators, and so are in no other operator.

    >>> graph = {"c": ("Conv2D", "x"), "b": ("BiasAdd", "c"), "r": ("Relu", "b")}
    >>> chain("r", "_MklNativeFusedConv2D", graph, {"r"})
    ('c', 'b', 'r')
    """
    found = _FUSED.match(name)
    if found is None:
        return ()
    paths: list[tuple[str, ...]] = [(node,)]
    for _ in range(_DEEPEST):
        for path in paths:
            if nodes.get(path[0], ("",))[0].startswith(found["main"]):
                return path
        paths = [
            (before, *path)
            for path in paths
            for before in nodes.get(path[0], ())[1:]
            if before in nodes and before not in ran
        ]
    return ()


def _ran(table: pl.DataFrame) -> Iterable[tuple[str, list[str]]]:
    of_function = table.filter(pl.col("node").is_not_null(), pl.col("function").is_not_null())
    return of_function.group_by("function").agg("node").iter_rows()


@functools.lru_cache(maxsize=64)
def _graph(function: str) -> dict[str, tuple[str, ...]]:
    found = definition(function)
    return {} if found is None else dict(_inlined(found, ""))


def _inlined(function: Any, around: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the nodes of a function and of those that it calls, by their names once inlined."""
    for node in function.node_def:
        inputs = (around + source_of(each) for each in node.input if each[0] != "^")
        yield around + node.name, (node.op, *inputs)
        called = definition(node.attr["f"].func.name) if node.op in CALLS else None
        if called is not None:
            inside, given = f"{around}{node.name}/", [around + source_of(e) for e in node.input]
            yield from _inlined(called, inside)
            names = [inside + argument.name for argument in called.signature.input_arg]
            yield from ((name, ("_Arg", each)) for name, each in zip(names, given, strict=False))
            made = (inside + source_of(each) for each in called.ret.values())
            yield around + node.name, (node.op, *made)
