"""Strays: nodes without a partner in, partners elsewhere in the tree out.

A module that is called from another place (of a model that was flattened, wrapped, or rewritten)
is still the same module: its path in the model says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from xsp.comparison.alignment.leftover import Joined, absorbed
from xsp.comparison.alignment.node import Bools, Nodes
from xsp.evaluation import Ints

_KEY = ("module", "kind", "type", "ordinal")


def same_module(a: Nodes, b: Nodes, free_a: Bools, free_b: Bools) -> tuple[Ints, Ints]:
    """Return the places of free nodes that are one module in both traces, call by call."""
    shared = _modules(a, free_a).join(_modules(b, free_b), on=_KEY, maintain_order="left")
    return shared["place"].to_numpy(), shared["place_right"].to_numpy()


def _modules(nodes: Nodes, free: Bools) -> pl.DataFrame:
    place = np.flatnonzero(free & (nodes.module >= 0))
    columns = {"module": nodes.module, "kind": nodes.like.kind, "type": nodes.like.type}
    table = pl.DataFrame({name: column[place] for name, column in columns.items()})
    ordinal = pl.int_range(pl.len()).over("module", "kind", "type")
    return table.with_columns(place=place, ordinal=ordinal)


def joined_late(a: Nodes, b: Nodes, partner: Ints, joined: Iterable[Joined]) -> list[Joined]:
    """Return what was fused into, or split from, the sibling before it, wherever that is now."""
    back = np.full(len(b), -1)
    paired = np.flatnonzero(partner >= 0)
    back[partner[paired]] = paired
    into: dict[int, int] = {}  # what is joined already, and the first trace's node of the pair
    out_of: dict[int, int] = {}
    for each in joined:
        into |= dict.fromkeys(each.more_a, each.pair[0])
        out_of |= dict.fromkeys(each.more_b, each.pair[1])
    fused = [
        Joined((p, int(partner[p])), (x,), (), is_fused=True)
        for p, x in _absorbed_after(a, b, partner, into)
    ]
    split = [
        Joined((int(back[q]), q), (), (y,), is_fused=False)
        for q, y in _absorbed_after(b, a, back, out_of)
    ]
    return fused + split


def _absorbed_after(
    nodes: Nodes, others: Nodes, partner: Ints, known: dict[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of a paired node and a free sibling right behind that its partner took in."""
    siblings = nodes.children
    place_of = np.zeros(len(nodes), np.int64)
    place_of[siblings] = np.arange(len(siblings))
    free = siblings[partner[siblings] < 0]
    for x in free.tolist():
        at = int(place_of[x])
        if x in known or at == nodes.begin[nodes.parent[x]]:
            continue
        before = int(siblings[at - 1])
        p = known.get(before, before)
        q = int(partner[p])
        if q >= 0 and absorbed(nodes, p, others, q, nodes.types[x]):
            known[x] = p
            yield p, x
