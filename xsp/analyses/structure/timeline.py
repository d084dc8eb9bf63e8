"""The timeline of a trace: a tree in, what of one clock each span takes out.

Times are those of the timeline without overhead, on which spans lie inside the spans around them:
where they take longer than these, by the errors of their latencies, they are drawn shorter. So
own times sum to the whole.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.analyses.structure.sums import Bools
from xsp.analyses.tree import Floats, Tree
from xsp.evaluation import Ints


def on_clock(tree: Tree) -> Bools:
    """Return which spans divide the root's time, of which none overlap but those that nest.

    They lie on the thread of the root, and on other threads of the host where that one had
    nothing to do meanwhile but wait: of several that ran at once then, the one that began first.
    Where the root is on no thread, as that of several processes is, it is given that of the
    longest span that has one.
    """
    host = tree.spans["device"].is_null().to_numpy()
    thread = tree.spans["thread"].cast(pl.Int64).fill_null(_thread(tree)).to_numpy()
    crossing = host & (thread != thread[tree.parent]) & (tree.parent >= 0)
    left_out = ~host
    left_out[_overlapping(tree, np.flatnonzero(crossing), host & ~crossing)] = True
    left_out[0] = False
    found: Bools = ~left_out & (tree.nearest(left_out) < 0)
    return found


def _thread(tree: Tree) -> int:
    first = tree.spans["thread"][0]
    if first is None:
        spans = tree.spans.filter(pl.col("thread").is_not_null() & pl.col("device").is_null())
        first = spans.select(pl.col("thread").sort_by("latency_ns", nulls_last=False).last()).item()
    return first if isinstance(first, int) else -1


def _overlapping(tree: Tree, crossing: Ints, beside: Bools) -> Ints:
    """Return the rows of `crossing` that overlap a sibling: one among `beside`, or one before."""
    if not len(crossing):
        return crossing
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    families = np.unique(tree.parent[crossing])
    rows = np.flatnonzero(beside & np.isin(tree.parent, families))
    # Each sibling at its start, and each crossing row at its end: whatever precedes that is the
    # last sibling that began before it ended. A crossing row comes first where both are equal.
    at = np.concatenate([crossing, rows])
    is_row = np.arange(len(at)) >= len(crossing)
    order = np.lexsort((is_row, np.where(is_row, start[at], end[at]), tree.parent[at]))
    last = np.maximum.accumulate(np.where(is_row[order], np.arange(len(at)), -1))
    query = order[~is_row[order]]
    before = at[order[last[~is_row[order]]]]
    known = last[~is_row[order]] >= 0
    hit = known & (tree.parent[before] == tree.parent[at[query]]) & (end[before] > start[at[query]])
    covered = set(at[query[hit]].tolist())
    by_start = crossing[np.lexsort((start[crossing], tree.parent[crossing]))].tolist()
    free_from: dict[int, int] = {}
    for row, family in zip(by_start, tree.parent[by_start].tolist(), strict=True):
        if row not in covered and start[row] >= free_from.get(family, start[row]):
            free_from[family] = end[row]
        else:
            covered.add(row)
    return np.array(sorted(covered), dtype=np.int64)


def drawn_ns(tree: Tree, among: Bools) -> tuple[Floats, Floats]:
    """Return length and own time of spans on one clock (`on_clock`), 0 for others."""
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    length = np.where(among, end - start, 0).astype(np.float64)
    own, inside = length.copy(), np.flatnonzero(among & (tree.parent >= 0))
    np.subtract.at(own, tree.parent[inside], length[inside])
    return length, np.maximum(own, 0.0)
