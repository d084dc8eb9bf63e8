"""Failures: results in, what has no numbers and why, grouped by reason, out."""

from __future__ import annotations

import polars as pl

from xsp.zoo.characterisation.doubt import doubts
from xsp.zoo.characterisation.entry import entry_rows, is_measured
from xsp.zoo.characterisation.table import ZooTable

_NAMED = 5  # models that a row names
_COLUMNS = {
    "status": "What became of them: `failed`, `out-of-memory`, `time-out`, `crashed`, `skipped`.",
    "reason": "Why, the first line; numbers that differ within the group are `…`.",
    "measurements": "How many have no numbers for this reason.",
    "models": "How many models these are of.",
    "named": f"The first {_NAMED} of these.",
}
_PROBLEM_COLUMNS = {
    "problem": "What to know before trusting the numbers; numbers that differ are `…`.",
    "measurements": "How many say so; what is said of all batches of a model counts once.",
    "models": "How many models these are of.",
    "named": f"The first {_NAMED} of these.",
}
_NUMBER = r"\d+(?:[.,]\d+)*"


def _failures(results: pl.DataFrame) -> pl.DataFrame:
    reason = pl.col("reason").fill_null("no reason is known").str.split("\n").list.first()
    return _grouped(results.filter(~is_measured()), reason.alias("reason"), "status")


def _problems(results: pl.DataFrame) -> pl.DataFrame:
    sentences = results.select("model", reason="problems").explode("reason").drop_nulls()
    sentences = pl.concat([sentences, doubts(entry_rows(results))])
    return _grouped(sentences, pl.col("reason")).rename({"reason": "problem"})


def _grouped(rows: pl.DataFrame, said: pl.Expr, *within: str) -> pl.DataFrame:
    """Return rows by what is said of them, whatever the numbers in that, by frequency."""
    models = pl.col("model").unique(maintain_order=True)
    first = models.head(_NAMED).str.join(", ")
    one = pl.col("reason").n_unique() == 1
    return (
        rows.with_columns(said)
        .with_columns(said=pl.col("reason").str.replace_all(_NUMBER, "…"))
        .with_columns(alike=pl.col("said"))
        .group_by(*within, "alike", maintain_order=True)
        .agg(
            pl.when(one).then(pl.first("reason")).otherwise(pl.first("said")).alias("reason"),
            pl.len().cast(pl.Int64).alias("measurements"),
            pl.col("model").n_unique().cast(pl.Int64).alias("models"),
            pl.when(models.len() > _NAMED)
            .then(pl.format("{} and {} more", first, models.len() - _NAMED))
            .otherwise(first)
            .first()
            .alias("named"),
        )
        .sort("measurements", descending=True, maintain_order=True)
    )


failures = ZooTable("failures", "What failed, and why?", _COLUMNS, _failures)
problems = ZooTable(
    "problems", "What should be known before trusting a number?", _PROBLEM_COLUMNS, _problems
)
