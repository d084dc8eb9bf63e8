"""Computes how much of each span counts where several spans ran at once.

Recording an operator takes time on the thread of the operator. Where two threads run operators at
once, what lies around both grows by the cost of one of the two. So within a span each operator
counts by the mean, over its time, of one over the number of operators that ran in the span.

    layer 0-8    thread 1: op 0-4, op 4-8    thread 2: op 0-2
    counts             3/4      1                   1/2          2.25 of 3 operators
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.matching.ancestry import depths, nearest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Shares:
    """The fraction by which each span counts in each span around it.

    Attributes:
        depth: Depth of each span.
        around: `[depths, spans]`: the ancestor at each depth, -1 where there is none.
        share: `[depths, spans]`: by how much each span counts in that ancestor.
    """

    depth: Ints
    around: Ints
    share: Floats

    def within(self, rows: Ints, ancestors: Ints) -> Floats:
        """Return by how much each of some rows counts in one of its ancestors."""
        return self.share[self.depth[ancestors], rows]

    def nested(self, values: Floats) -> Floats:
        """Return for each span the sum of `values` (`[…, spans]`) over what counts inside it."""
        below = np.zeros(values.shape)
        each, sums = np.atleast_2d(values), np.atleast_2d(below)
        for around, share in zip(self.around, self.share, strict=True):
            rows = np.flatnonzero(around >= 0)
            for at, value in enumerate(each):
                sums[at] += np.bincount(around[rows], value[rows] * share[rows], sums.shape[1])
        return below


def shares(parent: Ints, work: Bools, start: Ints, end: Ints) -> Shares | None:
    """Return the fraction by which spans count in those around them; None where no two ran at once.

    At work is what holds nothing at work: a span waits while others work in it.

    Args:
        parent: Index of each span's parent, -1 for the root.
        work: Which spans took time of a thread to record: operators, calls, launches.
        start: Start of each span.
        end: End of each span.
    """
    leaves = work.copy()
    around_work = nearest(parent, parent[work], work)
    leaves[around_work[around_work >= 0]] = False
    if not _overlapping(start[leaves], end[leaves]):
        return None
    depth = depths(parent)
    ancestors = list(_ancestors(parent, depth))
    around = np.array(ancestors)
    share = np.ones(around.shape)
    rows = np.flatnonzero(work)
    for found, weights in zip(around, share, strict=True):
        inside = rows[found[rows] >= 0]
        busy = inside[leaves[inside]]
        if len(busy):
            weights[inside] = _mean_share((found, inside, busy), start, end)
    return Shares(depth, around, share)


def sibling_shares(parent: Ints, rows: Ints, start: Ints, end: Ints) -> Floats:
    """Return for each row by how much it counts beside those of its siblings that ran at once.

    That is the mean over the row's time of one over the number of `rows` of its parent that ran; 1
    where they ran one after the other, and for rows that are not among `rows`.

    Args:
        parent: Index of each row's parent, -1 for the root.
        rows: The rows that are counted.
        start: Start of each row.
        end: End of each row.

    >>> start, end = np.array([0, 0, 2, 4]), np.array([8, 4, 4, 8])
    >>> sibling_shares(np.array([-1, 0, 0, 0]), np.array([1, 2, 3]), start, end)
    array([1.  , 0.75, 0.5 , 1.  ])
    """
    result = np.ones(len(parent))
    if len(rows):
        result[rows] = _mean_share((parent, rows, rows), start, end)
    return result


def gathering(parent: Ints, lane: Ints, derived: Bools, start: Ints, end: Ints) -> Bools:
    """Return which spans leave as their self time what no span in them covers, on any thread.

    Everywhere else self time is that of the span's own thread. These spans have no such thread:
    layers made of operators on other threads than they are drawn on, what lies right around such
    layers, and around layers that overlap in time.

    Args:
        parent: Index of each span's parent, -1 for the root and for spans on devices.
        lane: Number of the thread of each span.
        derived: Which spans were made of the spans in them.
        start: Measured start of each span.
        end: Measured end of each span.
    """
    found = np.zeros(len(parent), dtype=bool)
    child = np.flatnonzero(parent >= 0)
    elsewhere = child[derived[parent[child]] & (lane[child] != lane[parent[child]])]
    found[parent[elsewhere]] = True
    spread = np.flatnonzero(found & (parent >= 0))
    found[parent[spread]] = True
    if derived[child].any():
        # Parents of derived spans that overlap each other.
        rows = child[derived[child]]
        rows = rows[np.lexsort((start[rows], parent[rows]))]
        late = (parent[rows[1:]] == parent[rows[:-1]]) & (start[rows[1:]] < end[rows[:-1]])
        crowded = parent[rows[1:][late]]
        found[crowded] = True
    return found


def _overlapping(start: Ints, end: Ints) -> bool:
    order = np.argsort(start, kind="stable")
    return bool(np.any(start[order][1:] < np.maximum.accumulate(end[order])[:-1]))


def _ancestors(parent: Ints, depth: Ints) -> Iterator[Ints]:
    """Yield the ancestor of each row at depth 0, at depth 1, and so on; -1 for rows not below."""
    deepest = int(depth.max(initial=0))
    current = parent.copy()
    found = []
    for level in range(deepest - 1, -1, -1):
        deeper = np.flatnonzero(current >= 0)
        deeper = deeper[depth[current[deeper]] > level]
        current[deeper] = parent[current[deeper]]
        found.append(
            np.where((current >= 0) & (depth[np.maximum(current, 0)] == level), current, -1)
        )
    yield from reversed(found)


def _mean_share(rows: tuple[Ints, Ints, Ints], start: Ints, end: Ints) -> Floats:
    """Return the mean over the time of each row of one over the number of rows at work then.

    Args:
        rows: The ancestor of every row, the rows that are asked for, and those at work.
        start: Start of every row.
        end: End of every row.
    """
    around, inside, busy = rows
    first = int(start[inside].min())
    length = int(end[inside].max()) - first + 1
    # Worlds of different ancestors follow one another.
    apart = np.unique(around[inside], return_inverse=True)[1] * length - first
    at = np.full(len(around), -1)
    at[inside] = np.arange(len(inside))
    begin, finish = start[inside] + apart, end[inside] + apart
    change = np.repeat([1, -1], len(busy))
    moment = np.concatenate([begin[at[busy]], finish[at[busy]]])
    order = np.lexsort((change, moment))
    moment, count = moment[order], np.cumsum(change[order])
    more = np.where(count > 1, 1 - 1 / np.maximum(count, 1), 0.0)  # what a share is below 1
    passed = np.append(0.0, np.cumsum(np.diff(moment) * more[:-1]))
    missing = [_until(each, moment, passed, more) for each in (finish, begin)]
    lasts = finish - begin
    last = np.maximum(np.searchsorted(moment, begin, side="right") - 1, 0)
    lacking = np.where(lasts > 0, (missing[0] - missing[1]) / np.maximum(lasts, 1), more[last])
    return 1.0 - lacking


def _until(time: Ints, moment: Ints, passed: Floats, slope: Floats) -> Floats:
    """Interpolate a total at some times, from its values at moments and its slopes after them."""
    at = np.maximum(np.searchsorted(moment, time, side="right") - 1, 0)
    return passed[at] + np.maximum(time - moment[at], 0) * slope[at]
