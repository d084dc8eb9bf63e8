"""Computes the time in which at least one of some intervals runs.

Time in which intervals overlap counts once. Merging asks for two unions: the time that the
children of a span cover, and the time in which devices worked below a span.

    intervals   0-4, 2-6, 8-9       union   6 + 1 = 7
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from xsp.matching.ancestry import depths

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Times = list[tuple[int, int]]  # begin and end of each, disjoint and in their order


def covered(group: Ints, start: Ints, end: Ints, count: int) -> Floats:
    """Return for each of `count` groups how much time the intervals of the group cover.

    Args:
        group: Number of each interval's group, from 0.
        start: Start of each interval.
        end: End of each interval.
        count: Number of groups.

    >>> covered(np.array([0, 0, 1]), np.array([0, 2, 5]), np.array([4, 6, 7]), 3)
    array([6., 2., 0.])
    """
    if not len(group):
        return np.zeros(count)
    order = np.argsort(group, kind="stable")
    groups, starts = group[order], start[order]
    if np.any((starts[1:] < starts[:-1]) & (groups[1:] == groups[:-1])):  # mostly in order
        order = np.lexsort((start, group))
        starts = start[order]
    added = _added(groups, starts, end[order])
    return np.bincount(groups, weights=added, minlength=count).astype(np.float64)


def covered_part(parent: Ints, rows: Ints, start: Ints, end: Ints) -> Floats:
    """Return which part of each row's time some rows right inside it cover, 0 to 1.

    Args:
        parent: Index of the parent of each of `rows`.
        rows: Indices of rows.
        start: Start of every row.
        end: End of every row.

    >>> start, end = np.array([0, 2, 3]), np.array([8, 4, 6])
    >>> covered_part(np.array([0, 0]), np.array([1, 2]), start, end)
    array([0.5, 0. , 0. ])
    """
    inside = covered(parent, start[rows], end[rows], len(start))
    return np.minimum(inside / np.maximum(end - start, 1), 1.0)


def covered_below(parent: Ints, rows: Ints, times: tuple[Ints, Ints]) -> Floats:
    """Return how much time some `rows` of a forest cover, taken together, below every row.

    For one of `rows` that is its own length. Works depth by depth from the innermost: `rows` are
    sorted by start once, and stay sorted within every ancestor.

    Args:
        parent: Index of each row's parent, -1 for roots.
        rows: The rows whose time is taken.
        times: Start and end of every row of the forest.

    >>> covered_below(np.array([-1, 0, 1, 1]), np.array([2, 3]),
    ...               (np.array([0, 0, 2, 3]), np.array([9, 8, 4, 6])))
    array([4., 4., 2., 3.])
    """
    start, end = times
    result = np.zeros(len(parent))
    rows = rows[np.argsort(start[rows], kind="stable")]
    result[rows] = (end - start)[rows]
    for place, above in _ancestors(parent, rows):
        order = np.argsort(above, kind="stable")
        inside = rows[place[order]]
        added = _added(above[order], start[inside], end[inside])
        result += np.bincount(above[order], weights=added, minlength=len(parent))
    return result


def united(times: Sequence[tuple[int, int]] | Ints) -> Times:
    """Return times in their order, those that overlap or touch as one.

    Args:
        times: Begin and end of each, `[times, 2]`.

    >>> united([(5, 7), (0, 2), (6, 9), (2, 3)])
    [(0, 3), (5, 9)]
    """
    if not len(times):
        return []
    known = np.array(times, dtype=np.int64)
    begin, end = known[np.argsort(known[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, begin[1:] > reached[:-1]))
    last = np.append(first[1:], len(begin)) - 1
    return list(zip(begin[first].tolist(), reached[last].tolist(), strict=True))


def clipped(times: Sequence[tuple[int, int]], begin: int, end: int) -> Times:
    """Return the parts of disjoint times, given in their order, that lie between two times.

    >>> clipped([(0, 3), (5, 9)], 2, 6)
    [(2, 3), (5, 6)]
    """
    first = bisect_right(times, begin, key=lambda time: time[1])
    last = bisect_left(times, end, key=lambda time: time[0])
    return [(max(since, begin), min(until, end)) for since, until in times[first:last]]


def free(times: Sequence[tuple[int, int]], begin: int, end: int) -> Times:
    """Return the parts between two times that lie in none of disjoint times, given in their order.

    >>> free([(0, 3), (5, 9)], 2, 12)
    [(3, 5), (9, 12)]
    """
    result, since = [], begin
    for taken, until in clipped(times, begin, end):
        if since < taken:
            result.append((since, taken))
        since = until
    if since < end:
        result.append((since, end))
    return result


def _ancestors(parent: Ints, rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield for each depth which of the rows have an ancestor there, and that ancestor."""
    depth = depths(parent)
    current = rows.copy()
    for level in range(int(depth[rows].max(initial=0)) - 1, -1, -1):
        deeper = depth[current] > level
        current[deeper] = parent[current[deeper]]
        place = np.flatnonzero((depth[current] == level) & (current != rows))
        if len(place):
            yield place, current[place]


def _added(group: Ints, start: Ints, end: Ints) -> Ints:
    """Return how much time each interval adds to the union of those before it in its group.

    The intervals are sorted by group and start.
    """
    head = np.ones(len(group), dtype=bool)
    np.not_equal(group[1:], group[:-1], out=head[1:])
    shift = np.cumsum(head) * (int(end.max()) - int(start.min()) + 1)  # keeps the groups apart
    reached = np.maximum.accumulate(end + shift) - shift
    before = np.roll(reached, 1)
    before[head] = start[head]
    return np.maximum(end - np.maximum(start, before), 0)
