"""Memory alive at a moment: memory held and a span in, what each span left that is alive out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xsp.analyses.memory.family import family_order, lowest_from, running_sum
from xsp.analyses.memory.held import Held, summed
from xsp.evaluation import Ints

Bools = NDArray[np.bool_]


def peak_index(memory: Held) -> int:
    """Return the index of the innermost span in which most memory was held, the first of these."""
    leaf = np.flatnonzero(memory.is_leaf)
    return int(leaf[np.argmax(memory.highest[leaf])])


def alive_at(memory: Held, at: int) -> Ints:
    """Return how many bytes that each span itself allocated are alive at the peak of one of them.

    Of what the spans of one parent left behind, later ones free the latest, as a backward pass
    frees what the forward pass saved; and the parent frees the oldest, as a chain of layers does.

    Args:
        memory: The memory of a trace's spans.
        at: Index of a span in which no other lies.
    """
    running = _around(memory.parent, at)
    begun, gone = _begun(memory.parent, running), memory.own_freed.copy()
    for child in np.flatnonzero(running):
        if memory.parent[child] >= 0:
            gone[memory.parent[child]] = memory.released[child]
    left = _left(np.where(begun & ~running, memory.net, 0), memory.parent, gone)
    # What a span freed itself beyond what the spans in it had left was its own.
    rest = np.maximum(gone - summed(np.maximum(memory.net, 0) - left, memory.parent), 0)
    own = np.maximum(memory.own_allocated - np.where(running, 0, rest), 0)
    own[at] = memory.peak[at]
    part = _part_alive(memory, running, left, own)
    return np.rint(own * part).astype(np.int64)


def _around(parent: Ints, at: int) -> Bools:
    """Return which spans are one of them, or around it."""
    found = np.zeros(len(parent), dtype=np.bool_)
    while at >= 0:
        found[at] = True
        at = int(parent[at])
    return found


def _begun(parent: Ints, running: Bools) -> Bools:
    """Return which spans had begun, of the siblings of those that run."""
    order, begin = family_order(parent)
    place = np.flatnonzero(running[order])
    last = np.full(len(parent), len(parent))
    last[begin[place]] = place
    begun = np.empty(len(parent), dtype=np.bool_)
    begun[order] = np.arange(len(parent)) <= last[begin]
    return begun


def _left(net: Ints, parent: Ints, gone: Ints) -> Ints:
    """Return what of each span's net is left, after later siblings and the parent freed theirs."""
    order, begin = family_order(parent)
    above, values = parent[order], net[order]
    level = running_sum(values, begin)
    kept = np.clip(lowest_from(level, begin) - level + values, 0, np.maximum(values, 0))
    older = running_sum(kept, begin) - np.where(above >= 0, gone[above], 0)
    left = np.empty_like(net)
    left[order] = np.clip(older, 0, kept)
    return left


def _part_alive(memory: Held, running: Bools, left: Ints, own: Ints) -> NDArray[np.float64]:
    """Return the part of each span's own bytes that is alive, from the outermost spans inwards."""
    inside = own + summed(left, memory.parent)
    part = np.ones(len(own))
    for rows in memory.levels:
        above = memory.parent[rows]
        around = np.where(above >= 0, part[above], 1.0)
        ratio = np.minimum(left[rows] / np.maximum(inside[rows], 1), 1.0)
        part[rows] = np.where(running[rows], 1.0, around * ratio)
    return part
