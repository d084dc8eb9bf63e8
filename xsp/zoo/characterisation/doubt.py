"""Doubts: entries in, what no row says alone out: best batches that are not sure, mixed bases."""

from __future__ import annotations

import json
from functools import cache
from typing import Final

import polars as pl

from xsp.sweep import THRESHOLD_PCT, changes
from xsp.zoo.characterisation.entry import is_measured

_CURVE: Final = ("entry", "basis")
_UNSURE = (
    "the best batch is not sure: the intervals of the throughputs, or missing ones of single runs, "
    "allow another"
)


def sure_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return whether the best batch of each entry is sure: `entry`, and `optimal_batch_sure`.

    It is where each doubling below it raises the throughput by more than 5 % and the next one by no
    more, whichever values within their intervals the throughputs have.

    Args:
        rows: What `entry_rows` returned.
    """
    low, high = pl.col("throughput_low_per_s"), pl.col("throughput_high_per_s")
    batch, best = pl.col("batch"), pl.col("optimal_batch")
    known = rows.filter(is_measured(), best.is_not_null()).select(
        "entry",
        _place=batch - best,
        _least=_gain(high, low),
        _most=_gain(low, high),
        _last=batch.shift(-1).over(_CURVE).is_null(),
    )
    place = pl.col("_place")
    sure = (
        pl.when(place < 0)
        .then(pl.col("_least") > THRESHOLD_PCT)
        .when(place == 0)
        .then(pl.col("_last") | (pl.col("_most") <= THRESHOLD_PCT))
        .otherwise(pl.lit(value=True))
    )
    return known.group_by("entry").agg(optimal_batch_sure=sure.fill_null(value=False).all())


def doubts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return sentences on entries: `model`, and `reason`.

    Args:
        rows: What `entry_rows` returned.
    """
    unsure = sure_of(rows).filter(~pl.col("optimal_batch_sure"))
    models = rows.select("entry", "model").unique("entry", keep="first", maintain_order=True)
    named = models.join(unsure, on="entry", how="semi", maintain_order="left")
    return pl.concat([named.select("model", reason=pl.lit(_UNSURE)), _mixed(rows)])


def _gain(before: pl.Expr, after: pl.Expr) -> pl.Expr:
    """Return by how much a doubling of the batch raises the throughput, in percent."""
    doublings = (pl.col("batch").shift(-1) / pl.col("batch")).log(2)
    return (100 * ((after.shift(-1) / before).pow(1 / doublings) - 1)).over(_CURVE)


def _mixed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return in what the bases of measurements differ that are of one entry."""
    bases = (
        rows.filter(is_measured())
        .sort("started", maintain_order=True)
        .group_by("entry", maintain_order=True)
        .agg(pl.first("model"), pl.col("basis").unique(maintain_order=True))
        .filter(pl.col("basis").list.len() > 1)
    )
    said = [_differing(found[0], found[-1]) for found in bases["basis"].to_list()]
    return bases.select("model", reason=pl.Series(said, dtype=pl.String))


@cache
def _differing(before: str, now: str) -> str:
    what = "; ".join(changes(json.loads(before), json.loads(now)))
    return f"its batches were not measured alike, and no best one spans them: {what}"
