"""Sums rows of layers by type, and computes each value's share of the whole."""

from __future__ import annotations

from typing import Final

import polars as pl

from xsp.answer.analyses.total import total

# What tables by type tell apart besides the type.
BY_TYPE: Final = ("group", "phase", "type", "layer_type")


def totals(name: str) -> list[pl.Expr]:
    """Return the sum of a time and of the ends of its interval, as columns of these names.

    There is no interval where one of the times has none.
    """
    ends = [name.replace("_ns", end) for end in ("_low_ns", "_high_ns")]
    all_known = [pl.col(end).count() == pl.col(name).count() for end in ends]
    return [
        total(name).alias(name),
        *(
            pl.when(known).then(total(end)).alias(end)
            for known, end in zip(all_known, ends, strict=True)
        ),
    ]


def share_pct(name: str) -> pl.Expr:
    """Return each value as a share of the column's sum in percent, null where that is 0."""
    return (100 * pl.col(name) / pl.sum(name)).fill_nan(None)


def by_type(rows: pl.DataFrame, of: str, *sums: pl.Expr) -> pl.DataFrame:
    """Return a row for each type of layer with sums over its layers, the largest first.

    Args:
        rows: What `layer_rows` returns.
        of: The column that is shared out, in `share_pct`, and orders the rows.
        sums: Sums over the layers, besides `count`, the number of calls.
    """
    return (
        rows.group_by(BY_TYPE, maintain_order=True)
        .agg(pl.sum("calls").alias("count"), *sums)
        .with_columns(share_pct=share_pct(of))
        .sort(of, descending=True, nulls_last=True, maintain_order=True)
    )
