"""Ties device activities to the calls that launched them by ids that no two calls share.

A launched CUDA or HIP graph runs hundreds of kernels under one call. Where the file does not
number them as nodes of the graph, the correlation id alone tells. And damaged or joined files give
several calls one correlation id.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows
from xsp.text import counted
from xsp.warning import TraceWarning

_LAUNCH = (pl.col("kind") == Kind.LAUNCH.value) & pl.col("correlation_id").is_not_null()
_KEYS = ("kind", "start_ns", "end_ns", "thread", "correlation_id")
_OF_GRAPH = _LAUNCH & pl.col("name").str.contains("GraphLaunch")


def tied(rows: SpanRows) -> tuple[SpanRows, int]:
    """Return rows in which each call has an id of its own, and a graph's launch what it ran.

    The second result is how many calls had the id of an earlier call.
    """
    ids, doubled = own_ids(rows)
    return in_graphs(rows.with_columns(ids)), doubled


def doubled_calls(count: int) -> Iterator[TraceWarning]:
    """Yield the warning that some calls had the ids of others, if some had."""
    if count:
        yield TraceWarning(
            "repeated-id",
            f"{counted(count, 'call')} share a correlation id with an earlier call; xsp gave "
            "device "
            "work to the last call before it",
        )


def own_ids(rows: pl.DataFrame) -> tuple[pl.Series, int]:
    """Return correlation ids of rows, other ones for calls whose id an earlier call has.

    What was launched has the id of the last call with its id before it. Calls of one thread that
    overlap are one: a call of the CUDA runtime, and that of the driver in it.

    Args:
        rows: Columns `kind`, `start_ns`, `end_ns`, `thread` and `correlation_id`, and any others.

    Returns:
        The ids, and how many calls have got another id.
    """
    ids = rows["correlation_id"]
    calls = rows.select(_KEYS).filter(_LAUNCH)
    if calls["correlation_id"].n_unique() == calls.height:
        return ids, 0
    before = pl.col("end_ns").cum_max().shift(1).over("correlation_id", "thread")
    first = calls.sort("correlation_id", "start_ns", -pl.col("end_ns")).filter(
        before.is_null() | (pl.col("start_ns") >= before)
    )
    later = pl.int_range(pl.len()).over("correlation_id") > 0
    highest = max(int(ids.max() or 0), 0)  # type: ignore[arg-type]
    own = first.with_columns(
        own=pl.when(later).then(highest + later.cum_sum()).otherwise("correlation_id")
    )
    doubled = int(own.select(later.sum()).item())
    asking = rows.select("start_ns", "correlation_id").with_row_index("row").sort("start_ns")
    found = asking.join_asof(
        own.select("correlation_id", "start_ns", "own").sort("start_ns"),
        on="start_ns",
        by="correlation_id",
        check_sortedness=False,
    )
    own_id = pl.coalesce("own", "correlation_id").alias("correlation_id")
    return found.sort("row").select(own_id).to_series(), doubled


def in_graphs(rows: SpanRows) -> SpanRows:
    """Return rows in which launches of graphs have ids, and device rows state them as parents.

    The ids are negative: those of other rows are not.
    """
    launches = rows.filter(_OF_GRAPH)["correlation_id"].unique()
    if not len(launches):
        return rows
    of_graph = pl.col("correlation_id").is_in(launches.implode())
    number = -1 - pl.col("correlation_id")
    return rows.with_columns(
        id=pl.when(_OF_GRAPH).then(number).otherwise("id"),
        parent_id=pl.when(of_graph & pl.col("device").is_not_null())
        .then(number)
        .otherwise("parent_id"),
    )
