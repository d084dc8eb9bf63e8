"""Grouping: which kinds of span are left of a trace, and which spans become one, to fit a budget.

The first half of `reduction`: it chooses, and sums nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.errors import TraceFormatError
from xsp.evaluation import generations
from xsp.level import Kind
from xsp.trace import similarity as shape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

CLASS = "module_class"
LANE = ("thread", "device", "stream")

# While kinds can be left out instead, only spans up to this part of the model are rolled up.
_SMALL = 0.01
_ORDERS = {kind.value: kind.order for kind in Kind}
# Knuth's multiplier; odd, so that different numbers stay different.
_ODD = np.uint64(6364136223846793005)


@dataclass(frozen=True, slots=True)
class Tree:
    """A full tree, an entry per row of its frame.

    Attributes:
        parent: Row of each span's parent, -1 for the root.
        order: `Kind.order`.
        size: Latency, or as long as it is drawn where that is not known.
        alike: A hash that is equal where siblings may be rolled up: of one kind, name
            (of layers: class), phase and lane, and left by the same exception.
        beside: The same, whatever the names and phases.
    """

    parent: Ints
    order: Ints
    size: Floats
    alike: Keys
    beside: Keys


@dataclass(frozen=True, slots=True)
class Part:
    """The tree of the kinds that are left, an entry per span in it.

    Attributes:
        rows: Row in the full tree.
        parent: Index of the parent in this part, -1 for the root.
        hidden: For how many spans that are cut it is the nearest ancestor left.
        size: The least size from below the root down to the span: what lies in a
            small span is small.
        generations: The spans of depth 0, of depth 1, and so on.
    """

    rows: Ints
    parent: Ints
    hidden: Ints
    size: Floats
    generations: tuple[Ints, ...]

    def keys(self, look: Keys, small: float) -> Keys:
        """Return a number per span, equal for those that become one.

        Spans of at most the size `small` do where they look the same and hang in one
        span, or in spans that become one.
        """
        keys: Keys = np.arange(1, len(self.rows) + 1, dtype=np.uint64) * _ODD
        rolls = self.size <= small
        for members in self.generations[1:]:
            rows = members[rolls[members]]
            keys[rows] = (keys[self.parent[rows]] ^ look[self.rows[rows]]) * _ODD
        return keys


@dataclass(frozen=True, slots=True)
class Groups:
    """Spans of a part that become one, in the order of their first members.

    Attributes:
        of: Number of each span's group; the root's is 0.
        first: Index of each group's first member.
        size: How many members each group has.
    """

    of: Ints
    first: Ints
    size: Ints


def tree_of(spans: pl.DataFrame) -> Tree:
    """Return the tree over a frame with the columns of `trace.spans`.

    Raises:
        TraceFormatError: It is not one tree, parents before children.
    """
    drawn = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    size = spans.select(pl.coalesce(pl.col("latency_ns").fill_nan(None), drawn)).to_series()
    beside = spans.select("kind", *LANE, shape.field(spans, "error"))
    label = pl.when(pl.col("kind") == Kind.LAYER.value).then(shape.field(spans, CLASS))
    named = spans.select(pl.coalesce(label, "name"), shape.field(spans, "phase"))
    return Tree(
        parent=_parents(spans),
        order=spans["kind"].replace_strict(_ORDERS, return_dtype=pl.Int64).to_numpy(),
        size=size.to_numpy(),
        alike=beside.hstack(named).hash_rows().to_numpy(),
        beside=beside.hash_rows().to_numpy(),
    )


def _parents(spans: pl.DataFrame) -> Ints:
    rows = spans.select(parent_id="span_id", row=pl.int_range(pl.len(), dtype=pl.Int64))
    asked = spans.select("parent_id")
    linked = asked.join(rows, on="parent_id", how="left", maintain_order="left")
    parents: Ints = linked["row"].fill_null(-1).to_numpy()
    numbers = np.arange(len(parents))
    lost = (parents < 0) != (numbers == 0)
    if len(parents) != spans.height or np.any(lost | (parents >= numbers)):
        raise TraceFormatError(
            "the spans are not one tree, the root first and parents before children: "
            "the trace is damaged or was put together wrongly"
        )
    return parents


def fitting(tree: Tree, most: int) -> tuple[Part, Groups]:
    """Return which spans are left and which of them become one, at most so many in all.

    As many kinds are left as fit when only small spans become one. The outermost are
    left even where large spans must, and at last such as do not look alike; if
    nothing helps, the root is left.
    """
    orders = np.unique(tree.order[1:]).tolist()
    outermost = next((order for order in orders if order > tree.order[0]), np.inf)
    for deepest in reversed(orders):
        part = part_of(tree, deepest)
        limit = np.inf if deepest <= outermost else _SMALL * tree.size[0]
        keys = _keys(part, tree.alike, most=most, limit=limit)
        if keys is None and deepest <= outermost:
            keys = _keys(part, tree.beside, most=most, limit=limit)
        if keys is not None:
            return part, _groups(keys)
    root = part_of(tree, -1)
    return root, _groups(root.keys(tree.alike, 0.0))


def part_of(tree: Tree, deepest: int) -> Part:
    """Return the root and the spans up to this order, each below its nearest ancestor left."""
    left = tree.order <= deepest
    left[0] = True
    above = tree.parent.copy()
    astray = np.flatnonzero((above >= 0) & ~left[above])
    while len(astray):
        above[astray] = above[above[astray]]
        astray = astray[~left[above[astray]]]
    rows, index = np.flatnonzero(left), np.cumsum(left) - 1
    parent = np.where(rows > 0, index[above[rows]], -1)
    hidden = np.bincount(index[above[~left]], minlength=len(rows))
    depths = tuple(generations(parent))
    size = tree.size[rows]
    size[0] = np.inf
    for members in depths[1:]:
        size[members] = np.minimum(size[members], size[parent[members]])
    return Part(rows, parent, hidden, size, depths)


def _keys(part: Part, look: Keys, *, most: int, limit: float) -> Keys | None:
    """Return keys of at most `most` kinds, as few spans becoming one as can be.

    None if it takes spans larger than `limit`. The larger what passes for small, the
    fewer spans are left: the least size that fits is found by halving.
    """
    if len(part.rows) <= most:
        return part.keys(look, -1.0)

    def fits(small: float) -> bool:
        return pl.Series(part.keys(look, small)).n_unique() <= most

    # Below this size, too many spans stand for themselves alone.
    least = np.partition(part.size, -most)[-most]
    sizes = part.size[1:]
    sizes = np.unique(sizes[(sizes >= least) & (sizes <= limit)])
    if not len(sizes) or not fits(sizes[-1]):
        return None
    return part.keys(look, sizes[bisect_left(sizes.tolist(), True, key=fits)])


def _groups(keys: Keys) -> Groups:
    _, first, group, size = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    by_first = np.argsort(first)
    return Groups(np.argsort(by_first)[group], first[by_first], size[by_first])
