"""Finds the operators whose outputs each operator of a graph takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

INPUTS = "attr.inputs"
_TEXTS = pl.List(pl.String)


def inputs_that_ran(
    graph: Mapping[str, Sequence[str]], ran: Collection[str]
) -> dict[str, list[str]]:
    """Return the nearest operators before each operator that ran, of those that ran as well.

    What was fused into another operator, computed ahead or not recorded is passed through.

    Args:
        graph: Names of the nodes that each node takes something of; arguments are left out.
        ran: Names of the nodes that ran as operators; those the graph lacks are left out.

    >>> graph = {"a": [], "bias": ["a"], "c": ["bias", "weight"]}
    >>> inputs_that_ran(graph, {"a", "c", "renamed"})
    {'a': [], 'c': ['a']}
    """
    ran, found = frozenset(ran), {}
    for name in sorted(ran & graph.keys()):
        near: set[str] = set()
        seen: set[str] = set()
        rest = list(graph[name])
        while rest:
            source = rest.pop()
            if source in ran:
                near.add(source)
            elif source not in seen:
                seen.add(source)
                rest += graph.get(source, ())
        found[name] = sorted(near)
    return found


def inputs_column(values: Sequence[Sequence[str] | None]) -> pl.Series:
    """Return the column `attr.inputs`; null where an operator's inputs are not known."""
    return pl.Series(INPUTS, [None if each is None else list(each) for each in values], _TEXTS)
