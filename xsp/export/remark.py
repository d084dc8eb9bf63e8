"""Remarks: what is wrong with a span or a trace, as errors and events that are handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from xsp.quantity import duration
from xsp.trace import similarity as shape

SCHEMA = {"row": pl.Int64, "unix_ns": pl.Int64, "name": pl.String, "message": pl.String}

# Children that sum to a little more than their parent are noise; more is worth a word.
_EXCESS = 0.05


def errors(spans: pl.DataFrame) -> pl.Series:
    """Return what went wrong in each span, null where nothing did."""
    raised = shape.field(spans, "error")
    return spans.select(
        error=pl.when(raised.is_not_null())
        .then(pl.lit("raised ") + raised)
        .when(pl.col("latency_ns").is_null())
        .then(pl.lit("its latency could not be measured"))
    ).to_series()


def events(spans: pl.DataFrame, start_unix_ns: pl.Series) -> pl.DataFrame:
    """Return what a reader should know of single spans, in the columns of `SCHEMA`."""
    scaled = shape.field(spans, "scaled_ns", pl.Float64)
    exact = shape.field(spans, "exact", pl.Boolean)
    known = spans.select("latency_ns").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("row"),
        start_unix_ns.alias("unix_ns"),
        scaled.alias("scaled_ns"),
        exact.alias("exact"),
    )
    inexact = known.filter(~pl.col("exact"))
    exceeded = known.filter(pl.col("scaled_ns") > _EXCESS * pl.col("latency_ns"))
    said = [(row, at, "overhead-left", _OVERHEAD_LEFT) for row, at in _places(inexact)]
    said += [
        (row, at, "children-exceed", _CHILDREN_EXCEED.format(duration(excess)))
        for (row, at), excess in zip(_places(exceeded), exceeded["scaled_ns"], strict=True)
    ]
    return pl.DataFrame(sorted(said), schema=SCHEMA, orient="row")


_OVERHEAD_LEFT = (
    "something deeper was recorded in the runs that its latency is from, which holds that overhead"
)
_CHILDREN_EXCEED = (
    "the latencies of the spans below sum to {} more than its own: they are drawn shorter"
)


def _places(spans: pl.DataFrame) -> list[tuple[int, int]]:
    return spans.select("row", "unix_ns").rows()


def of_trace(
    metadata: Mapping[str, Any], unix_ns: int, *, left_out: str | None = None
) -> pl.DataFrame:
    """Return the problems of a trace as events of its root.

    Args:
        metadata: The trace's metadata.
        unix_ns: When the root began.
        left_out: What the span budget left out, if it did.
    """
    said = [(str(p["code"]), str(p["message"])) for p in metadata.get("problems", ())]
    if left_out is not None:
        said.append(("span-budget", left_out))
    return pl.DataFrame([(0, unix_ns, *words) for words in said], schema=SCHEMA, orient="row")
