"""Alignment: the nodes of two traces in, which span of one is which span of the other out.

From the root down: the children of two aligned spans are aligned with each other (sequence.py),
then what is left among them is looked at again (leftover.py). Where the children of both have the
same names and types in the same order, as nearly everywhere in two traces of one model, they are
paired all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from xsp.comparison.alignment.leftover import Joined, Siblings, resolve
from xsp.comparison.alignment.node import Bools, Nodes
from xsp.comparison.alignment.sequence import pair_in_order
from xsp.evaluation import Ints


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
        moved: Which pairs changed their place among their siblings.
        joined: Nodes that became part of a pair, besides the two that are the pair.
        removed: Nodes of the first trace alone, without those that lie in others of them.
        added: Nodes of the second trace alone, likewise.
    """

    a: Ints
    b: Ints
    moved: Bools
    joined: tuple[Joined, ...]
    removed: Ints
    added: Ints

    def changes(self, a: Nodes, b: Nodes) -> list[str]:
        """Return the `Change` of each pair, of the removed, and of the added."""
        named = a.like.name[self.a] == b.like.name[self.b]
        typed = a.like.type[self.a] == b.like.type[self.b]
        paired = np.select(
            [self.moved, ~typed, ~named],
            [Change.MOVED, Change.REPLACED, Change.RENAMED],
            Change.SAME,
        )
        found: list[str] = paired.tolist()
        found[0] = Change.SAME  # the roots are what was measured, whatever they are called
        for each in self.joined:
            place = int(np.searchsorted(self.a, each.pair[0]))
            found[place] = Change.FUSED if each.is_fused else Change.SPLIT
        removed, added = len(self.removed), len(self.added)
        return [*found, *[Change.REMOVED] * removed, *[Change.ADDED] * added]


def align(a: Nodes, b: Nodes) -> Alignment:
    """Return which nodes of two traces are the same, from the root down."""
    pairs = [(np.zeros(1, np.int64), np.zeros(1, np.int64))]
    moved: list[tuple[int, int]] = []
    joined: list[Joined] = []
    above = pairs[0]
    while len(above[0]):
        alike = a.sequence[above[0]] == b.sequence[above[1]]
        found = [_all_children(a, b, *(each[alike] for each in above))]
        for parent_a, parent_b in zip(*(each[~alike].tolist() for each in above), strict=True):
            siblings = Siblings(a, b, a.children_of(parent_a), b.children_of(parent_b))
            if siblings.on_both_sides:
                resolved = resolve(siblings, pair_in_order(*siblings.like))
                found.append(_sides(resolved.pairs))
                moved += resolved.moved
                joined += resolved.joined
        in_a, in_b = (np.concatenate(side) for side in zip(*found, strict=True))
        above = (in_a, in_b)
        pairs.append(above)
    return _put_together(a, b, pairs, moved, joined)


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


def _put_together(
    a: Nodes,
    b: Nodes,
    pairs: list[tuple[Ints, Ints]],
    moved: list[tuple[int, int]],
    joined: list[Joined],
) -> Alignment:
    in_a, in_b = (np.concatenate(side) for side in zip(*pairs, strict=True))
    partner = np.full(len(a), -1)
    partner[in_a] = in_b
    in_a = np.flatnonzero(partner >= 0)
    in_b = partner[in_a]
    parts_a = [place for each in joined for place in each.more_a]
    parts_b = [place for each in joined for place in each.more_b]
    changed_place = np.isin(in_a, np.array([place for place, _ in moved], np.int64))
    removed, added = _alone(a, in_a, parts_a), _alone(b, in_b, parts_b)
    return Alignment(in_a, in_b, changed_place, tuple(joined), removed, added)


def _alone(nodes: Nodes, paired: Ints, parts: list[int]) -> Ints:
    """Return the nodes that are in no pair and right inside of a paired one."""
    in_pair = np.zeros(len(nodes), np.bool_)
    in_pair[paired] = True
    told = in_pair.copy()
    told[parts] = True
    return np.flatnonzero(~told & in_pair[nodes.parent])
