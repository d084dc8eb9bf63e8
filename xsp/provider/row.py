"""Rows: spans as columns. What providers return, and correlation and merging work on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.errors import ProviderError
from xsp.level import Kind

KIND = pl.Enum([kind.value for kind in Kind])

# One row per span. `ATTRIBUTE`-prefixed columns may follow, of any type.
ROW_SCHEMA: dict[str, Any] = {
    "kind": KIND,
    "name": pl.String,
    "start_ns": pl.Int64,  # CLOCK_MONOTONIC
    "end_ns": pl.Int64,  # null: with the last launch inside, see `xsp.correlation.open_ended`
    "thread": pl.Int64,  # threading.get_ident(); null on a device
    "device": pl.Int32,
    "stream": pl.Int64,
    "correlation_id": pl.Int64,
    "sequence": pl.Int64,  # autograd sequence number, null where there is none
    "forward_thread": pl.Int64,  # thread of the forward operator, for backward ones
    "id": pl.Int64,  # a provider's own span id, where it states parents itself
    "parent_id": pl.Int64,  # id of the parent; 0: the root; null: find it by time
    "uncertainty_ns": pl.Int64,  # by how much start and end may be wrong; null: they are right
    "duration_ns": pl.Int64,  # of rows without start and end, which are placed by order
    "inside": pl.String,  # pattern of the operators that such a row can lie in
    "rung": KIND,  # the rung that its latency is taken from, normally its kind's
}

ATTRIBUTE = "attr."

# Boolean, in the frames of correlation: whether a row may as well have another parent. Null or
# not there: it may not.
DOUBTFUL = "doubtful"

# Rows that were recorded without an end: their launches end them, see `xsp.correlation.open_ended`.
ENDED_BY_LAUNCH = (
    (pl.col("rung") == Kind.LAUNCH.value) & (pl.col("kind") != Kind.LAUNCH.value)
).fill_null(value=False)

SpanRows = pl.DataFrame

_ORDERS = np.array([kind.order for kind in Kind], np.int64)


def span_rows(columns: Mapping[str, Any]) -> SpanRows:
    """Return rows with every column of `ROW_SCHEMA`, those not given being null.

    Args:
        columns: `kind`, `name`, `start_ns` and `end_ns` (sequences or arrays of
            one length n), any other column of `ROW_SCHEMA`, and attributes under
            names that begin with `attr.`. A scalar stands for n equal values.

    Raises:
        ProviderError: A column is missing, unknown, or of the wrong type; or a row has
            no kind or name.
    """
    unknown = [c for c in columns if c not in ROW_SCHEMA and not c.startswith(ATTRIBUTE)]
    missing = [c for c in ("kind", "name", "start_ns", "end_ns") if c not in columns]
    if unknown or missing:
        raise ProviderError(f"span rows: missing columns {missing}, unknown columns {unknown}")
    try:
        return _conform(pl.DataFrame(dict(columns)))
    except pl.exceptions.PolarsError as error:
        raise ProviderError(f"span rows: {error}") from error


def no_rows() -> SpanRows:
    """Return zero rows of the right schema."""
    return pl.DataFrame(schema=ROW_SCHEMA)


def concat_rows(frames: list[SpanRows]) -> SpanRows:
    """Return the rows of all frames, attributes that one of them lacks being null there."""
    frames = [frame for frame in frames if frame.height]
    if not frames:
        return no_rows()
    return pl.concat(frames, how="diagonal_relaxed")


def mark_doubtful(rows: SpanRows, at: npt.NDArray[Any]) -> SpanRows:
    """Return the rows with `DOUBTFUL` true at these indices, beside where it was already."""
    if not len(at):
        return rows
    marked = is_doubtful(rows)
    marked[at] = True
    return rows.with_columns(pl.Series(DOUBTFUL, marked))


def is_doubtful(rows: SpanRows) -> npt.NDArray[np.bool_]:
    """Return which rows may as well have another parent."""
    if DOUBTFUL not in rows.columns:
        return np.zeros(rows.height, np.bool_)
    return rows[DOUBTFUL].fill_null(value=False).to_numpy(writable=True)


def orders(rows: SpanRows) -> npt.NDArray[np.int64]:
    """Return the position of each row's kind from outside in (`Kind.order`)."""
    order: npt.NDArray[np.int64] = _ORDERS[rows["kind"].to_physical().to_numpy()]
    return order


def _conform(frame: pl.DataFrame) -> SpanRows:
    if "rung" not in frame.columns:
        frame = frame.with_columns(rung=pl.col("kind"))
    known = [
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in ROW_SCHEMA.items()
    ]
    attributes = [pl.col(name) for name in frame.columns if name.startswith(ATTRIBUTE)]
    rows = frame.select(*known, *attributes)
    for name in ("kind", "name"):
        if rows[name].null_count():
            raise ProviderError(f"span rows: {rows[name].null_count()} of them have no {name}")
    return rows
