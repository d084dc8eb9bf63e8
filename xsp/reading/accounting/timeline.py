"""Draws what each thread did during one step: when it ran, could have run, and was blocked."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.provider import Account, Accounts, Watched

MOST_STRETCHES = 2_000  # the longest ones; what is shorter belongs to what is around
_STATES = (Account.RUNNABLE.value, Account.BLOCKED.value)

# One row for each stretch of time; times from the begin of the step.
TIMELINE = pl.List(
    pl.Struct(
        {
            "name": pl.String,
            "thread": pl.Int64,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "state": pl.String,
            "cause": pl.String,
            "processor": pl.Int32,
        }
    )
)


def thread_timeline(accounts: Accounts, begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Return the stretches in which each thread ran, was runnable or blocked.

    Threads that did not run are left out.

    Args:
        accounts: Accounts of any thread, in any order.
        begin_ns: When the step began.
        end_ns: When it ended.
    """
    inside = accounts.filter(
        pl.col("exact"), pl.col("end_ns") > begin_ns, pl.col("start_ns") < end_ns
    ).with_columns(
        start_ns=pl.col("start_ns").clip(begin_ns) - begin_ns,
        end_ns=pl.col("end_ns").clip(None, end_ns) - begin_ns,
    )
    watched = (pl.col("what") == Account.WATCHED.value) & (pl.col("cause") == Watched.SWITCHES)
    off = inside.filter(pl.col("what").is_in(_STATES)).sort("thread", "start_ns")
    seen = inside.filter(watched).group_by("thread").agg(at_first=pl.first("processor"))
    off = off.join(seen, on="thread", how="left", maintain_order="left").with_columns(
        before=pl.col("end_ns").shift(1).over("thread").fill_null(0),
        ran_on=pl.col("processor").shift(1).over("thread").fill_null(pl.col("at_first")),
    )
    columns = ("thread_name", "thread", "start_ns", "end_ns", "state", "cause", "processor")
    gone = off.with_columns(state=pl.col("what").cast(pl.String)).select(columns)
    ran = off.select(
        "thread_name",
        "thread",
        start_ns="before",
        end_ns="start_ns",
        state=pl.lit("running"),
        cause=pl.lit(None, pl.String),
        processor="ran_on",
    )
    last = (
        inside.filter(watched)
        .group_by("thread", maintain_order=True)
        .agg(pl.first("thread_name", "processor"), pl.min("start_ns"), pl.max("end_ns"))
        .join(
            off.group_by("thread").agg(over=pl.max("end_ns"), onto=pl.last("processor")),
            on="thread",
            how="left",
        )
        .select(
            "thread_name",
            "thread",
            start_ns=pl.col("over").fill_null(pl.col("start_ns")),
            end_ns="end_ns",
            state=pl.lit("running"),
            cause=pl.lit(None, pl.String),
            processor=pl.coalesce("onto", "processor"),
        )
    )
    every = pl.concat([gone, ran, last]).filter(pl.col("end_ns") > pl.col("start_ns"))
    every = every.filter((pl.col("state") == "running").any().over("thread"))
    length = pl.col("end_ns") - pl.col("start_ns")
    longest = every.sort(length, descending=True, maintain_order=True).head(MOST_STRETCHES)
    longest = longest.sort("thread", "start_ns", maintain_order=True)
    # A stretch reaches to the next one of its thread, and equal neighbors are one.
    following = pl.col("start_ns").shift(-1).over("thread").fill_null(pl.col("end_ns"))
    run = pl.struct("thread", "state", "cause", "processor").rle_id()
    return (
        longest.with_columns(end_ns=following)
        .group_by(run.alias("run"), maintain_order=True)
        .agg(
            pl.first("thread_name", "thread", "start_ns"),
            pl.last("end_ns"),
            pl.first("state", "cause", "processor"),
        )
        .drop("run")
        .rename({"thread_name": "name"})
        .to_dicts()
    )
