"""Rows in; the same rows out, in which calls and what they launched belong together for certain.

A launched CUDA or HIP graph runs hundreds of kernels under one call. Where the file does not
number them as nodes of the graph, the correlation id alone tells. And damaged or joined files give
several calls one correlation id.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import SpanRows
from xsp.quantity import counted

_LAUNCH = (pl.col("kind") == Kind.LAUNCH.value) & pl.col("correlation_id").is_not_null()
_OF_GRAPH = _LAUNCH & pl.col("name").str.contains("GraphLaunch")


def tied(rows: SpanRows) -> tuple[SpanRows, int]:
    """Return rows in which each call has an id of its own, and a graph's launch what it ran.

    The second result is how many calls had the id of an earlier call.
    """
    rows, doubled = _with_own_ids(rows)
    return _in_graphs(rows), doubled


def doubled_calls(count: int) -> Iterator[Problem]:
    """Yield the problem that some calls had the ids of others, if some had."""
    if count:
        yield Problem(
            "repeated-id",
            f"{counted(count, 'call')} had a correlation id that an earlier call had; what was "
            "launched is taken to be of the last call with its id before it",
        )


def _with_own_ids(rows: SpanRows) -> tuple[SpanRows, int]:
    """Return rows with new ids for calls whose id an earlier call has, and for what they launched.

    Calls that overlap are one: a call of the CUDA runtime, and that of the driver in it.
    """
    calls = rows.filter(_LAUNCH).select("correlation_id", "start_ns", "end_ns")
    if calls["correlation_id"].n_unique() == calls.height:
        return rows, 0
    before = pl.col("end_ns").cum_max().shift(1).over("correlation_id")
    first = calls.sort("correlation_id", "start_ns", -pl.col("end_ns")).filter(
        before.is_null() | (pl.col("start_ns") >= before)
    )
    later = pl.int_range(pl.len()).over("correlation_id") > 0
    highest = int(rows["correlation_id"].max() or 0)  # type: ignore[arg-type]
    own = first.with_columns(
        own=pl.when(later).then(highest + later.cum_sum()).otherwise("correlation_id")
    )
    doubled = int(own.select(later.sum()).item())
    numbered = rows.with_row_index("row").sort("start_ns", maintain_order=True)
    found = numbered.join_asof(
        own.select("correlation_id", "start_ns", "own").sort("start_ns"),
        on="start_ns",
        by="correlation_id",
        check_sortedness=False,
    )
    id_ = pl.coalesce("own", "correlation_id")
    return found.with_columns(correlation_id=id_).sort("row").drop("row", "own"), doubled


def _in_graphs(rows: SpanRows) -> SpanRows:
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
