"""Makes rows of one process's launches, library calls and calls of the system."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.nsys import table
from xsp.reading.importers.nsys.database import Database
from xsp.reading.importers.nsys.table import Tables
from xsp.reading.importers.reading import each_once
from xsp.text import call_name

UNNAMED = "unnamed"  # of a span whose name the file lacks
_BEGIN, _ENDED = r"^cu(da)?StreamBeginCapture", r"^cu(da)?StreamEndCapture"
_RUNTIME = pl.col("name").str.starts_with("cuda")


def launches(database: Database, tables: Tables) -> SpanRows:
    """Return one row per call of the CUDA runtime and driver.

    Calls that launched a graph of which only the whole was recorded have an `id`, for that row to
    state them as its parent.
    """
    frames = [_api_calls(database, tables[name]) for name in table.API]
    calls = _without_captured(_with_own_ids(pl.concat(frames)), tables)
    if not calls.height:
        return no_rows()
    whole = tables[table.GRAPH]["correlationId"].implode()
    rows = span_rows(
        {
            "kind": Kind.LAUNCH.value,
            "name": calls["name"],
            "start_ns": calls["start"],
            "end_ns": calls["end"],
            "thread": calls["thread"],
            "correlation_id": calls["id"],
            "id": calls.select(pl.when(pl.col("id").is_in(whole)).then("id")).to_series(),
        }
    )
    made = _created_nodes(tables[table.NODE], calls)
    return rows if made is None else rows.with_columns(made)


def library_calls(database: Database, tables: Tables) -> SpanRows:
    """Return one row per call of a library that Nsight traces by itself."""
    return concat_rows(
        [
            _named_calls(database, tables[name], Kind.CALL).with_columns(
                pl.lit(library).alias("attr.library"), pl.lit("ends").alias("attr.placement")
            )
            for name, library in table.LIBRARIES.items()
            if tables[name].height
        ]
    )


def system_calls(database: Database, tables: Tables) -> SpanRows:
    """Return one row per call of the operating system's libraries."""
    return _named_calls(database, tables[table.SYSTEM], Kind.SYSCALL)


def repeated_ids(launched: SpanRows) -> int:
    """Return the number of launches whose correlation id other launches have as well."""
    ids = launched["correlation_id"].drop_nulls()
    return len(ids) - ids.n_unique()


def _api_calls(database: Database, frame: pl.DataFrame) -> pl.DataFrame:
    name = database.strings(frame["nameId"]).fill_null(UNNAMED)
    return frame.with_columns(
        name=each_once(name, call_name),
        # 0 is the id of what is no call.
        id=pl.when(pl.col("correlationId") != 0).then("correlationId"),
    )


def _with_own_ids(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls of which those of the driver bear no id that a call of the runtime has.

    A runtime call and the driver call inside it may bear one id. The name tells which is which in
    all schemas; `eventClass`, which tells so as well, is not in all.
    """
    if calls["id"].is_unique().all():
        return calls
    of_runtime = calls.filter(_RUNTIME)["id"].drop_nulls().implode()
    inner = ~_RUNTIME & pl.col("id").is_in(of_runtime)
    return calls.with_columns(pl.when(~inner.fill_null(value=False)).then("id").alias("id"))


def _without_captured(calls: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return calls, without the ids of those that were captured into a graph: they start nothing.

    A call is captured if its thread has begun a capture and not ended it, and no device did
    anything for the call.
    """
    if not calls["name"].str.contains(_BEGIN).any():
        return calls
    step = pl.col("name").str.contains(_BEGIN).cast(pl.Int8) - pl.col("name").str.contains(_ENDED)
    ordered = calls.with_row_index("call").sort("thread", "start")
    capturing = ordered.with_columns(step.cum_sum().over("thread").alias("open")).sort("call")
    worked = [tables[name]["correlationId"] for name in table.ACTIVITIES]
    idle = ~pl.col("id").is_in(pl.concat(worked).unique().implode())
    captured = pl.Series(capturing["open"] > 0) & calls.select(idle).to_series()
    return calls.with_columns(pl.when(~captured.fill_null(value=False)).then("id").alias("id"))


def _named_calls(database: Database, frame: pl.DataFrame, kind: Kind) -> SpanRows:
    if not frame.height:
        return no_rows()
    name = database.strings(frame.select(pl.coalesce("nameId", "textId")).to_series())
    return span_rows(
        {
            "kind": kind.value,
            "name": name.fill_null(UNNAMED),
            "start_ns": frame["start"],
            "end_ns": frame["end"],
            "thread": frame["thread"],
        }
    )


def _created_nodes(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.Series | None:
    """Return the nodes that each call captured into a CUDA graph; None where there are none.

    A node of a graph that was instantiated is told of twice, the second time with the node that
    it is a copy of; it was not captured.
    """
    copies = nodes.drop_nulls("originalGraphNodeId")["graphNodeId"].implode()
    made = nodes.filter(~pl.col("graphNodeId").is_in(copies)).drop_nulls(["start", "graphNodeId"])
    if not made.height:
        return None
    ordered = calls.select("thread", "start", "end").with_row_index("call").sort("start")
    found = made.sort("start").join_asof(ordered, on="start", by="thread", check_sortedness=False)
    inside = found.filter(pl.col("start") <= pl.col("end"))
    lists = inside.group_by("call", maintain_order=True).agg("graphNodeId")
    index = pl.DataFrame({"call": pl.int_range(calls.height, dtype=pl.UInt32, eager=True)})
    joined = index.join(lists, on="call", how="left", maintain_order="left")
    return joined["graphNodeId"].alias("attr.created_nodes")
