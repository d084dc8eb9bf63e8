"""Entries: the frame of results in, the rows of each model at one combination of settings out.

An entry is what differs in its batch alone: a model with its settings on one machine.
"""

from __future__ import annotations

import polars as pl

from xsp.zoo.results import MEASURED, without_batch

# What an entry is known by; a column that says the same of all entries may be left out.
IDENTITY = {
    "model": "Name of the model in its zoo.",
    "family": "Family of the model, where the zoo gives one.",
    "framework": "What ran the model; null where that is not known.",
    "precision": "Element type of the weights and inputs; null where that is not known.",
    "compiled": "Whether the model was compiled first; null where that is not known.",
    "device": "Where the model ran; null where that is not known.",
    "threads": "Threads of the framework and its libraries; null: as they choose.",
    "train": "Whether an evaluation is a training step.",
    "variant": "All settings but the batch, as JSON.",
    "host": "Name of the machine.",
    "machine": "What machines are told apart by.",
}
# Settings apart from these are in `variant` alone.
TOLD = ("framework", "precision", "compiled", "device", "threads", "train", "machine")

_KEY = ("model", "target", "machine", "variant")


def entry_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return the results with the number of their entry, sorted by entry and batch.

    Args:
        results: The frame of results, or what this function made of one: tables and pictures take
            either, and a page makes it once.

    Returns:
        The columns of the results; `variant`; `entry`, from 0 in the order of the results; the
        setting's values as known of any row of the entry; and `best`, whether the row is the one
        that stands for its entry.
    """
    if "entry" in results.columns:
        return results
    rows = results.with_columns(variant=without_batch())
    numbers = rows.select(_KEY).unique(maintain_order=True).with_row_index("entry")
    rows = rows.join(numbers, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    for name in [name for name in IDENTITY if name not in _KEY and rows[name].null_count()]:
        rows = _known(rows, name)
    rows = rows.sort("entry", "batch", maintain_order=True)
    return rows.with_columns(best=_is_best(rows))


def best_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return the row of each entry at its best batch, of those that were measured."""
    return entry_rows(results).filter("best")


def labels_of(table: pl.DataFrame) -> pl.Series:
    """Return what to call each entry: its model, and those settings in which entries differ.

    Args:
        table: Columns of `IDENTITY`.
    """
    differing = [name for name in varying(table) if name != "machine"]
    parts = [pl.col("model"), *(pl.col(name).cast(pl.String) for name in differing)]
    said = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    return table.select(label=said).to_series()


def varying(table: pl.DataFrame) -> list[str]:
    """Return the settings in which entries differ, machines by the names of their hosts first.

    Args:
        table: Columns of `IDENTITY`.
    """
    names = ["host", *(name for name in TOLD if name != "machine")]
    if table["host"].n_unique() < table["machine"].n_unique():
        names.insert(1, "machine")
    return [name for name in names if table[name].drop_nulls().n_unique() > 1]


def roofs(results: pl.DataFrame) -> pl.DataFrame:
    """Return what machines compute and move at most: `host`, of several all, and the peaks."""
    known = ["peak_flops_per_s", "peak_bytes_per_s", "roof_source"]
    rows = results.select("host", *known).drop_nulls(known[:2])
    hosts = pl.col("host").unique(maintain_order=True).str.join(", ")
    return rows.group_by(known[:2], maintain_order=True).agg(hosts, pl.first("roof_source"))


def is_measured() -> pl.Expr:
    """Return whether a row of the results has numbers."""
    return pl.col("status") == MEASURED


# What follows takes whole columns: an expression for each of 100,000 entries takes seconds.
def _known(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return rows with the first value that is known of each entry in a column."""
    known = first_of(rows.select("entry", name).drop_nulls(name))
    return rows.drop(name).join(known, on="entry", how="left", maintain_order="left")


def _is_best(rows: pl.DataFrame) -> pl.Series:
    """Return which rows stand for their entries: the best batch, or else the largest measured."""
    numbered = rows.select("entry", "batch", "optimal_batch", "status").with_row_index("row")
    measured = numbered.filter(is_measured())
    optimal = measured.filter(pl.col("batch") == pl.col("optimal_batch"))
    chosen = pl.concat([measured, optimal]).unique("entry", keep="last")
    return numbered["row"].is_in(chosen["row"].implode())


def first_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first row of each entry."""
    return rows.unique("entry", keep="first", maintain_order=True)
