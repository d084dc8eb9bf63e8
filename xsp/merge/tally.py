"""The tally of launches and what devices did: what of the one has none of the other."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from xsp.level import EXECUTIONS, Kind
from xsp.provider import ATTRIBUTE

_EXECUTIONS = [kind.value for kind in EXECUTIONS]
_CREATED = f"{ATTRIBUTE}created_nodes"  # of a launch that was captured: nothing is to start yet
_ALWAYS = "LaunchKernel"  # in the names of calls that a kernel always comes of


def idle_launches(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return launches after which no device did anything, by name.

    Not every call is to start something. Those of a name are, where some of that name
    did, or where the name says so.

    Args:
        frames: Rows of each run (`xsp.provider.row.ROW_SCHEMA`).

    Returns:
        A row per name with idle launches: `name`, `launches` and `idle`, the most idle first.

    >>> from xsp.provider.row import span_rows
    >>> run = span_rows({"kind": ["launch", "launch", "launch", "memset"],
    ...                  "name": ["set", "set", "wait", "Memset"], "start_ns": 0, "end_ns": 1,
    ...                  "device": [None, None, None, 0], "correlation_id": [1, 2, 3, 1]})
    >>> idle_launches([run]).rows()
    [('set', 2, 1)]
    """
    counted = [_counted(frame) for frame in frames]
    sums = pl.concat(counted).group_by("name").agg(pl.sum("launches", "idle"))
    due = (pl.col("idle") < pl.col("launches")) | pl.col("name").str.contains(_ALWAYS, literal=True)
    return sums.filter(due & (pl.col("idle") > 0)).sort("idle", "name", descending=[True, False])


def execution_counts(frames: Sequence[pl.DataFrame]) -> list[int]:
    """Return how many kernels, copies and sets each run has."""
    return [int(frame["kind"].is_in(_EXECUTIONS).sum()) for frame in frames]


def _counted(frame: pl.DataFrame) -> pl.DataFrame:
    captured = _CREATED if _CREATED in frame.columns else pl.lit(None).alias(_CREATED)
    rows = frame.select(pl.col("kind").cast(pl.String), "name", "correlation_id", captured)
    known = rows.filter(pl.col("correlation_id").is_not_null() & pl.col(_CREATED).is_null())
    worked = known.filter(pl.col("kind").is_in(_EXECUTIONS)).select("correlation_id").unique()
    launches = known.filter(pl.col("kind") == Kind.LAUNCH.value)
    idle = launches.join(worked, on="correlation_id", how="anti")
    return (
        launches.group_by("name")
        .len("launches")
        .join(idle.group_by("name").len("idle"), on="name", how="left")
        .select("name", pl.col("launches", "idle").cast(pl.Int64).fill_null(0))
    )
