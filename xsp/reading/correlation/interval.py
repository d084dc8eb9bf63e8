"""Finds the enclosing row of each row from the lanes, times and kinds of the rows.

A lane is one thread, or one stream of a device; a kind is its position from outside in. The result
is for each row the index of another row, or -1:

    lane  start  end  kind     `enclosing`
      0     0     9   layer        -1
      0     2     6   op            0
      0     3     5   op            1
      0     4     5   layer         2
      1     3     5   op           -1

The rule, for rows of one lane: row A encloses row B if A begins no later and ends no earlier than
B, whatever their kinds. Of the rows that enclose B, the row that starts last is B's parent; but a
row of a deeper kind than B's only if it lies in the row that would be B's parent without the
deeper kinds, for a pass that does not record these has to find B in the same place.

Ties are decided so that every row has one place:

* Equal intervals: the outer kind encloses the inner one; of one kind, the row
  that was given first encloses the later one.
* An instant (a row of zero length) lies in an outer kind's row from its first
  nanosecond to its last, both included. Among rows of its own kind, or of a deeper kind, the
  instant lies in rows that are still open: a row that ends at the instant is its elder sibling,
  a row that begins at the instant encloses it.
* Instants of one kind at the same time are siblings: no row can begin and end inside
  of an instant.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import nearest_outer

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
    if len(lane) and lane.min() >= 0 and lane.max() < 1 << 16:
        lane = lane.astype(np.uint16)  # which numpy sorts in linear time
    by_lane = np.argsort(lane, kind="stable")
    lane, start, end, order = lane[by_lane], start[by_lane], end[by_lane], order[by_lane]
    found = _last_before_reaching(end, np.arange(len(end)), end)
    instants = np.flatnonzero(start == end)
    for own_order in np.unique(order[instants]):
        own = instants[order[instants] == own_order]
        found[own] = _around_instants(end, own, order < own_order)
    found[(found >= 0) & (lane[found] != lane)] = -1
    if np.any(asking := (found >= 0) & (order[found] > order)):
        outer = _in_outer(lane, start, end, order, asking)
        # A deeper kind's row that does not lie in the `outer` row gives way.
        while np.any(crossing := asking & (nearest_outer(found, order) != outer)):
            found = np.where(crossing, outer, found)
    parent = np.empty_like(found)
    parent[by_lane] = np.where(found >= 0, by_lane[found], -1)
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


def _around_instants(end: Integers, instants: Integers, outer: Integers) -> Integers:
    """Return for each instant the index of the row that encloses it, or -1.

    Args:
        end: End of each row.
        instants: Indices of instants of one kind.
        outer: Which rows are of an outer kind.
    """
    # In half nanoseconds: outer kinds reach one further, and instants need one more, so that the
    # ties fall as the module's docstring says.
    return _last_before_reaching(2 * end + outer, instants, 2 * end[instants] + 1)


def _in_outer(
    lane: Integers, start: Integers, end: Integers, order: Integers, asking: Integers
) -> Integers:
    """Return for each asking row the row that encloses it without the deeper kinds, or -1."""
    around = np.full(len(end), -1, np.int64)
    for own_order in np.unique(order[asking]):
        members = np.flatnonzero(order <= own_order)
        places = np.flatnonzero(asking[members] & (order[members] == own_order))
        rows = members[places]
        need = 2 * end[rows] + (start[rows] == end[rows])
        found = _last_before_reaching(2 * end[members] + (order[members] < own_order), places, need)
        same = (found >= 0) & (lane[members[found]] == lane[rows])
        around[rows] = np.where(same, members[found], -1)
    return around


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
        # A left child's neighbor belongs to another subtree, to its right.
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
