"""Finds the operators whose outputs each operator of a graph takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

# Names of the nodes that each node takes something of; arguments are left out. None: others run for
# the node, as for a loop, so that nothing is known of what takes it.
Graph = Mapping[str, Sequence[str] | None]


def inputs_that_ran(graph: Graph, ran: Collection[str]) -> dict[str, list[str]]:
    """Return the nearest operators before each operator that ran, of those that ran as well.

    What was fused into another operator, computed ahead or not recorded is passed through.

    Args:
        graph: The graph.
        ran: Names of the nodes that ran as operators; those the graph lacks are left out.

    >>> graph = {"a": [], "bias": ["a"], "c": ["bias", "weight"]}
    >>> inputs_that_ran(graph, {"a", "c", "renamed"})
    {'a': [], 'c': ['a']}
    """
    ran, found = frozenset(ran), {}
    for name in sorted(ran & graph.keys()):
        near: set[str] = set()
        seen: set[str] = set()
        rest: list[str] | None = list(graph[name] or ())
        while rest:
            source = rest.pop()
            if source in ran:
                near.add(source)
            elif source not in seen:
                seen.add(source)
                further = graph.get(source, ())
                rest = None if further is None else [*rest, *further]
        if rest is not None:
            found[name] = sorted(near)
    return found


def inputs_of(keys: pl.DataFrame, graphs: Mapping[Any, Graph]) -> pl.Series:
    """Return the column `attr.inputs` of operators; null where no graph has the operator.

    Args:
        keys: The graph of each operator, and its node there.
        graphs: The graphs.
    """
    graph, node = keys.columns
    ran = keys.drop_nulls().group_by(graph).agg(node).iter_rows()
    known = {name: inputs_that_ran(graphs.get(name, {}), nodes) for name, nodes in ran}
    told = [known.get(of, {}).get(name) for of, name in keys.iter_rows()]
    return pl.Series("attr.inputs", told, dtype=pl.List(pl.String))
