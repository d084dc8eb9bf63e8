"""Reads thread or device, pass, ambiguity and recording cost from the rows of a tree.

Where a row ran, from which pass its latency is taken, whether its parent is ambiguous: each
question is answered here, for every room that asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import KIND, ROW_SCHEMA, Provenance, SpanRows

# What `correlate` returns: one frame per step, its root first, parents before their
# children. Every row has a start and an end, and either a thread or a device.
TREE_SCHEMA: dict[str, Any] = {
    **ROW_SCHEMA,
    "parent": pl.Int64,  # index of the parent's row in the frame, -1 for the root
    "ambiguous": pl.Boolean,  # whether several spans may be the row's parent; null: no
}

# What recording a row cost between its start and its end, with the standard error of that.
# Frames have these columns only where a provider of their rows was calibrated; null: not known.
INSIDE, INSIDE_ERROR = "inside_ns", "inside_error_ns"

# Whether a row ran on a device; all other rows ran on a thread of the host. Some rows of the host
# name a device as well, and some name no thread until `xsp.reading.correlation` gives them one.
ON_DEVICE = pl.col("device").is_not_null() & pl.col("thread").is_null()

_OTHER_PASSES = {
    Provenance.MARKER: Kind.KERNEL,
    Provenance.ENDED_BY_LAUNCH: Kind.LAUNCH,
    Provenance.DERIVED: Kind.OP,
    Provenance.REPLAYED: Kind.KERNEL,
}

# The pass that a row's latency is taken from, as a kind: the row's own kind, unless the row's
# times are known only on a deeper pass.
PASS = pl.col("kind")

for _provenance, _kind in _OTHER_PASSES.items():
    PASS = (
        pl.when(pl.col("provenance") == _provenance.value)
        .then(pl.lit(_kind.value, dtype=KIND))
        .otherwise(PASS)
    )

_ORDERS = np.array([kind.order for kind in Kind], np.int64)


def mark_ambiguous(rows: SpanRows, at: npt.NDArray[Any]) -> SpanRows:
    """Return the rows with `ambiguous` set at the indices `at`; elsewhere the column stays."""
    marked = is_ambiguous(rows)
    marked[at] = True
    return rows.with_columns(ambiguous=pl.Series(marked))


def is_ambiguous(rows: SpanRows) -> npt.NDArray[np.bool_]:
    """Return which rows are ambiguous; none, where the frame has no such column."""
    if "ambiguous" not in rows.columns:
        return np.zeros(rows.height, np.bool_)
    return rows["ambiguous"].fill_null(value=False).to_numpy(writable=True)


def with_inside_costs(rows: SpanRows, costs: Mapping[Kind, tuple[float, float]]) -> SpanRows:
    """Return the rows with the cost of recording inside each of them; null for other kinds.

    Args:
        rows: Rows without these columns.
        costs: The cost and its standard error, in ns, by the kind of the rows.
    """
    kinds = rows["kind"].to_physical().to_numpy()
    columns = []
    for at, name in enumerate((INSIDE, INSIDE_ERROR)):
        known = np.array([costs[k][at] if k in costs else np.nan for k in Kind], np.float32)
        columns.append(pl.Series(name, known[kinds], nan_to_null=True))
    return rows.hstack(columns)


def inside_costs(rows: SpanRows) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the cost of recording inside each row, and its standard error; NaN: not known."""
    if INSIDE not in rows.columns:
        unknown = np.full(rows.height, np.nan)
        return unknown, unknown
    cost, error = (rows[name].to_numpy().astype(np.float64) for name in (INSIDE, INSIDE_ERROR))
    return cost, error


def on_device(rows: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows ran on a device (`ON_DEVICE`), and not on a thread of the host."""
    return rows.select(ON_DEVICE).to_series().to_numpy()


def has_provenance(rows: pl.DataFrame, *provenances: Provenance) -> npt.NDArray[np.bool_]:
    """Return which rows have one of these provenances."""
    chosen: npt.NDArray[np.bool_] = np.isin(
        rows["provenance"].fill_null(Provenance.RECORDED.value).to_physical().to_numpy(),
        [list(Provenance).index(provenance) for provenance in provenances],
    )
    return chosen


def orders(rows: SpanRows) -> npt.NDArray[np.int64]:
    """Return the position of each row's kind from outside in (`Kind.order`)."""
    return _ORDERS[rows["kind"].to_physical().to_numpy()]


def pass_orders(rows: SpanRows) -> npt.NDArray[np.int64]:
    """Return the position of the pass that each row's latency is taken from (`PASS`)."""
    return orders(rows.select(PASS.alias("kind")))
