"""Finds, among sorted operators of layers, where one call of a layer ends and another begins.

A layer with shared weights, and the cell of a recurrent network, are called several times, and all
operators of all calls bear one name. A layer begins anew where the operator by which it began runs
again, after another layer's operator ran from beginning to end while the layer had none open.
Operators of parallel branches that merely take turns bear other names, and cut nothing.

    a.mul  a.add  b.mul  a.mul  a.add        layers   a  b  a
    a.mul  b.mul  a.add  b.add               layers   a  b, which overlap

A layer is not divided if that would leave parts that are unlike: in `n` calls each operator runs
about `n` times, on average at least two thirds of that. Where what runs again is another node of
the graph (a module that was written into the graph twice, or two like nodes of one call), each
operator must run a multiple of `n` times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Pauses:
    """The times at which operators ran, to be asked whether any ran within a time.

    Args:
        world: Number of each operator's world: only operators of one world are compared.
        start: Start of each operator, in nanoseconds.
        end: End of each operator.
    """

    def __init__(self, world: Integers, start: Integers, end: Integers) -> None:
        worlds, number = np.unique(world, return_inverse=True)
        first = np.full(len(worlds), np.iinfo(np.int64).max)
        last = np.full(len(worlds), np.iinfo(np.int64).min)
        np.minimum.at(first, number, start)
        np.maximum.at(last, number, end)
        length = last - first + 1
        self._shift = (np.cumsum(length) - length - first)[number]  # worlds follow one another
        self.start, self.end = start + self._shift, end + self._shift
        order = np.argsort(self.start, kind="stable")
        self._starts = self.start[order]
        # In half nanoseconds, so that an operator may end as the pause does, but not an instant.
        ends = (2 * self.end - (self.end > self.start))[order]
        self._earliest = np.minimum.accumulate(ends[::-1])[::-1]

    def filled(self, begin: Integers, end: Integers) -> Bools:
        """Return during which pauses an operator ran from beginning to end.

        Args:
            begin: Start of each pause, in the times of `start`.
            end: End of each pause, at which an operator starts.
        """
        at = np.searchsorted(self._starts, begin)
        return self._earliest[np.minimum(at, len(self._earliest) - 1)] < 2 * end


def reached(group: Integers, start: Integers, end: Integers) -> Integers:
    """Return the latest end of the intervals of the group that come before each interval.

    Of the first interval of a group its own start. Intervals are sorted by group and start.

    >>> group, start = np.array([0, 0, 0, 1]), np.array([1, 2, 7, 1])
    >>> reached(group, start, np.array([5, 3, 9, 2]))
    array([1, 5, 5, 1])
    """
    head = np.diff(group, prepend=-1) != 0
    shift = np.cumsum(head) * (int(end.max()) - int(start.min()) + 1)  # keeps the groups apart
    before = np.roll(np.maximum.accumulate(end + shift) - shift, 1)
    before[head] = start[head]
    return before


def begins_anew(
    layer: Integers, key: Integers, node: Integers, filled: Bools, continued: Bools
) -> Bools:
    """Return which operators begin another call of their layer.

    Args:
        layer: Number of each operator's layer; operators are sorted by layer and start.
        key: What each operator is: equal for equal operators.
        node: Number of the node of the graph that each operator is, 0 where that is not known.
        filled: Whether, in a pause of the layer before the operator, another operator ran.
        continued: Whether the operator before it on its thread is the layer's, too. Then only
            the same node is taken for another call: other threads ran what filled the pause.

    >>> key, filled = np.array([1, 2, 1, 2]), np.array([False, True, True, True])
    >>> nothing = np.zeros(4, int)
    >>> begins_anew(nothing, key, nothing, filled, nothing.astype(bool))
    array([False, False,  True, False])
    """
    head = np.diff(layer, prepend=-1) != 0
    number = np.cumsum(head) - 1
    first = np.flatnonzero(head)[number]
    again = (node == node[first]) & (node > 0)
    anew = filled & ~head & (key == key[first]) & (again | ~continued)
    if not anew.any():
        return anew
    calls = 1 + np.bincount(number, weights=anew).astype(np.int64)
    sure = np.bincount(number, weights=anew & (node != node[first])) == 0
    # Which layers are divided into so many like parts, about and exactly.
    pairs, runs = np.unique(np.stack([number, key]), axis=1, return_counts=True)
    different, total = np.bincount(pairs[0]), np.bincount(pairs[0], weights=runs)
    odd = np.bincount(pairs[0], weights=runs % calls[pairs[0]])
    divided = 3 * total >= 2 * calls * different, odd == 0
    return anew & np.where(sure, *divided)[number]
