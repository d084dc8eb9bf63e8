"""The timeline of a trace's thread: a tree in, what of it each span takes out.

Times are those of the timeline without overhead, on which spans lie inside the spans around them:
where they take longer than these, by the errors of their latencies, they are drawn shorter. So
own times sum to the whole.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.analyses.structure.sums import Bools
from xsp.analyses.tree import Floats, Tree


def on_thread(tree: Tree) -> Bools:
    """Return which spans lie, with all around them, on the thread of the root.

    Where the root is on none, as that of several processes is, the thread of the longest span
    that has one is taken.
    """
    thread, host = tree.spans["thread"], tree.spans["device"].is_null()
    main = _thread(tree)
    here = host & (thread.is_null() if main is None else thread.fill_null(main) == main)
    inside = here.to_numpy().copy()
    inside[0] = True
    found: Bools = inside & (tree.nearest(~inside) < 0)
    return found


def _thread(tree: Tree) -> int | None:
    first = tree.spans["thread"][0]
    if first is None:
        spans = tree.spans.lazy().filter(
            pl.col("thread").is_not_null() & pl.col("device").is_null()
        )
        known = spans.select(pl.col("thread").sort_by("latency_ns", nulls_last=False).last())
        first = known.collect().item()
    return first if isinstance(first, int) else None


def drawn_ns(tree: Tree, among: Bools) -> tuple[Floats, Floats]:
    """Return length and own time of some spans of one thread on the timeline, 0 for others."""
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    length = np.where(among, end - start, 0).astype(np.float64)
    own, inside = length.copy(), np.flatnonzero(among & (tree.parent >= 0))
    np.subtract.at(own, tree.parent[inside], length[inside])
    return length, np.maximum(own, 0.0)
