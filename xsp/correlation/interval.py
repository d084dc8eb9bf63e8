"""Finds what encloses what among intervals in time; the sweep below `xsp.correlation.parent`.

The rule, for rows of one lane (one thread, or one stream of a device). A row
lies in another if that one begins no later, ends no earlier, and is of its own
kind or an outer one; of all that enclose it the one that starts last is its
parent. Ties are settled so that every row has one place:

* Equal intervals: the outer kind encloses the inner one; of one kind, the row
  that was given first encloses the later one.
* An instant (a row of zero length) lies in an outer kind's row from its first
  nanosecond to its last, both included. Among rows of its own kind it lies in
  those that are still open: one that ends at this instant is its elder sibling,
  one that begins with it encloses it.
* Instants of one kind at the same time are siblings: nothing can have begun
  and ended inside of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.provider import SpanRows

Integers = NDArray[Any]

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows, and where each of them can have its parent; n entries each, by index.

    Attributes:
        rows: The rows (`xsp.provider.row.ROW_SCHEMA` and attributes).
        root: Index of the row's root; a root's own index for itself.
        lane: Number of the row's lane; no two roots share one.
        start: Nanoseconds.
        end: Nanoseconds.
        order: Position of the kind from outside in (`Kind.order`).
    """

    rows: SpanRows
    root: Integers
    lane: Integers
    start: Integers
    end: Integers
    order: Integers

    def __len__(self) -> int:
        return self.rows.height


def sort_outside_in(start: Integers, end: Integers, order: Integers) -> Integers:
    """Return the permutation that puts rows before what they may enclose.

    That is by start, then the longer first, then the outer kind first, then as given.
    """
    keys = pl.DataFrame({"start": start, "end": end, "order": order})
    outside_in = pl.arg_sort_by(
        ["start", "end", "order"], descending=[False, True, False], maintain_order=True
    )
    return keys.select(outside_in.cast(pl.Int64)).to_series().to_numpy()


def enclosing(lane: Integers, start: Integers, end: Integers, order: Integers) -> Integers:
    """Return the index of the row that each row lies in, -1 where there is none.

    O(n log n) whatever the rows look like; rows that overlap in part do not
    disturb others.

    Args:
        lane: Which lane each of n rows is on; only rows of one lane enclose each
            other. Non-negative integers.
        start: Nanoseconds; the rows are in the order of `sort_outside_in`.
        end: Nanoseconds, not before `start`.
        order: Position of the kind from outside in (`Kind.order`).

    >>> lane, order = np.zeros(3, np.int64), np.array([0, 1, 1])
    >>> enclosing(lane, np.array([0, 2, 3]), np.array([9, 6, 5]), order)
    array([-1,  0,  1])
    """
    parent = np.full(len(start), -1, np.int64)
    by_lane = np.argsort(_narrow(lane), kind="stable")
    lane, start, end, order = lane[by_lane], start[by_lane], end[by_lane], order[by_lane]
    for own_order in np.unique(order):
        members = np.flatnonzero(order <= own_order)
        own = order[members] == own_order
        found = _place(lane[members], start[members], end[members], own)
        rows = by_lane[members]
        parent[rows[own]] = np.where(found >= 0, rows[found], -1)
    return parent


def _place(lane: Integers, start: Integers, end: Integers, own: Integers) -> Integers:
    """Return for each row of the `own` kind which of all the rows it lies in, or -1."""
    queries = np.flatnonzero(own)
    # Half a nanosecond more for outer kinds, and asked of instants: see the rule on top.
    reach = 2 * end + ~own
    need = 2 * end[queries] + (start[queries] == end[queries])
    found = _last_before_reaching(reach, queries, need)
    return np.where((found >= 0) & (lane[found] == lane[queries]), found, -1)


def _last_before_reaching(values: Integers, positions: Integers, needs: Integers) -> Integers:
    """Return the last index before each position whose value is at least the need, or -1.

    All are sought at once in a tree of maxima: up from the position until the
    subtree to the left reaches far enough, then down to its last such leaf.
    """
    tree, leaves = _tree_of_maxima(values)
    found = np.full(len(positions), -1, np.int64)
    seeking, node, need = np.arange(len(positions)), positions + leaves, needs
    tops: list[tuple[Integers, Integers, Integers]] = []
    while len(seeking) and node[0] > 0:
        # A left child's neighbour belongs to another subtree, to its right.
        hit = (node & 1).astype(bool) & (tree[node ^ 1] >= need)
        tops.append((seeking[hit], node[hit] ^ 1, need[hit]))
        seeking, node, need = seeking[~hit], node[~hit] >> 1, need[~hit]
    for seeking, node, need in tops:
        found[seeking] = _last_leaf(tree, leaves, node, need) - leaves
    return found


def _last_leaf(tree: Integers, leaves: int, node: Integers, need: Integers) -> Integers:
    """Return the last leaf under each node, all of one depth, that reaches the need."""
    while len(node) and node[0] < leaves:
        right = 2 * node + 1
        node = right - (tree[right] < need)
    return node


def _tree_of_maxima(values: Integers) -> tuple[Integers, int]:
    """Return the heap in which node i holds the maximum of nodes 2i and 2i + 1."""
    leaves = 1 << max(len(values) - 1, 1).bit_length()
    tree = np.full(2 * leaves, _NEVER, np.int64)
    tree[leaves : leaves + len(values)] = values
    size = leaves
    while size > 1:
        level = tree[size : 2 * size]
        np.maximum(level[::2], level[1::2], out=tree[size // 2 : size])
        size //= 2
    return tree, leaves


def _narrow(numbers: Integers) -> Integers:
    """Return the same numbers in 16 bits if they fit: numpy sorts those in linear time."""
    if len(numbers) and numbers.max() < 1 << 16:
        return numbers.astype(np.uint16)
    return numbers
