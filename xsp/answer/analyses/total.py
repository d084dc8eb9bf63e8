"""Builds polars expressions for sums and sources over the rows of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from xsp.trace import total as known_total

# Where operations and bytes are from, as `work_source` says.
WORK_SOURCES: Final = ("analytical", "counted", "library")


def total(name: str) -> pl.Expr:
    """Return the sum of what is known of a column, null where nothing is."""
    return known_total(pl.col(name)).alias(name)


def whole_total(name: str) -> pl.Expr:
    """Return the sum of a column, null where one of its values is not known."""
    return pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum()).alias(name)


def joined(sources: pl.Expr, among: Sequence[str] = WORK_SOURCES) -> pl.Expr:
    """Return which of some sources there are, joined by commas; null where there is none.

    Args:
        sources: Source of each row.
        among: All sources that there may be, in their order.
    """
    # Quicker by far than to sort and join the texts of each group.
    found = [pl.when((sources == source).any()).then(pl.lit(source)) for source in among]
    return pl.concat_str(found, separator=", ", ignore_nulls=True).replace("", None)
