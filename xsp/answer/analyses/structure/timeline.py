"""Divides the time of a trace's root among the spans that lie on one clock.

Times are those of the timeline without overhead, on which spans lie inside the spans around them:
where they take longer than these, by the errors of their latencies, they are drawn shorter. So
self times sum to the whole.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import polars as pl

from xsp.answer.analyses.structure.sums import Bools
from xsp.answer.analyses.tree import Floats, Tree
from xsp.answer.analyses.waiting import waiting
from xsp.matching import Ints

_LITTLE = 0.1  # of what ran on another thread: so much may its parent's do beside it
_NONE = np.empty(0, dtype=np.int64)


def on_clock(tree: Tree) -> Bools:
    """Return which spans divide the root's time, of which none overlap but those that nest.

    They lie on the thread of the root, and on other threads of the host where that one had next
    to nothing to do meanwhile but wait: of several that ran at once then, the longest. A call in
    which such a thread itself only waits divides nothing. Where the root is on no thread, as that
    of several processes is, it is given that of the longest span that has one.
    """
    host = tree.spans["device"].is_null().to_numpy()
    thread = tree.spans["thread"].cast(pl.Int64).fill_null(_thread(tree)).to_numpy()
    crossing = host & (thread != thread[tree.parent]) & (tree.parent >= 0)
    left_out = ~host | waiting(tree)
    left_out[_beside(tree, crossing & ~left_out, host & ~crossing)] = True
    left_out[0] = False
    found: Bools = ~left_out & (tree.nearest(left_out) < 0)
    return found


def _thread(tree: Tree) -> int:
    first = tree.spans["thread"][0]
    if first is None:
        spans = tree.spans.filter(pl.col("thread").is_not_null() & pl.col("device").is_null())
        first = spans.select(pl.col("thread").sort_by("latency_ns", nulls_last=False).last()).item()
    return first if isinstance(first, int) else -1


def _beside(tree: Tree, crossing: Bools, own: Bools) -> list[int]:
    """Return the rows that ran beside others of the same parent, which count in their place.

    Args:
        tree: The tree.
        crossing: Which spans ran on another thread than their parent.
        own: Which ran on that of their parent: these do not overlap each other.
    """
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    result: list[int] = []
    rows = np.flatnonzero(crossing)
    own = own & (end > start) & np.isin(tree.parent, tree.parent[rows])
    siblings = _by_parent(tree, np.flatnonzero(own), start)
    longest_first = start - end
    for family, members in _by_parent(tree, rows, longest_first).items():
        result += _covered(members, siblings.get(family, _NONE), start, end)
    return result


def _by_parent(tree: Tree, rows: Ints, order: Ints) -> dict[int, Ints]:
    """Return rows by their parent, in some order."""
    ordered = rows[np.lexsort((order[rows], tree.parent[rows]))]
    parents, first = np.unique(tree.parent[ordered], return_index=True)
    return dict(zip(parents.tolist(), np.split(ordered, first)[1:], strict=True))


def _covered(members: Ints, siblings: Ints, start: Ints, end: Ints) -> list[int]:
    """Return which of a parent's children do not count.

    Args:
        members: Rows of those on other threads, in the order in which they are considered.
        siblings: Rows of those on its own thread, by their start.
        start: Start of each row of the tree.
        end: End of each row.
    """
    result: list[int] = []
    begins, ends = start[siblings], end[siblings]
    starts, stops = list[int](), list[int]()  # of the members that count, in order
    for row in members.tolist():
        place = bisect_left(starts, end[row])
        free = not place or stops[place - 1] <= start[row]
        among = slice(np.searchsorted(ends, start[row], "right"), np.searchsorted(begins, end[row]))
        both = np.minimum(ends[among], end[row]) - np.maximum(begins[among], start[row])
        if free and both.sum() <= _LITTLE * (end[row] - start[row]):
            starts.insert(place, start[row])
            stops.insert(place, end[row])
            result += siblings[among].tolist()
        else:
            result.append(row)
    return result


def drawn_ns(tree: Tree, among: Bools) -> tuple[Floats, Floats]:
    """Return length and self time of spans on one clock (`on_clock`), 0 for others."""
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    length = np.where(among, end - start, 0).astype(np.float64)
    own, inside = length.copy(), np.flatnonzero(among & (tree.parent >= 0))
    np.subtract.at(own, tree.parent[inside], length[inside])
    return length, np.maximum(own, 0.0)
