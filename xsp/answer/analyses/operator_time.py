"""Gives the layers of a graph the time of their operators as latency.

A layer of a graph is made of its operators. Where others run between them, or at the same time,
the layer lasts from its first operator to its last, and what it costs is less: `operators_ns`.
"""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Tree

_TIMES = ("latency_ns", "latency_low_ns", "latency_high_ns")


@once_per_trace
def by_operators(tree: Tree) -> Tree:
    """Return the tree, in which layers that tell how long their operators ran have that latency.

    The intervals keep their share of the latency.
    """
    worked = tree.attribute("operators_ns", pl.Float64)
    if not worked.count():
        return tree
    latency = pl.col("latency_ns")
    part = pl.when(worked.is_not_null() & (latency > 0)).then(worked / latency).otherwise(1.0)
    times = [(pl.col(name) * part).alias(name) for name in _TIMES]
    return Tree(tree.spans.with_columns(times), tree.parent)
