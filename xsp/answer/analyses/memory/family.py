"""Computes running sums and extremes of spans' values over siblings.

Spans are taken family by family, siblings in the order they began; `begin` is the place in that
order where the family of each begins.
"""

from __future__ import annotations

import numpy as np

from xsp.matching import Ints


def family_order(parent: Ints) -> tuple[Ints, Ints]:
    """Return the indexes of spans family by family, and where each one's family begins.

    Args:
        parent: Index of each span's parent, -1 for none; siblings in the order they began.

    >>> family_order(np.array([-1, 0, 1, 0]))
    (array([0, 1, 3, 2]), array([0, 1, 1, 3]))
    """
    order = np.argsort(parent, kind="stable")
    first = np.append(True, np.diff(parent[order]) != 0)[: len(order)]
    return order, np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))


def running_sum(values: Ints, begin: Ints) -> Ints:
    """Return the sum of each value and those of the siblings before.

    >>> running_sum(np.array([5, 1, 2, 3]), np.array([0, 1, 1, 1]))
    array([5, 1, 3, 6])
    """
    sums = np.cumsum(values)
    result: Ints = sums - (sums - values)[begin]
    return result


def running_max(values: Ints, begin: Ints) -> Ints:
    """Return the largest of each value and those of the siblings before.

    >>> running_max(np.array([9, 1, 7, 3]), np.array([0, 1, 1, 1]))
    array([9, 1, 7, 7])
    """
    result, place = values.copy(), np.arange(len(values)) - begin
    # In each pass twice as many siblings are looked at.
    step = 1
    while len(rows := np.flatnonzero(place >= step)):
        result[rows] = np.maximum(result[rows], result[rows - step])
        step *= 2
    return result


def lowest_from(values: Ints, begin: Ints) -> Ints:
    """Return the smallest of each value and those of the siblings after.

    >>> lowest_from(np.array([9, 4, 7, 5]), np.array([0, 1, 1, 1]))
    array([9, 4, 5, 5])
    """
    size = len(values)
    _, family = np.unique(begin, return_inverse=True)
    # Turned around, a family begins where its last sibling was.
    ends = np.append(np.flatnonzero(np.diff(family)), size - 1)
    return -running_max(-values[::-1], size - 1 - ends[family][::-1])[::-1]
