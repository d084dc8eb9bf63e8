"""Rows in; the same rows out, in which what a graph's launch ran lies in the launch.

A launched CUDA or HIP graph runs hundreds of kernels under one call. Where the file does not
number them as nodes of the graph, the correlation id alone tells.
"""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows

_LAUNCH = (
    (pl.col("kind") == Kind.LAUNCH.value)
    & pl.col("name").str.contains("GraphLaunch")
    & pl.col("correlation_id").is_not_null()
)


def in_graphs(rows: SpanRows) -> SpanRows:
    """Return rows in which launches of graphs have ids, and device rows state them as parents.

    The ids are negative: those of other rows are not.
    """
    launches = rows.filter(_LAUNCH)["correlation_id"].unique()
    if not len(launches):
        return rows
    of_graph = pl.col("correlation_id").is_in(launches.implode())
    number = -1 - pl.col("correlation_id")
    on_device = pl.col("device").is_not_null()
    return rows.with_columns(
        id=pl.when(_LAUNCH).then(number).otherwise("id"),
        parent_id=pl.when(of_graph & on_device).then(number).otherwise("parent_id"),
    )
