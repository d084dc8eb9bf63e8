"""Finds which span of one trace is which span of another, from the root down.

The children of two paired spans are paired in their order. What is left among them was moved,
fused, split, replaced, removed or added. At last, modules that are called from elsewhere, as those
of a model that was flattened or wrapped, are found by their paths in the model. Spans have numbers
for their names, types, kinds and contents, equal where these are equal in both traces.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import pairwise, takewhile

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses import Tree
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints, Keys, generations, mix
from xsp.trace import Trace, attribute_column

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Key = tuple[int, ...]
Pair = tuple[int, int]

# What each depth adds to the depths before it.
DEPTHS: dict[Kind, tuple[Kind, ...]] = {
    Kind.REGION: (Kind.REGION,),
    Kind.LAYER: (Kind.LAYER,),
    Kind.OP: (Kind.OP,),
    Kind.CALL: (Kind.CALL,),
    Kind.KERNEL: DEVICE_ACTIVITIES,
}

# Names of modules that hold a whole model for some purpose: of DataParallel and of torch.compile.
_WRAPPERS = r"(^|\.)(module|_orig_mod)(\.|$)"
# How names of fused modules and kernels abbreviate what they are made of.
_SHORT = {"batchnorm": "bn", "layernorm": "ln", "convolution": "conv"}
_STEM = re.compile(r"^.*::|\d+d?|_")  # namespaces, dimensions
_WEIGHTED = re.compile("conv|linear", re.IGNORECASE)
_EMPTY = "Identity"  # the module that stands where another one was fused away


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
class Nodes:
    """The spans of one trace that are aligned, in the trace's order, the root first.

    Attributes:
        row: Row of each in `trace.spans`.
        parent: Place of the nearest one around it, -1 for the root.
        own_ns: Latency less that of the next ones inside, NaN where not known.
        types: Class of the module of each, or its name where there is none.
        parameters: Size of the module's parameters in bytes, -1 where not known.
        module: Number of the module's path in the model, -1 for the model and what is no module.
        kind: Number of kind and phase.
        name: Number of the name; below 0 for names that are numbers themselves.
        type: Number of the type.
        content: Key of the kinds, types and parameters of each one and of all inside.
        children: Places of all but the root, those of one parent together.
        begin: Where in `children` those of each one begin; and where the last end.
        sequence: Key of the kinds, names and types of all children, in their order.
    """

    row: Ints
    parent: Ints
    own_ns: Floats
    types: list[str]
    parameters: Ints
    module: Ints
    kind: Ints
    name: Ints
    type: Ints
    content: Keys
    children: Ints
    begin: Ints
    sequence: Keys

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Joined:
    """A pair that more than two nodes are part of.

    Attributes:
        pair: Places of the two nodes in their traces.
        more_a: Places of the further nodes of the first trace.
        more_b: Places of the further nodes of the second.
        is_fused: Whether several became one, and not one several.
    """

    pair: Pair
    more_a: tuple[int, ...]
    more_b: tuple[int, ...]
    is_fused: bool


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
    """

    a: Ints
    b: Ints
    moved: Bools
    joined: tuple[Joined, ...]
    removed: Ints
    added: Ints

    def changes(self, a: Nodes, b: Nodes) -> list[str]:
        """Return the `Change` of each pair, of the removed, and of the added."""
        paired = np.select(
            [self.moved, a.type[self.a] != b.type[self.b], a.name[self.a] != b.name[self.b]],
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
    """Return which nodes of two traces are the same."""
    pairing = _Pairing(a, b)
    pairing.descend(np.zeros(1, np.int64), np.zeros(1, np.int64))
    while len((elsewhere := pairing.same_modules())[0]):
        pairing.moved += list(zip(*(side.tolist() for side in elsewhere), strict=True))
        pairing.descend(*elsewhere)
    pairing.joined += _joined_late(a, b, pairing.partner_a, pairing.joined)
    return pairing.alignment()


def nodes_of(a: Trace, b: Trace, depth: Kind) -> tuple[Nodes, Nodes]:
    """Return the spans of two traces down to a depth, one of `DEPTHS`."""
    wanted = list(DEPTHS)[: list(DEPTHS).index(depth) + 1]
    kinds = tuple(kind for each in wanted for kind in DEPTHS[each])
    trees = [Tree.of(trace) for trace in (a, b)]
    among = [tree.is_of(*kinds).copy() for tree in trees]
    for each in among:
        each[0] = True  # the root, whatever it is
    words = [_words(tree.spans[np.flatnonzero(of)]) for tree, of in zip(trees, among, strict=True)]
    numbers = _numbers(pl.concat(words))
    middle = words[0].height
    first = _nodes(trees[0], among[0], words[0], numbers[:middle])
    return first, _nodes(trees[1], among[1], words[1], numbers[middle:])


def _words(spans: pl.DataFrame) -> pl.DataFrame:
    """Return kind (with the phase), name and type of spans, and how large their parameters are."""
    phase = attribute_column(spans, "phase").fill_null("")
    return spans.select(
        "name",
        kind=pl.col("kind") + "/" + phase,
        type=pl.coalesce(attribute_column(spans, "module_class"), "name"),
        parameters=attribute_column(spans, "parameter_bytes", pl.Int64).fill_null(-1),
        module=attribute_column(spans, "module_path").fill_null("").str.replace_all(_WRAPPERS, ""),
    )


def _numbers(words: pl.DataFrame) -> pl.DataFrame:
    """Return kind, name, type and module of both traces' spans as numbers."""
    texts = words.select(
        pl.col(each).cast(pl.Enum(words[each].unique().sort())).to_physical().cast(pl.Int64)
        for each in ("kind", "name", "type", "module")
    )
    digits = words["name"].str.contains(r"^\d+$")
    name = pl.when(digits).then(-1 - texts["name"]).otherwise(texts["name"])
    module = pl.when(words["module"] == "").then(-1).otherwise(texts["module"])
    return texts.with_columns(name=name, module=module, parameters=words["parameters"])


def _nodes(tree: Tree, among: Bools, words: pl.DataFrame, numbers: pl.DataFrame) -> Nodes:
    row = np.flatnonzero(among)
    above = tree.nearest(among)[row]
    parent = np.where(above < 0, -1, (np.cumsum(among) - 1)[above])
    kind, name, type_, module, parameters = (numbers[each].to_numpy() for each in numbers.columns)
    children = np.argsort(parent, kind="stable")[1:]
    begin = np.searchsorted(parent[children], np.arange(len(row) + 1))
    ordinal = np.zeros(len(row), np.int64)
    ordinal[children] = np.arange(len(children)) - begin[parent[children]]
    position = mix(ordinal.astype(np.uint64))
    content = _key(kind, type_, parameters)
    for level in list(generations(parent))[:0:-1]:  # from the deepest up, without the root
        np.add.at(content, parent[level], mix(content[level] + position[level]))
    sequence = np.zeros(len(row), np.uint64)
    label = _key(kind, name, type_)
    np.add.at(sequence, parent[children], mix(label[children] + position[children]))
    return Nodes(
        row, parent, tree.own_ns(among)[row], words["type"].to_list(), parameters, module,
        kind, name, type_, content, children, begin, sequence,
    )  # fmt: skip


def _key(*columns: Ints) -> Keys:
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = mix(key ^ column.astype(np.int64).view(np.uint64))
    return key


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
        self.moved: list[Pair] = []
        self.joined: list[Joined] = []
        self._a, self._b = a, b

    def descend(self, in_a: Ints, in_b: Ints) -> None:
        """Pair nodes, their children, and so on; what is paired already stays as it is."""
        while len(in_a):
            self.partner_a[in_a], self.partner_b[in_b] = in_b, in_a
            below_a, below_b = self._children(in_a, in_b)
            new = (self.partner_a[below_a] < 0) & (self.partner_b[below_b] < 0)
            in_a, in_b = below_a[new], below_b[new]

    def same_modules(self) -> tuple[Ints, Ints]:
        """Return free nodes that are one module by their paths, call by call, the outermost."""
        free_a, free_b = self.partner_a < 0, self.partner_b < 0
        for each in self.joined:
            free_a[list(each.more_a)] = free_b[list(each.more_b)] = False
        both = _modules(self._a, free_a).join(
            _modules(self._b, free_b),
            on=("module", "kind", "type", "ordinal"),
            maintain_order="left",
        )
        found_a, found_b = both["place"].to_numpy(), both["place_right"].to_numpy()
        inside = np.isin(self._a.parent[found_a], found_a)
        inside |= np.isin(self._b.parent[found_b], found_b)
        return found_a[~inside], found_b[~inside]

    def alignment(self) -> Alignment:
        """Build the alignment from the pairs, moves, fusions and splits so far."""
        in_a = np.flatnonzero(self.partner_a >= 0)
        moved = np.isin(in_a, np.array([place for place, _ in self.moved], np.int64))
        parts_a = [place for each in self.joined for place in each.more_a]
        parts_b = [place for each in self.joined for place in each.more_b]
        removed = _alone(self._a, self.partner_a >= 0, parts_a)
        added = _alone(self._b, self.partner_b >= 0, parts_b)
        return Alignment(in_a, self.partner_a[in_a], moved, tuple(self.joined), removed, added)

    def _children(self, in_a: Ints, in_b: Ints) -> tuple[Ints, Ints]:
        """Return the pairs of children of paired nodes."""
        a, b = self._a, self._b
        # Nearly everywhere in two traces of one model, the children of both are alike.
        alike = a.sequence[in_a] == b.sequence[in_b]
        first, second = in_a[alike], in_b[alike]
        many = a.begin[first + 1] - a.begin[first]
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        below_a = [a.children[np.repeat(a.begin[first], many) + within]]
        below_b = [b.children[np.repeat(b.begin[second], many) + within]]
        for p, q in zip(in_a[~alike].tolist(), in_b[~alike].tolist(), strict=True):
            siblings = _Siblings(
                a, b,
                a.children[a.begin[p] : a.begin[p + 1]].tolist(),
                b.children[b.begin[q] : b.begin[q + 1]].tolist(),
            )  # fmt: skip
            pairs, moved, joined = siblings.resolved()
            both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            below_a.append(both[:, 0])
            below_b.append(both[:, 1])
            self.moved += moved
            self.joined += joined
        return np.concatenate(below_a), np.concatenate(below_b)


def _modules(nodes: Nodes, free: Bools) -> pl.DataFrame:
    place = np.flatnonzero(free & (nodes.module >= 0))
    columns = {"module": nodes.module, "kind": nodes.kind, "type": nodes.type}
    table = pl.DataFrame({name: column[place] for name, column in columns.items()})
    ordinal = pl.int_range(pl.len()).over("module", "kind", "type")
    return table.with_columns(place=place, ordinal=ordinal)


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


@dataclass(frozen=True, slots=True)
class _Gap:
    """Neighbors without a partner, and the pair before them; None at the beginning."""

    before: Pair | None
    a: list[int]
    b: list[int]


@dataclass(frozen=True, slots=True)
class _Siblings:
    """The children of two paired nodes: places in the nodes of both traces."""

    nodes_a: Nodes
    nodes_b: Nodes
    a: list[int]
    b: list[int]

    def resolved(self) -> tuple[list[Pair], list[Pair], list[Joined]]:
        """Return all pairs, those of them that are not in the order of the others, and the joined.

        What is in none of them was removed or added.
        """
        numbers = self._in_order()
        in_order = [(self.a[i], self.b[j]) for i, j in numbers]
        moved = self._moved(in_order)
        pairs, joined = list(in_order), list[Joined]()
        for gap in self._gaps(numbers, moved):
            found, rest = self._joined(gap)
            joined += found
            pairs += [each.pair for each in found if each.pair != gap.before]
            # What stands in the same place, where both sides have as much, was replaced.
            kinds = self.nodes_a.kind[rest.a], self.nodes_b.kind[rest.b]
            if np.array_equal(*kinds):
                pairs += zip(rest.a, rest.b, strict=True)
        kept, fused_away = self._fused_away(sorted(pairs))
        return kept + moved, moved, joined + fused_away

    def _in_order(self) -> list[Pair]:
        """Return the numbers of siblings that are paired in their order.

        What is equal at both ends is paired first. Then come those of one name and type, those of
        one type, and those of one name. Names that are numbers count only where they cost no pair:
        a block that is inserted renumbers those behind it.
        """
        pairs: list[Pair] = []
        for match, key in (
            (_same_ends, _content),
            (_named, _label),
            (_matched, _type),
            (_matched, _title),
        ):
            a = [key(self.nodes_a, place) for place in self.a]
            b = [key(self.nodes_b, place) for place in self.b]
            for (i, j), end in pairwise([(-1, -1), *pairs, (len(a), len(b))]):
                found = match(a[i + 1 : end[0]], b[j + 1 : end[1]])
                pairs += [(i + 1 + x, j + 1 + y) for x, y in found]
            pairs.sort()
        return pairs

    def _moved(self, in_order: list[Pair]) -> list[Pair]:
        """Return those that are left on both sides, with one name and type."""
        paired_a, paired_b = ({pair[side] for pair in in_order} for side in (0, 1))
        waiting: defaultdict[Key, list[int]] = defaultdict(list)
        for place in reversed(self.b):
            if place not in paired_b:
                waiting[_label(self.nodes_b, place)].append(place)
        left = (place for place in self.a if place not in paired_a)
        labels = ((place, waiting.get(_label(self.nodes_a, place))) for place in left)
        return [(place, places.pop()) for place, places in labels if places]

    def _gaps(self, numbers: list[Pair], moved: list[Pair]) -> Iterator[_Gap]:
        """Yield what lies between the pairs, without what moved."""
        taken_a, taken_b = ({pair[side] for pair in moved} for side in (0, 1))
        for begin, end in pairwise([(-1, -1), *numbers, (len(self.a), len(self.b))]):
            rest_a = [place for place in self.a[begin[0] + 1 : end[0]] if place not in taken_a]
            rest_b = [place for place in self.b[begin[1] + 1 : end[1]] if place not in taken_b]
            if rest_a or rest_b:
                before = (self.a[begin[0]], self.b[begin[1]]) if begin[0] >= 0 else None
                yield _Gap(before, rest_a, rest_b)

    def _joined(self, gap: _Gap) -> tuple[list[Joined], _Gap]:
        """Take the fusions and splits out of a gap between pairs; return them and the rest."""
        a, b = self.nodes_a, self.nodes_b
        if len(gap.b) == 1 and _made_of(b, gap.b[0], a, gap.a):
            fused = Joined((gap.a[0], gap.b[0]), tuple(gap.a[1:]), (), is_fused=True)
            return [fused], _Gap(gap.before, [], [])
        if len(gap.a) == 1 and _made_of(a, gap.a[0], b, gap.b):
            split = Joined((gap.a[0], gap.b[0]), (), tuple(gap.b[1:]), is_fused=False)
            return [split], _Gap(gap.before, [], [])
        if gap.before is None:
            return [], gap
        p, q = gap.before
        into = tuple(takewhile(lambda x: _absorbed(a, p, b, q, a.types[x]), gap.a))
        out_of = tuple(takewhile(lambda x: _absorbed(b, q, a, p, b.types[x]), gap.b))
        found = [Joined(gap.before, into, (), is_fused=True)] if into else []
        found += [Joined(gap.before, (), out_of, is_fused=False)] if out_of else []
        return found, _Gap(gap.before, gap.a[len(into) :], gap.b[len(out_of) :])

    def _fused_away(self, pairs: list[Pair]) -> tuple[list[Pair], list[Joined]]:
        """Return the pairs without those that left an empty module behind, and what these joined.

        `fuse_conv_bn_eval` puts a normalization into weights and a bias that were there before, so
        that the convolution or linear layer keeps its name, type and size.
        """
        a, b = self.nodes_a, self.nodes_b
        kept: list[Pair] = []
        joined: list[Joined] = []
        for x, y in pairs:
            types = a.types[x], b.types[y]
            if kept and types[0] != types[1] and _EMPTY in types:
                p, q = kept[-1]
                is_fused = types[1] == _EMPTY
                gone = types[0] if is_fused else types[1]
                weighted = _label(a, p) == _label(b, q) and _WEIGHTED.search(a.types[p])
                into = (a, p, b, q) if is_fused else (b, q, a, p)
                if ("norm" in gone.lower() and weighted) or _absorbed(*into, gone):
                    joined.append(Joined((p, q), (x,), (y,), is_fused=is_fused))
                    continue
            kept.append((x, y))
        return kept, joined


def _label(nodes: Nodes, place: int) -> Key:
    return int(nodes.kind[place]), int(nodes.name[place]), int(nodes.type[place])


def _content(nodes: Nodes, place: int) -> Key:
    kind, name, type_ = _label(nodes, place)
    return kind, max(name, -1), type_, int(nodes.content[place])


def _type(nodes: Nodes, place: int) -> Key:
    return int(nodes.kind[place]), int(nodes.type[place])


def _title(nodes: Nodes, place: int) -> Key:
    # Where the name is a number the type stands for it, and finds nothing any more.
    name = int(nodes.name[place])
    return (int(nodes.kind[place]), name) if name >= 0 else (*_type(nodes, place), -1)


def _same_ends(a: list[Key], b: list[Key]) -> list[Pair]:
    """Return the places of equal keys from the beginning on, and from the end back."""
    shorter = min(len(a), len(b))
    head = next((at for at in range(shorter) if a[at] != b[at]), shorter)
    tail = takewhile(lambda at: a[-at] == b[-at], range(1, shorter - head + 1))
    return [*((at, at) for at in range(head)), *((len(a) - at, len(b) - at) for at in tail)]


def _named(a: list[Key], b: list[Key]) -> list[Pair]:
    """Return pairs of one name and type, in the way that finds most of them.

    `difflib` alone goes wrong where a few of many equal siblings are new: their numbers tell then.
    """
    general_a: list[Key] = [(kind, max(name, -1), type_) for kind, name, type_ in a]
    general_b: list[Key] = [(kind, max(name, -1), type_) for kind, name, type_ in b]
    return max(
        _matched(_counted(a), _counted(b)),
        _matched(_counted(general_a), _counted(general_b)),
        _matched(a, b),
        key=len,
    )


def _counted(keys: list[Key]) -> list[Key]:
    """Return keys with the number of equal ones before each."""
    often = Counter[Key]()
    counted: list[Key] = []
    for key in keys:
        counted.append((*key, often[key]))
        often[key] += 1
    return counted


def _matched(a: list[Key], b: list[Key]) -> list[Pair]:
    """Return the places of equal keys in two sequences, both rising."""
    # `difflib` prefers what comes first in its first sequence. The order of keys, and not of
    # traces, says which that is, so that `compare(b, a)` mirrors `compare(a, b)`.
    turned = b < a
    matcher = SequenceMatcher(None, *((b, a) if turned else (a, b)), autojunk=False)
    blocks = matcher.get_matching_blocks()
    pairs = [(x + within, y + within) for x, y, size in blocks for within in range(size)]
    return [(x, y) for y, x in pairs] if turned else pairs


def _made_of(whole: Nodes, one: int, parts: Nodes, several: list[int]) -> bool:
    """Return whether one node's type names two or more of several neighbors' types."""
    if any(whole.kind[one] != parts.kind[x] for x in several):
        return False
    return sum(_names(whole.types[one], parts.types[x]) for x in several) >= 2


def _absorbed(before: Nodes, p: int, after: Nodes, q: int, gone: str) -> bool:
    """Tell whether a neighbor absorbed a node that is gone.

    The neighbor's new type names it, and the old one did not. Or it was a normalization, and the
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


def _joined_late(a: Nodes, b: Nodes, partner: Ints, joined: Iterable[Joined]) -> list[Joined]:
    """List the nodes that fused into, or split from, the sibling before them, moved or not."""
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
) -> Iterator[Pair]:
    """Yield pairs of a paired node and a free sibling right behind that its partner took in."""
    for before, x in pairwise(nodes.children.tolist()):
        if partner[x] >= 0 or x in known or nodes.parent[before] != nodes.parent[x]:
            continue
        p = known.get(before, before)
        q = int(partner[p])
        if q >= 0 and _absorbed(nodes, p, others, q, nodes.types[x]):
            known[x] = p
            yield p, x
