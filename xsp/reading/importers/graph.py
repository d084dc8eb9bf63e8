"""Ties the nodes of a replayed CUDA or HIP graph to the calls that were captured into it.

While a stream is captured, calls start nothing on a device: each becomes a node. A launch of a
graph later runs as many nodes, in the order in which they were captured. So the nodes of a replay
belong to the capture before it that has as many of the same kinds in the same order, if there is
one alone.
"""

from __future__ import annotations

import polars as pl

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.provider import ATTRIBUTE, SpanRows

_BEGIN, _END = "StreamBeginCapture", "StreamEndCapture"
_NODES = r"Launch(Kernel|Cooperative)|ModuleLaunch|Mem(cpy|set)"  # calls that make a node
_GRAPH_LAUNCH = "GraphLaunch"
_NODE, _CREATED, _CAPTURED = (
    f"{ATTRIBUTE}{name}" for name in ("graph_node", "created_nodes", "captured_node")
)
_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_WORK = pl.col("kind").is_in([kind.value for kind in DEVICE_ACTIVITIES])


def with_captures(rows: SpanRows) -> SpanRows:
    """Return rows in which captured calls state their nodes, and nodes what was captured.

    Rows in which a provider has said so already stay as they are.
    """
    named = pl.col("name").str.contains(_BEGIN, literal=True)
    if _CREATED in rows.columns or not rows.select((_LAUNCH & named).any()).item():
        return rows
    numbered = rows.with_row_index("row")
    captured = _captured(numbered)
    if not captured.height:
        return rows
    created = captured.select("row", pl.concat_list(pl.col("node")).alias(_CREATED))
    found = numbered.join(created, on="row", how="left", maintain_order="left")
    replayed = _replayed(numbered, captured)
    found = found.join(replayed, on="row", how="left", maintain_order="left")
    return found.drop("row")


def _captured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `row`, `node`, `capture`, `at` (its place), `until` and `sort` of captured calls."""
    calls = rows.filter(_LAUNCH).select("row", "name", "thread", "start_ns", "correlation_id")
    begins, ends = (
        calls.filter(pl.col("name").str.contains(n, literal=True)) for n in (_BEGIN, _END)
    )
    spans = (
        begins.select("thread", "start_ns")
        .sort("start_ns")
        .join_asof(
            ends.select("thread", "start_ns", until="start_ns").sort("start_ns"),
            on="start_ns",
            by="thread",
            strategy="forward",
            check_sortedness=False,
        )
    )
    spans = spans.drop_nulls("until").select("start_ns", "until").with_row_index("capture")
    worked = rows.filter(_WORK)["correlation_id"].drop_nulls().unique()
    making = calls.filter(
        pl.col("name").str.contains(_NODES),
        ~pl.col("correlation_id").is_in(worked.implode()).fill_null(value=False),
    )
    inside = making.sort("start_ns").join_asof(spans, on="start_ns").drop_nulls("capture")
    inside = inside.filter(pl.col("start_ns") < pl.col("until"))
    sort = (
        pl.when(pl.col("name").str.contains("Memcpy"))
        .then(pl.lit(Kind.MEMCPY.value))
        .when(pl.col("name").str.contains("Memset"))
        .then(pl.lit(Kind.MEMSET.value))
        .otherwise(pl.lit(Kind.KERNEL.value))
    )
    return inside.select(
        "row",
        pl.int_range(pl.len(), dtype=pl.Int64).alias("node"),
        "capture",
        pl.int_range(pl.len()).over("capture").alias("at"),
        "until",
        sort.alias("sort"),
    )


def _replayed(rows: pl.DataFrame, captured: pl.DataFrame) -> pl.DataFrame:
    """Return `row` and the number of the captured node, of the nodes of launched graphs."""
    launches = rows.filter(_LAUNCH, pl.col("name").str.contains(_GRAPH_LAUNCH, literal=True))
    launches = launches.select("correlation_id", launched_ns="start_ns").drop_nulls()
    order = [_NODE, "start_ns"] if _NODE in rows.columns else ["start_ns"]
    nodes = (
        rows.filter(_WORK)
        .join(launches.unique("correlation_id"), on="correlation_id")
        .sort("correlation_id", *order)
        .select("row", "correlation_id", "launched_ns", sort="kind")
        .with_columns(at=pl.int_range(pl.len()).over("correlation_id"))
    )
    patterns, runs = (
        frame.group_by(key, maintain_order=True).agg(
            pl.col("sort").str.join(",").alias("pattern"), pl.first(moment)
        )
        for frame, key, moment in (
            (captured, "capture", "until"),
            (nodes, "correlation_id", "launched_ns"),
        )
    )
    fitting = runs.join(patterns, on="pattern").filter(pl.col("until") <= pl.col("launched_ns"))
    alone = fitting.filter(pl.len().over("correlation_id") == 1)
    return (
        nodes.join(alone.select("correlation_id", "capture"), on="correlation_id")
        .join(captured.select("capture", "at", "node"), on=["capture", "at"])
        .select("row", pl.col("node").alias(_CAPTURED))
    )
