"""Computes the memory held before each span of a tree, and allocated and freed within the span.

Records say of a layer or operator how much was allocated and freed within it, and how high the
memory held rose above its beginning (other tools' recordings lack that); not which memory was
freed, nor when in the span. What a span frees itself, outside of the spans in it, is assumed to
be freed as soon as it can be, when the span after the one that left it behind has ended: in a
chain of layers each needs the output of the one before. Where the recorded peak of the span
around is higher than that allows it is freed later, where lower earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.memory.family import family_order, running_max, running_sum
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.matching import Ints, generations

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Held:
    """Spans whose memory is known, siblings in the order they began; all sizes in bytes.

    Memory is that of all devices together, from 0 when the trace begins: what was allocated
    before, such as parameters, is not in it. A span that stands for several calls has the memory
    of one.

    Attributes:
        row: Row of each span in the tree.
        parent: Index of the innermost one around each on its thread, -1 for none.
        levels: Indexes of the spans by depth, the outermost first.
        allocated: Allocated within the span.
        freed: Freed within the span.
        peak: Most held within the span above what was held at its start.
        recorded: Whether peaks are recorded; else they are as the spans inside imply.
        own_allocated: Allocated within the span, outside of the spans in it.
        own_freed: Freed within the span, outside of the spans in it.
        before: Held when the span began.
        released: What the span around had freed itself when the span began.
    """

    row: Ints
    parent: Ints
    levels: list[Ints]
    allocated: Ints
    freed: Ints
    peak: Ints
    recorded: bool
    own_allocated: Ints
    own_freed: Ints
    before: Ints
    released: Ints

    @property
    def net(self) -> Ints:
        """Bytes that each span left behind; negative where it freed more than it allocated."""
        return self.allocated - self.freed

    @property
    def highest(self) -> Ints:
        """Most memory held while each span ran."""
        return self.before + self.peak

    @property
    def is_leaf(self) -> NDArray[np.bool_]:
        """Whether no other of these spans lies in a span."""
        leaf = np.ones(len(self.row), dtype=np.bool_)
        leaf[self.parent[self.parent >= 0]] = False
        return leaf


@once_per_trace
def held(tree: Tree) -> Held:
    """Return the memory of a tree's layers and operators."""
    row, parent = _known(tree)
    allocated, freed, peak = (
        tree.attribute(name, pl.Int64).fill_null(_UNKNOWN).to_numpy()[row]
        for name in ("allocated_bytes", "freed_bytes", "peak_bytes")
    )
    freed, recorded = np.maximum(freed, 0), bool((peak != _UNKNOWN).any())
    own = [np.maximum(each - summed(each, parent), 0) for each in (allocated, freed)]
    levels = list(generations(parent))
    behind, released = _siblings(allocated - freed, parent, own[1])
    peak, within = _peaks(behind - released, peak, own[0], parent, levels)
    # What was released before each span, so that peaks agree with those around them.
    own_allocated = own[0]
    inside = np.flatnonzero(parent >= 0)
    above, result = parent[inside], released.copy()
    later = np.maximum(result[inside] - np.maximum(peak - within, 0)[above], 0)
    over = own_allocated[above] + (behind + peak)[inside] - later - peak[above]
    result[inside] = later + np.maximum(over, 0)
    released = result
    before = behind - released
    for rows in levels[1:]:
        before[rows] += before[parent[rows]] + own[0][parent[rows]]
    return Held(
        row, parent, levels, allocated, freed, peak, recorded, own[0], own[1], before, released
    )


def _peaks(
    offset: Ints, peak: Ints, own_allocated: Ints, parent: Ints, levels: list[Ints]
) -> tuple[Ints, Ints]:
    """Return the peak of each span, and what the spans in it imply that it is.

    Args:
        offset: What the siblings before each span have left behind.
        peak: Recorded peaks, `_UNKNOWN` where there is none.
        own_allocated: What each span allocated itself.
        parent: Index of each span's parent, -1 for none.
        levels: Indexes of the spans by depth.
    """
    peak, within = peak.copy(), own_allocated.copy()
    for rows in reversed(levels):
        unknown = rows[peak[rows] == _UNKNOWN]
        peak[unknown] = within[unknown]
        inside = rows[parent[rows] >= 0]
        above = parent[inside]
        np.maximum.at(within, above, own_allocated[above] + offset[inside] + peak[inside])
    return peak, within


def summed(values: Ints, parent: Ints) -> Ints:
    """Return for each span the sum of the values of those right below."""
    inside = parent >= 0
    result = np.zeros_like(values)
    np.add.at(result, parent[inside], values[inside])
    return result


def _known(tree: Tree) -> tuple[Ints, Ints]:
    """Return the rows of spans whose memory is known, in their order, and their parents."""
    known = tree.is_of(Kind.LAYER, Kind.OP)
    known = known & tree.attribute("allocated_bytes", pl.Int64).is_not_null().to_numpy()
    rows = np.flatnonzero(known)
    above, thread = tree.nearest(known)[rows], tree.spans["thread"].fill_null(-1).to_numpy()
    above = np.where((above >= 0) & (thread[above] == thread[rows]), above, -1)
    place = np.zeros(len(known) + 1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    place[-1] = -1
    return rows, place[above]


def _siblings(net: Ints, parent: Ints, own_freed: Ints) -> tuple[Ints, Ints]:
    """Compute the bytes that earlier siblings of each span left, and how many are freed again."""
    order, begin = family_order(parent)
    values = net[order]
    left = running_sum(values, begin) - values
    # A sibling's end frees what those before it left behind: the span after sees that.
    first = np.arange(len(order)) == begin
    freed = np.where(first, 0, np.roll(np.maximum(running_max(left, begin), 0), 1))
    limit = np.where(parent[order] >= 0, own_freed[parent[order]], 0)
    behind, released = np.empty_like(net), np.empty_like(net)
    behind[order], released[order] = left, np.minimum(freed, limit)
    return behind, released
