"""Intervals in time: which lies in which, which began last.

In go arrays with one entry per row: number of the row's lane (one thread, or one stream of a
device), start, end, and position of its kind from outside in. Out comes for each row the index
of another row, or -1:

    lane  start  end  kind     `enclosing`
      0     0     9   layer        -1
      0     2     6   op            0
      0     3     5   op            1
      1     3     5   op           -1

The rule, for rows of one lane. A row lies in another if that one begins no later, ends no
earlier, and is of its own kind or an outer one; of all that enclose it the one that starts
last is its parent. Ties are decided so that every row has one place:

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

from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

Integers = NDArray[Any]

_NEVER = np.iinfo(np.int64).min


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
        lane: Which lane each of n rows is on; only rows of one lane enclose each other.
        start: Nanoseconds.
        end: Nanoseconds, not before `start`.
        order: Position of the kind from outside in (`Kind.order`).

    >>> lane, order = np.zeros(3, np.int64), np.array([1, 0, 1])
    >>> enclosing(lane, np.array([3, 0, 2]), np.array([5, 9, 6]), order)
    array([ 2, -1,  1])
    """
    by_time = sort_outside_in(start, end, order)
    found = enclosing_sorted(lane[by_time], start[by_time], end[by_time], order[by_time])
    parent = np.empty_like(found)
    parent[by_time] = np.where(found < 0, -1, by_time[found])
    return parent


def enclosing_sorted(lane: Integers, start: Integers, end: Integers, order: Integers) -> Integers:
    """Return what `enclosing` does, of rows that are in the sequence of `sort_outside_in`."""
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


def begun(
    lane: Integers,
    start: Integers,
    moments: tuple[Integers, Integers],
    *,
    strategy: Literal["backward", "forward"] = "backward",
) -> Integers:
    """Return the index of the row that began last on a lane up to each moment, or -1.

    Args:
        lane: Which lane each of n rows is on.
        start: When each row began, in nanoseconds. Of several at one time the last one counts.
        moments: Lane and time of each of m moments.
        strategy: `forward` gives the row that begins next instead, at or after the moment; of
            several at one time the first.

    >>> begun(np.array([7, 7, 8]), np.array([1, 4, 2]), (np.array([7, 8]), np.array([5, 1])))
    array([ 1, -1])
    """
    schema = {"lane": pl.Int64, "time": pl.Int64}
    rows = pl.DataFrame([lane, start], schema=schema).with_row_index("row")
    asking = pl.DataFrame(list(moments), schema=schema).with_row_index("at")
    found = asking.sort("time").join_asof(
        rows.sort("time", maintain_order=True),
        on="time",
        by="lane",
        strategy=strategy,
        check_sortedness=False,
    )
    row = np.full(len(asking), -1, np.int64)
    row[found["at"].to_numpy()] = found["row"].fill_null(-1).to_numpy()
    return row


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
    if len(numbers) and numbers.min() >= 0 and numbers.max() < 1 << 16:
        return numbers.astype(np.uint16)
    return numbers
