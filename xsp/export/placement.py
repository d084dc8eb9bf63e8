"""Placement: when spans that were rolled up are drawn, inside their parent and apart.

Members of a group are drawn end to end. So groups take the place of the spans
they are made of, in the order of their first members: what was between the
spans of a lane stands between the groups, and the total stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Spans as they are drawn before any is rolled up; one entry each, by row.

    Attributes:
        parent: Row of each span's parent, -1 for the root, which is row 0.
        generations: Rows of depth 0, of depth 1, and so on.
        lane: What runs one after the other: a number for each thread or stream.
        host: Whether it is drawn within its parent; what runs on a device need not be.
        start_ns: From 0 at the root's start.
        end_ns: The same.
    """

    parent: Ints
    generations: tuple[Ints, ...]
    lane: Ints
    host: Bools
    start_ns: Ints
    end_ns: Ints


def place(drawn: Drawn, group: Ints) -> tuple[Ints, Ints]:
    """Return start and end of each group of spans.

    Groups of one parent and lane do not overlap, lie in their parent, and are as
    long as their members together. Where spans of a host's lane overlap already
    (coroutines take turns), they stay where they are, and a group reaches from its
    first member to its last.

    Args:
        drawn: The spans.
        group: Number of each span's group, from 0, the root's; a group's members are
            on one lane, and their parents in one group.

    >>> parent, lane, host = np.array([-1, 0, 0, 0]), np.zeros(4, int), np.ones(4, bool)
    >>> levels = (np.array([0]), np.array([1, 2, 3]))
    >>> spans = Drawn(parent, levels, lane, host, np.array([0, 1, 4, 6]), np.array([9, 3, 6, 8]))
    >>> place(spans, np.array([0, 1, 2, 1]))  # the third span joins the first
    (array([0, 1, 6]), array([9, 5, 8]))
    """
    start, end = np.zeros((2, int(group.max()) + 1), dtype=np.int64)
    length = drawn.end_ns - drawn.start_ns
    end[0] = length[0]
    # A group's own time begins with its first member: where in it each member begins.
    within = np.zeros(len(group), dtype=np.int64)
    for rows in drawn.generations[1:]:
        above = drawn.parent[rows]
        begin, finish = _bounds(drawn, rows, length[above])
        length[rows] = finish - begin
        lanes = _Lanes(group[above], drawn.lane[rows], begin, finish, within[above])
        leaders, first, last, within[rows] = lanes.arrange(group[rows], drawn.host[rows])
        base = start[group[above[leaders]]]
        start[group[rows[leaders]]], end[group[rows[leaders]]] = base + first, base + last
    return start, end


def _bounds(drawn: Drawn, rows: Ints, room: Ints) -> tuple[Ints, Ints]:
    """Return where rows begin and end in their parents; what must lie inside is kept there."""
    base = drawn.start_ns[drawn.parent[rows]]
    begin, finish = drawn.start_ns[rows] - base, drawn.end_ns[rows] - base
    host = drawn.host[rows]
    begin = np.where(host, np.clip(begin, 0, room), begin)
    return begin, np.where(host, np.clip(finish, begin, room), np.maximum(finish, begin))


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Spans of one generation: where they begin and end in their own parents.

    `above` is the parent's group, `offset` where in that group's time the parent begins.
    """

    above: Ints
    lane: Ints
    begin: Ints
    finish: Ints
    offset: Ints

    def arrange(self, group: Ints, host: Bools) -> tuple[Ints, Ints, Ints, Ints]:
        """Return a member of each group, its begin and end, and where in it each span begins."""
        begin, finish = self.begin + self.offset, self.finish + self.offset
        order = np.lexsort((finish, begin, self.lane, self.above))
        lane = np.cumsum(_changes(self.above[order]) | _changes(self.lane[order])) - 1
        gap = _gaps(begin[order], finish[order], lane)
        crowded = np.bincount(lane[(gap < 0) & host[order]], minlength=lane[-1] + 1) > 0
        # What is left at the end of the parent before stays there. And only the first
        # of a lane may begin before its parent does, on a device.
        gap = np.minimum(gap, self.begin[order])
        gap = np.where(_changes(lane), gap, np.maximum(gap, 0))
        together = np.argsort(_first_places(group[order]), kind="stable")
        order, lane, gap = order[together], lane[together], gap[together]
        head = np.flatnonzero(_changes(group[order]))
        length, size = (finish - begin)[order], np.diff(head, append=len(order))
        total = np.add.reduceat(length, head)
        last = _running(total + np.add.reduceat(gap, head), lane[head])
        tight = crowded[lane[head]]
        first = np.where(tight, np.minimum.reduceat(begin[order], head), last - total)
        last = np.where(tight, np.maximum.reduceat(finish[order], head), last)
        as_it_was = begin[order] - np.repeat(first, size)
        within = np.empty_like(length)
        end_to_end = _running(length, group[order]) - length
        within[order] = np.where(crowded[lane], as_it_was, end_to_end)
        return order[head], first, last, within


def _gaps(begin: Ints, finish: Ints, lane: Ints) -> Ints:
    """Return what lies before each span: since the one before it, or its parent's start."""
    gap: Ints = begin.copy()
    later = np.flatnonzero(~_changes(lane))
    gap[later] -= finish[later - 1]
    return gap


def _changes(values: Ints) -> Bools:
    """Return whether each value differs from the one before it; the first one does."""
    changes = np.ones(len(values), dtype=bool)
    changes[1:] = values[1:] != values[:-1]
    return changes


def _first_places(group: Ints) -> Ints:
    """Return for each span the place of the first one of its group."""
    _, place, inverse = np.unique(group, return_index=True, return_inverse=True)
    places: Ints = place[inverse]
    return places


def _running(values: Ints, part: Ints) -> Ints:
    """Return running sums that begin anew wherever `part` changes."""
    total = values.cumsum()
    head = np.flatnonzero(_changes(part))
    size = np.diff(head, append=len(values))
    running: Ints = total - np.repeat(total[head] - values[head], size)
    return running
