"""Intervals in time: lanes, starts, ends and kinds of rows in, the enclosing row of each row out.

A lane is one thread, or one stream of a device; a kind is its position from outside in. The result
is for each row the index of another row, or -1:

    lane  start  end  kind     `enclosing`
      0     0     9   layer        -1
      0     2     6   op            0
      0     3     5   op            1
      1     3     5   op           -1

The rule, for rows of one lane: row A encloses row B if A begins no later and ends no earlier than
B, and is of B's kind or an outer kind. Of the rows that enclose B, the row that starts last is B's
parent. Ties are decided so that every row has one place:

* Equal intervals: the outer kind encloses the inner one; of one kind, the row
  that was given first encloses the later one.
* An instant (a row of zero length) lies in an outer kind's row from its first
  nanosecond to its last, both included. Among rows of its own kind the instant lies in
  rows that are still open: a row that ends at the instant is its elder sibling, a row that
  begins at the instant encloses it.
* Instants of one kind at the same time are siblings: no row can begin and end inside
  of an instant.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

Integers = NDArray[Any]

_NEVER = np.iinfo(np.int64).min


def sort_outside_in(start: Integers, end: Integers, order: Integers) -> Integers:
    """Return the permutation that puts rows before the rows that they may enclose.

    Rows are sorted by start, then the longer first, then the outer kind first, then as given.
    """
    keys = pl.DataFrame({"start": start, "end": end, "order": order})
    outside_in = pl.arg_sort_by(
        ["start", "end", "order"], descending=[False, True, False], maintain_order=True
    )
    return keys.select(outside_in.cast(pl.Int64)).to_series().to_numpy()


def enclosing(lane: Integers, start: Integers, end: Integers, order: Integers) -> Integers:
    """Return the index of the row that encloses each row, -1 where none does.

    Takes O(n log n) for any rows. Rows that overlap in part do not disturb other rows.

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
    """Return the result of `enclosing` for rows in the sequence of `sort_outside_in`."""
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
        start: Start of each row, in nanoseconds. Of rows with one start the last row counts.
        moments: Lane and time of each of m moments.
        strategy: `forward` returns the row that begins next, at or after the moment; of rows
            with one start the first.

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
    """Return for each row in `own` the index of the row that encloses it, or -1."""
    queries = np.flatnonzero(own)
    # In half nanoseconds: outer kinds reach one further, and instants need one more, so that the
    # ties fall as the module's docstring says.
    reach = 2 * end + ~own
    need = 2 * end[queries] + (start[queries] == end[queries])
    found = _last_before_reaching(reach, queries, need)
    return np.where((found >= 0) & (lane[found] == lane[queries]), found, -1)


def _last_before_reaching(values: Integers, positions: Integers, needs: Integers) -> Integers:
    """Return the last index before each position whose value is at least the need, or -1.

    All positions are searched for at once in a tree of maxima: up from the position until the
    subtree to the left holds such a value, then down to the last leaf that does.
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
    """Return the last leaf under each node whose value is at least the need.

    The nodes are all of one depth.
    """
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
