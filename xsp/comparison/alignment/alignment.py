"""Alignment: the nodes of two traces in, which span of one is which span of the other out.

From the root down: the children of two aligned spans are aligned with each other (sequence.py),
then what is left among them is looked at again (leftover.py), and at last what
is left anywhere (stray.py). Where the children of both have the
same names and types in the same order, as nearly everywhere in two traces of one model, they are
paired all at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from xsp.comparison.alignment.leftover import Joined, Siblings, resolve
from xsp.comparison.alignment.node import Bools, Nodes
from xsp.comparison.alignment.sequence import Floats, pair_in_order
from xsp.comparison.alignment.stray import joined_late, same_module
from xsp.evaluation import Ints, generations


class Change(StrEnum):
    """What became of a span of the first trace in the second."""

    SAME = "same"
    RENAMED = "renamed"
    REPLACED = "replaced"
    MOVED = "moved"
    FUSED = "fused"
    SPLIT = "split"
    REMOVED = "removed"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which node of one trace is which of the other.

    Attributes:
        a: Places of the paired nodes in the first trace, rising.
        b: Their places in the second.
        moved: Which pairs changed their place, among their siblings or in the tree.
        joined: Nodes that became part of a pair, besides the two that are the pair.
        removed: Nodes of the first trace alone, without those that lie in others of them.
        added: Nodes of the second trace alone, likewise.
        retyped: Which pairs have different layer types, where the traces are of two frameworks,
            whose names and classes differ anyway; None: names and classes are compared.
        confidence: How much of each pair agrees, from 0 to 1; None where names tell the pairs.
    """

    a: Ints
    b: Ints
    moved: Bools
    joined: tuple[Joined, ...]
    removed: Ints
    added: Ints
    retyped: Bools | None = None
    confidence: Floats | None = None

    def changes(self, a: Nodes, b: Nodes) -> list[str]:
        """Return the `Change` of each pair, of the removed, and of the added."""
        named = a.like.name[self.a] == b.like.name[self.b]
        typed = a.like.type[self.a] == b.like.type[self.b]
        if self.retyped is not None:
            named, typed = np.ones(len(self.a), np.bool_), ~self.retyped
        paired = np.select(
            [self.moved, ~typed, ~named],
            [Change.MOVED, Change.REPLACED, Change.RENAMED],
            Change.SAME,
        )
        found: list[str] = paired.tolist()
        found[0] = Change.SAME  # the roots are what was measured, whatever they are called
        fewer = Counter[int]()
        for each in self.joined:
            fewer[each.pair[0]] += 1 if each.is_fused else -1
        for node, count in fewer.items():
            both_ways = Change.SPLIT if count < 0 else Change.REPLACED
            found[int(np.searchsorted(self.a, node))] = Change.FUSED if count > 0 else both_ways
        removed, added = len(self.removed), len(self.added)
        return [*found, *[Change.REMOVED] * removed, *[Change.ADDED] * added]


def align(a: Nodes, b: Nodes) -> Alignment:
    """Return which nodes of two traces are the same.

    First from the root down; then modules that are called from elsewhere, as those of a model
    that was flattened or wrapped, are found by their paths in the model, and what is in them too.
    """
    pairing = _Pairing(a, b)
    pairing.descend(np.zeros(1, np.int64), np.zeros(1, np.int64))
    while len((strays := pairing.strays())[0]):
        pairing.moved += list(zip(*(side.tolist() for side in strays), strict=True))
        pairing.descend(*strays)
    pairing.joined += joined_late(a, b, pairing.partner_a, pairing.joined)
    return pairing.alignment()


class _Pairing:
    """Pairs that are found one after the other.

    Args:
        a: Nodes of the first trace.
        b: Nodes of the second.

    Attributes:
        partner_a: Place of the partner of each node of the first trace, -1 for none.
        partner_b: The same for the second trace.
        moved: Pairs that changed their place.
        joined: What more nodes than two are part of.
    """

    def __init__(self, a: Nodes, b: Nodes) -> None:
        self.partner_a = np.full(len(a), -1)
        self.partner_b = np.full(len(b), -1)
        self.moved: list[tuple[int, int]] = []
        self.joined: list[Joined] = []
        self._a, self._b = a, b

    def descend(self, in_a: Ints, in_b: Ints) -> None:
        """Pair nodes, their children, and so on; what is paired already stays as it is."""
        while len(in_a):
            self.partner_a[in_a], self.partner_b[in_b] = in_b, in_a
            below_a, below_b = self._children(in_a, in_b)
            new = (self.partner_a[below_a] < 0) & (self.partner_b[below_b] < 0)
            in_a, in_b = below_a[new], below_b[new]

    def strays(self) -> tuple[Ints, Ints]:
        """Return modules without a partner that have one path on both sides, the outermost."""
        found = same_module(self._a, self._b, *self._free())
        stray_a, stray_b = (np.zeros(len(each), np.bool_) for each in (self._a, self._b))
        stray_a[found[0]], stray_b[found[1]] = True, True
        inside = stray_a[self._a.parent[found[0]]] | stray_b[self._b.parent[found[1]]]
        return found[0][~inside], found[1][~inside]

    def alignment(self) -> Alignment:
        """Return what was found."""
        in_a = np.flatnonzero(self.partner_a >= 0)
        moved = np.isin(in_a, np.array([place for place, _ in self.moved], np.int64))
        parts_a = [place for each in self.joined for place in each.more_a]
        parts_b = [place for each in self.joined for place in each.more_b]
        removed = _alone(self._a, self.partner_a >= 0, parts_a)
        added = _alone(self._b, self.partner_b >= 0, parts_b)
        return Alignment(in_a, self.partner_a[in_a], moved, tuple(self.joined), removed, added)

    def _free(self) -> tuple[Bools, Bools]:
        """Return which nodes of each side are in no pair, and part of none."""
        free_a, free_b = self.partner_a < 0, self.partner_b < 0
        for each in self.joined:
            free_a[list(each.more_a)] = free_b[list(each.more_b)] = False
        return free_a, free_b

    def _children(self, in_a: Ints, in_b: Ints) -> tuple[Ints, Ints]:
        """Return the pairs of children of paired nodes."""
        a, b = self._a, self._b
        alike = a.sequence[in_a] == b.sequence[in_b]
        found = [_all_children(a, b, in_a[alike], in_b[alike])]
        for parent_a, parent_b in zip(in_a[~alike].tolist(), in_b[~alike].tolist(), strict=True):
            siblings = Siblings(a, b, a.children_of(parent_a), b.children_of(parent_b))
            if siblings.on_both_sides:
                resolved = resolve(siblings, pair_in_order(*siblings.like))
                found.append(_sides(resolved.pairs))
                self.moved += resolved.moved
                self.joined += resolved.joined
        below_a, below_b = (np.concatenate(side) for side in zip(*found, strict=True))
        return below_a, below_b


def _sides(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _all_children(a: Nodes, b: Nodes, parents_a: Ints, parents_b: Ints) -> tuple[Ints, Ints]:
    """Return the children of each parent, one by one, of parents with as many children."""
    many = a.begin[parents_a + 1] - a.begin[parents_a]
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    return (
        a.children[np.repeat(a.begin[parents_a], many) + within],
        b.children[np.repeat(b.begin[parents_b], many) + within],
    )


def _alone(nodes: Nodes, paired: Bools, parts: list[int]) -> Ints:
    """Return the outermost nodes that are in no pair.

    Where a node that is in no pair has paired ones inside, those beside them are told as well.
    """
    hollow = np.zeros(len(nodes), np.bool_)
    for level in list(generations(nodes.parent))[:0:-1]:
        hollow[nodes.parent[level[paired[level] | hollow[level]]]] = True
    told = paired.copy()
    told[parts] = True
    around = paired[nodes.parent] | (hollow[nodes.parent] & ~told[nodes.parent])
    return np.flatnonzero(~told & around)
