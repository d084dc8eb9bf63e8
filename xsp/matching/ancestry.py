"""Computes depths, ancestors and subtree sums of trees given as arrays of parents.

A tree, or several, of n rows is an array of n integers: at each row the index of its
parent, -1 for a root. Parents need not come before their children.

    row       0   1   2   3
    parent   -1   0   1   0        row 2 lies in row 1, rows 1 and 3 lie in row 0
    depth     0   1   2   1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def depths(parent: Ints) -> Ints:
    """Return how many ancestors each row has.

    Args:
        parent: Index of each row's parent, -1 for roots.

    >>> depths(np.array([-1, 0, 1, 0]))
    array([0, 1, 2, 1])
    """
    depth = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    active = np.flatnonzero(ancestor >= 0)
    while len(active):
        above = ancestor[active]
        depth[active], ancestor[active] = depth[active] + depth[above], ancestor[above]
        active = active[ancestor[active] >= 0]
    return depth


def numbered(*columns: Ints) -> tuple[Ints, Ints]:
    """Number the rows of some columns, equal rows alike, in the order of their values.

    It is quicker than `np.unique` where few rows differ, and needs no copy of the table.

    Args:
        columns: Of one length each.

    Returns:
        The first row of each number, and the number of each row.

    >>> numbered(np.array([5, 3, 5, 3]), np.array([1, 2, 1, 1]))
    (array([3, 1, 0]), array([2, 1, 2, 0]))
    """
    number = np.zeros(len(columns[0]), np.int64)
    count = 1
    for column in columns:
        values = np.unique(column)
        number = number * len(values) + np.searchsorted(values, column)
        kept = np.unique(number)
        number, count = np.searchsorted(kept, number), len(kept)
    first = np.zeros(count if len(number) else 0, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return first, number


def generations(parent: Ints) -> Iterator[Ints]:
    """Yield the rows of depth 0, of depth 1, and so on, each in their given order."""
    depth = depths(parent)
    # Integers of 16 bits are sorted in linear time.
    shallow = depth.max(initial=0) <= np.iinfo(np.int16).max
    order = np.argsort(depth.astype(np.int16) if shallow else depth, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def subtree_sums(values: Floats, parent: Ints, levels: Sequence[Ints] | None = None) -> Floats:
    """Return for each row the sum of `values` over the rows nested in it, itself excluded.

    Args:
        values: `[rows]`, or `[kinds of value, rows]`.
        parent: Index of each row's parent, -1 for roots.
        levels: What `generations` yields, if it is known.

    >>> subtree_sums(np.array([1.0, 2.0, 4.0, 8.0]), np.array([-1, 0, 1, 0]))
    array([14.,  4.,  0.,  0.])
    """
    below = np.zeros(values.shape)
    pairs = list(zip(np.atleast_2d(values), np.atleast_2d(below), strict=True))
    levels = list(generations(parent)) if levels is None else levels
    for rows in reversed(levels[1:]):
        above = parent[rows]
        for each, sums in pairs:
            np.add.at(sums, above, each[rows] + sums[rows])
    return below


def nearest(parent: Ints, rows: Ints, wanted: Bools) -> Ints:
    """Return for each of `rows` the row itself if it is wanted, else its nearest wanted ancestor.

    Args:
        parent: Index of each of n rows' parent, -1 for roots.
        rows: Indices of the rows to begin with; -1 stays -1. With `parent[rows]` instead of
            `rows` only ancestors are found.
        wanted: Which of the n rows are wanted.

    Returns:
        Indices, -1 where neither the row nor any ancestor is wanted.

    >>> wanted = np.array([True, False, False, True])
    >>> nearest(np.array([-1, 0, 1, 0]), np.array([2, 3]), wanted)
    array([0, 3])
    """
    found = rows.copy()
    climbing = np.flatnonzero(found >= 0)
    while len(climbing := climbing[~wanted[found[climbing]]]):
        found[climbing] = parent[found[climbing]]
        climbing = climbing[found[climbing] >= 0]
    return found


def nearest_outer(parent: Ints, order: Ints) -> Ints:
    """Return each row's nearest ancestor whose `order` is not above the row's own, or -1.

    >>> nearest_outer(np.array([-1, 0, 1, 2]), np.array([0, 1, 2, 1]))
    array([-1,  0,  1,  1])
    """
    found = parent.copy()
    climbing = np.flatnonzero(found >= 0)
    while len(climbing := climbing[order[found[climbing]] > order[climbing]]):
        found[climbing] = parent[found[climbing]]
        climbing = climbing[found[climbing] >= 0]
    return found


def lineage(parent: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return some rows and all of their ancestors, each with the row that it was found for.

    Returns:
        Indices of `rows` and of ancestors, and for each of these the position in `rows` of the
        row that it is, or is an ancestor of.

    >>> lineage(np.array([-1, 0, 1, 0]), np.array([2, 3]))
    (array([2, 3, 1, 0, 0]), array([0, 1, 0, 1, 0]))
    """
    ancestors, places = [rows], [np.arange(len(rows))]
    while np.any(further := parent[ancestors[-1]] >= 0):
        places.append(places[-1][further])
        ancestors.append(parent[ancestors[-1][further]])
    return np.concatenate(ancestors), np.concatenate(places)


def roots_of(parent: Ints) -> Ints:
    """Return each row's root: the ancestor, or the row itself, that has no parent.

    Rows that are each other's ancestors (a circle) have no root; for these rows, and all rows
    in them, some row of the circle is returned, never a root.

    >>> roots_of(np.array([-1, 0, 1, 4, 3]))
    array([0, 0, 0, 3, 4])
    """
    top = np.where(parent < 0, np.arange(len(parent)), parent)
    for _ in range(len(parent).bit_length()):  # each pass doubles how far up each row looks
        above = top[top]
        if np.array_equal(above, top):
            break
        top = above
    return top


def highest(parent: Ints, values: Ints) -> Ints:
    """Return for each row the highest of the `values` of itself and its ancestors.

    >>> highest(np.array([-1, 0, 1, 0]), np.array([3, 5, 1, 2]))
    array([3, 5, 5, 3])
    """
    found = values.copy()
    for rows in list(generations(parent))[1:]:
        found[rows] = np.maximum(found[rows], found[parent[rows]])
    return found


def is_forward(parent: Ints) -> bool:
    """Return whether every row comes after its parent."""
    return bool(np.all(parent < np.arange(len(parent))))


def rearranged(parent: Ints, sequence: Ints) -> Ints:
    """Return the parents of rows that were put into another sequence, as indices in the sequence.

    >>> rearranged(np.array([-1, 2, 0]), np.array([0, 2, 1]))
    array([-1,  0,  1])
    """
    moved = parent[sequence]
    return np.where(moved < 0, -1, inverse(sequence)[moved])


def inverse(sequence: Ints) -> Ints:
    """Return the place to which a permutation moves each row.

    >>> inverse(np.array([2, 0, 1]))
    array([1, 2, 0])
    """
    place = np.empty_like(sequence)
    place[sequence] = np.arange(len(sequence))
    return place


def innermost(start: Ints, end: Ints, on: Ints, parent: Ints, time: Ints, thread: Ints) -> Ints:
    """Return the number of the innermost span around each moment on its thread, or -1.

    Args:
        start: When each span began, shape `[spans]`; parents come before their children.
        end: When each span ended.
        on: Thread of each span.
        parent: Number of the span around each span; -1: none.
        time: The moments.
        thread: Thread of each moment.
    """
    found = np.full(len(time), -1, np.int64)
    for one in np.unique(thread):
        mine, asking = np.flatnonzero(on == one), np.flatnonzero(thread == one)
        if len(mine):
            mine = mine[np.argsort(start[mine], kind="stable")]  # parents come before children
            latest = np.searchsorted(start[mine], time[asking], "right") - 1
            found[asking] = np.where(latest >= 0, mine[latest], -1)
    # Of a row that has ended, the nearest ancestor that has not.
    while len(over := np.flatnonzero((found >= 0) & (end[found] < time))):
        found[over] = parent[found[over]]
    return found
