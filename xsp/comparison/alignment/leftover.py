"""Leftovers: siblings that found no partner in their order in, what became of them out.

Left of two sequences of siblings are those that moved among them, those that were fused into
another or split into several, those that were replaced, and those that one trace has alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np

from xsp.comparison.alignment.node import Nodes
from xsp.comparison.alignment.sequence import Sequence
from xsp.evaluation import Ints

# How names of fused modules and kernels abbreviate what they are made of.
_SHORT = {"batchnorm": "bn", "layernorm": "ln", "convolution": "conv"}
_STEM = re.compile(r"^.*::|\d+d?|_")  # namespaces, dimensions
_WEIGHTED = re.compile("conv|linear", re.IGNORECASE)
_EMPTY = "Identity"  # the module that stands where another one was fused away

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Siblings:
    """The children of two aligned spans.

    Attributes:
        nodes_a: All nodes of the first trace.
        nodes_b: All nodes of the second.
        a: Places of the first span's children.
        b: Places of the second span's children.
    """

    nodes_a: Nodes
    nodes_b: Nodes
    a: Ints
    b: Ints

    @property
    def on_both_sides(self) -> bool:
        """Whether both spans have children."""
        return len(self.a) > 0 and len(self.b) > 0

    @property
    def like(self) -> tuple[Sequence, Sequence]:
        """What is alike in both."""
        return _like(self.nodes_a, self.a), _like(self.nodes_b, self.b)


@dataclass(frozen=True, slots=True)
class Joined:
    """A pair that more than two nodes are part of.

    Attributes:
        pair: Places of the two nodes in their traces.
        more_a: Places of the further nodes of the first trace.
        more_b: Places of the further nodes of the second.
        is_fused: Whether several became one, and not one several.
    """

    pair: tuple[int, int]
    more_a: tuple[int, ...]
    more_b: tuple[int, ...]
    is_fused: bool


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of the children of two aligned spans; the rest was removed or added.

    Attributes:
        pairs: Places of the paired nodes in their traces.
        moved: Those of the pairs that are not in the order of the others.
        joined: What more nodes than two are part of.
    """

    pairs: list[Pair]
    moved: list[Pair]
    joined: list[Joined]


@dataclass(frozen=True, slots=True)
class _Gap:
    """Neighbours without a partner, and the pair before them; None at the beginning."""

    before: Pair | None
    a: list[int]
    b: list[int]


def resolve(siblings: Siblings, in_order: tuple[Ints, Ints]) -> Resolved:
    """Return what became of siblings, of which some are paired in their order already.

    Args:
        siblings: The children of two aligned spans.
        in_order: Which of the first span's children are which of the second's, by number.
    """
    paired = (siblings.a[in_order[0]].tolist(), siblings.b[in_order[1]].tolist())
    anchors: list[Pair] = list(zip(*paired, strict=True))
    left = (_without(siblings.a, paired[0]), _without(siblings.b, paired[1]))
    if not left[0] and not left[1] and not _emptied(siblings, anchors):
        return Resolved(anchors, [], [])
    moved = _moved(siblings, *left)
    gaps = _gaps(siblings, anchors, moved)
    pairs, joined = list(anchors), []
    for gap in gaps:
        gap, found = _joined(siblings, gap)  # noqa: PLW2901  # the rest of the gap
        joined += found
        pairs += [each.pair for each in found if each.pair != gap.before]
        pairs += _by_position(siblings, gap)
    kept, identities = _fused_away(siblings, sorted(pairs))
    return Resolved(kept + moved, moved, joined + identities)


def _without(places: Ints, paired: list[int]) -> list[int]:
    taken = set(paired)
    return [place for place in places.tolist() if place not in taken]


def _moved(siblings: Siblings, left_a: list[int], left_b: list[int]) -> list[Pair]:
    """Return those that are left on both sides, with one name and type."""
    waiting: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for place in reversed(left_b):
        waiting[_label(siblings.nodes_b, place)].append(place)
    labels = ((place, waiting.get(_label(siblings.nodes_a, place))) for place in left_a)
    return [(place, places.pop()) for place, places in labels if places]


def _label(nodes: Nodes, place: int) -> tuple[int, int, int]:
    like = nodes.like
    return int(like.kind[place]), int(like.name[place]), int(like.type[place])


def _gaps(siblings: Siblings, anchors: list[Pair], moved: list[Pair]) -> list[_Gap]:
    """Return what lies between the pairs, without what moved."""
    taken_a, taken_b = ({pair[side] for pair in moved} for side in (0, 1))
    number_a = {place: number for number, place in enumerate(siblings.a.tolist())}
    number_b = {place: number for number, place in enumerate(siblings.b.tolist())}
    ends = [(number_a[a], number_b[b]) for a, b in anchors]
    ends = [(-1, -1), *ends, (len(siblings.a), len(siblings.b))]
    gaps: list[_Gap] = []
    for number, (begin, end) in enumerate(pairwise(ends)):
        if end[0] - begin[0] > 1 or end[1] - begin[1] > 1:
            between_a = siblings.a[begin[0] + 1 : end[0]].tolist()
            between_b = siblings.b[begin[1] + 1 : end[1]].tolist()
            rest_a = [place for place in between_a if place not in taken_a]
            rest_b = [place for place in between_b if place not in taken_b]
            gaps.append(_Gap(anchors[number - 1] if number else None, rest_a, rest_b))
    return gaps


def _joined(siblings: Siblings, gap: _Gap) -> tuple[_Gap, list[Joined]]:
    """Return what was fused or split in a gap, and the rest of the gap."""
    a, b = siblings.nodes_a, siblings.nodes_b
    if len(gap.b) == 1 and _made_of(b, gap.b[0], a, gap.a):
        return _Gap(gap.before, [], []), [
            Joined((gap.a[0], gap.b[0]), tuple(gap.a[1:]), (), is_fused=True)
        ]
    if len(gap.a) == 1 and _made_of(a, gap.a[0], b, gap.b):
        return _Gap(gap.before, [], []), [
            Joined((gap.a[0], gap.b[0]), (), tuple(gap.b[1:]), is_fused=False)
        ]
    if gap.before is None:
        return gap, []
    p, q = gap.before
    into = list(takewhile(lambda x: absorbed(a, p, b, q, a.types[x]), gap.a))
    out_of = list(takewhile(lambda x: absorbed(b, q, a, p, b.types[x]), gap.b))
    found = [Joined(gap.before, tuple(into), (), is_fused=True)] if into else []
    found += [Joined(gap.before, (), tuple(out_of), is_fused=False)] if out_of else []
    return _Gap(gap.before, gap.a[len(into) :], gap.b[len(out_of) :]), found


def _made_of(whole: Nodes, one: int, parts: Nodes, several: list[int]) -> bool:
    """Return whether one node's type names two or more of several neighbours' types."""
    if len(several) < 2 or any(whole.like.kind[one] != parts.like.kind[x] for x in several):
        return False
    return sum(_names(whole.types[one], parts.types[x]) for x in several) >= 2


def absorbed(before: Nodes, p: int, after: Nodes, q: int, gone: str) -> bool:
    """Return whether what is gone is in what its neighbour became.

    The neighbour's new type names it, and the old one did not. Or it was a normalisation, and the
    convolution or linear layer before it has other parameters: scale and shift are in them.
    """
    if _names(after.types[q], gone) and not _names(before.types[p], gone):
        return True
    changed = before.parameters[p] != after.parameters[q]
    return "norm" in gone.lower() and bool(_WEIGHTED.search(before.types[p])) and bool(changed)


def _names(type_: str, part: str) -> bool:
    """Return whether a type's name contains that of another one.

    >>> _names("ConvBnReLU2d", "BatchNorm2d"), _names("Conv2d", "ReLU")
    (True, False)
    """
    stem = _STEM.sub("", part).lower()
    whole = _STEM.sub("", type_).lower()
    return len(stem) > 1 and (stem in whole or _SHORT.get(stem, stem) in whole)


def _by_position(siblings: Siblings, gap: _Gap) -> list[Pair]:
    """Return pairs of what stands in the same place, where both sides have as much."""
    kinds = siblings.nodes_a.like.kind[gap.a], siblings.nodes_b.like.kind[gap.b]
    if len(gap.a) != len(gap.b) or not np.array_equal(*kinds):
        return []
    return list(zip(gap.a, gap.b, strict=True))


def _emptied(siblings: Siblings, pairs: list[Pair]) -> bool:
    return any(_is_emptied(siblings, pair) for pair in pairs)


def _is_emptied(siblings: Siblings, pair: Pair) -> bool:
    """Return whether a module stands on one side and nothing but an empty one on the other."""
    types = siblings.nodes_a.types[pair[0]], siblings.nodes_b.types[pair[1]]
    return types[0] != types[1] and _EMPTY in types


def _fused_away(siblings: Siblings, pairs: list[Pair]) -> tuple[list[Pair], list[Joined]]:
    """Return the pairs without those that left an empty module behind, and what these joined."""
    a, b = siblings.nodes_a, siblings.nodes_b
    kept: list[Pair] = []
    joined: list[Joined] = []
    for x, y in pairs:
        if kept and _is_emptied(siblings, (x, y)):
            p, q = kept[-1]
            is_fused = b.types[y] == _EMPTY
            gone = a.types[x] if is_fused else b.types[y]
            folded = _is_folded(siblings, (p, q), gone)
            if is_fused and (folded or absorbed(a, p, b, q, gone)):
                joined.append(Joined((p, q), (x,), (y,), is_fused=True))
                continue
            if not is_fused and (folded or absorbed(b, q, a, p, gone)):
                joined.append(Joined((p, q), (x,), (y,), is_fused=False))
                continue
        kept.append((x, y))
    return kept, joined


def _is_folded(siblings: Siblings, before: Pair, gone: str) -> bool:
    """Return whether an empty module means that the layer before it took in what is gone.

    Scale and shift of a normalisation go into weights and a bias that were there before, so that a
    convolution or linear layer keeps its name, type and size, as with `fuse_conv_bn_eval`.
    """
    p, q = _label(siblings.nodes_a, before[0]), _label(siblings.nodes_b, before[1])
    weighted = _WEIGHTED.search(siblings.nodes_a.types[before[0]])
    return p == q and "norm" in gone.lower() and weighted is not None


def _like(nodes: Nodes, at: Ints) -> Sequence:
    like = nodes.like
    return Sequence(like.kind[at], like.name[at], like.type[at], like.content[at])
