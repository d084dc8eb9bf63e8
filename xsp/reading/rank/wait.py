"""Computes how long each rank waited for other ranks in collectives.

A rank waits in a collective from its own arrival to that of the last rank; the rest is work.

    rank 0    |---- waits ----|-- works --|
    rank 1                    |-- works --|     the last to arrive
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

# A row for each collective that a rank recorded: the group of like steps, the number of the
# step there, the group's name, the collective's name, its number among those of the name.
COLLECTIVE_SCHEMA: dict[str, Any] = {
    "group": pl.Int64,
    "step": pl.Int64,
    "label": pl.String,
    "name": pl.String,
    "number": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
_OPERATION = ("group", "step", "name", "number")
_PLACE = ("rank", "label", "name")
_TO_ONE = r"send|recv"  # between two ranks, which the names do not tell


def matched(ranks: Sequence[pl.DataFrame], size: int) -> pl.DataFrame:
    """Return the collectives that all ranks recorded, with the times that they waited.

    Collectives of one name are matched in their order. What did not run in all ranks at one moment
    was not one collective, but those of several groups of processes: it is left out.

    Args:
        ranks: Of each rank the columns of `COLLECTIVE_SCHEMA`, times on one clock.
        size: How many ranks there are.

    Returns:
        The columns of `COLLECTIVE_SCHEMA`, `rank`, `late_ns` (after the first rank), `wait_ns`,
        `is_last` (to arrive) and `apart_ns` (of the end from the mean of all ends).
    """
    rows = [frame.with_columns(rank=pl.lit(at, pl.Int64)) for at, frame in enumerate(ranks)]
    schema: dict[str, Any] = {**COLLECTIVE_SCHEMA, "rank": pl.Int64}
    table = pl.concat([pl.DataFrame(schema=schema), *rows])
    start, end = pl.col("start_ns"), pl.col("end_ns")
    together = table.filter(
        ~pl.col("name").str.contains(_TO_ONE),
        pl.col("rank").n_unique().over(_OPERATION) == size,
        pl.len().over(_OPERATION) == size,
    ).filter(start.max().over(_OPERATION) <= end.min().over(_OPERATION))
    return together.with_columns(
        late_ns=start - start.min().over(_OPERATION),
        wait_ns=start.max().over(_OPERATION) - start,
        is_last=start.rank("ordinal").over(_OPERATION) == size,
        apart_ns=(end - end.mean().over(_OPERATION)).abs(),
    )


def per_span(found: pl.DataFrame) -> pl.DataFrame:
    """Return the share of the wait in each collective of a group, by rank and place.

    Columns `rank`, `label`, `name`, and `wait` (share of the time, from 0 to 1).
    """
    lasted = pl.col("end_ns") - pl.col("start_ns")
    sums = found.group_by(_PLACE).agg(pl.col("wait_ns").sum(), lasted_ns=lasted.sum())
    share = pl.col("wait_ns") / pl.col("lasted_ns").clip(lower_bound=1)
    return sums.select(*_PLACE, wait=share).sort(_PLACE)


def imbalance(found: pl.DataFrame, size: int) -> list[dict[str, Any]]:
    """Return each rank's arrivals in the columns of the analysis `rank-imbalance`."""
    others = pl.col("wait_ns").sum().over(_OPERATION) - pl.col("wait_ns")
    by_rank = (
        found.with_columns(others=others)
        .group_by("rank")
        .agg(
            collectives=pl.len().cast(pl.Int64),
            late_median_ns=pl.col("late_ns").median(),
            late_max_ns=pl.col("late_ns").max(),
            last=pl.col("is_last").sum().cast(pl.Int64),
            made_wait_ns=pl.when("is_last").then(pl.col("others")).sum(),
            ends_apart_ns=pl.col("apart_ns").quantile(0.95),
        )
    )
    every = pl.DataFrame({"rank": range(size)}, schema={"rank": pl.Int64})
    rows = every.join(by_rank, on="rank", how="left").sort("rank")
    return rows.with_columns(pl.col("collectives").fill_null(0)).drop("rank").to_dicts()
