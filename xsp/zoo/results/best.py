"""The best batch of each curve: a table of results in, the same with the rule's answer out.

The rule is that of `xsp sweep` (docs/sweep.md), over the rows of the table instead of traces. A
curve is what differs in the batch alone: one model, its other settings, and what they rest on.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from xsp.sweep import THRESHOLD_PCT

_CURVE: Final = ("model", "machine", "_basis", "_settings")
_BATCH = r'"batch": \d+(, )?|, "batch": \d+'
_LIMIT = r'"memory limit": "[^"]*", '  # in the basis of what ran out of memory alone


def without_batch() -> pl.Expr:
    """Return the settings of results without the batch, as JSON."""
    return pl.col("settings").str.replace(_BATCH, "")


def with_best(frame: pl.DataFrame) -> pl.DataFrame:
    """Return results with `optimal_batch` and `gain_pct` computed anew."""
    names = frame.columns
    numbered = frame.drop("optimal_batch", "gain_pct").with_row_index("_row")
    curves = numbered.with_columns(
        _settings=without_batch(),
        _basis=pl.col("basis").str.replace(_LIMIT, ""),
    )
    measured = curves.filter(
        pl.col("status") == "measured", pl.col("batch") > 0, pl.col("throughput_per_s") > 0
    )
    gains = measured.sort("batch", maintain_order=True).with_columns(gain_pct=_gain())
    full = curves.filter(pl.col("status") == "out-of-memory").select(_CURVE).unique()
    best = (
        gains.join(full.with_columns(_full=True), on=_CURVE, how="left", nulls_equal=True)
        .group_by(_CURVE)
        .agg(optimal_batch=_best())
    )
    return (
        curves.join(gains.select("_row", "gain_pct"), on="_row", how="left", maintain_order="left")
        .join(best, on=_CURVE, how="left", nulls_equal=True, maintain_order="left")
        .select(names)
    )


def _gain() -> pl.Expr:
    """Return by how much a doubling raises the throughput; of several, each alike."""
    batch, rate = pl.col("batch"), pl.col("throughput_per_s")
    doublings = (batch.shift(-1) / batch).log(2)
    gain = 100 * ((rate.shift(-1) / rate).pow(1 / doublings) - 1)
    return pl.when(batch.shift(-1) > batch).then(gain).over(_CURVE)


def _best() -> pl.Expr:
    """Return the best batch of a curve; the only one that fits in memory is the best."""
    batch = pl.col("batch")
    enough = batch.filter(pl.col("gain_pct") <= THRESHOLD_PCT).min()
    known = (pl.len() > 1) | pl.col("_full").any()
    return pl.when(known).then(pl.coalesce(enough, batch.max()))
