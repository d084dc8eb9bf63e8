"""Shares: results in, how much of each model's latency each type of layer takes out."""

from __future__ import annotations

import json

import polars as pl

from xsp.zoo.characterisation.entry import IDENTITY, best_rows
from xsp.zoo.characterisation.table import ZooTable
from xsp.zoo.results import TYPES, UNTYPED

_COLUMNS = {
    **IDENTITY,
    "batch": "The best batch, or the only one.",
    "part": "The type of layer, or the library primitive.",
    "share_pct": "Its share of the latency, at the best batch.",
}
_PRIMITIVES = pl.Schema({"entry": pl.UInt32, "part": pl.String, "share_pct": pl.Float64})


def _by_type(results: pl.DataFrame) -> pl.DataFrame:
    best = best_rows(results)
    names = {one: one.removeprefix("time.").removesuffix("_pct") for one in (*TYPES, UNTYPED)}
    shares = best.select("entry", **{said.replace("_", " "): one for one, said in names.items()})
    long = shares.unpivot(index="entry", variable_name="part", value_name="share_pct")
    return _named(long.filter(pl.col("share_pct") > 0), best)


def _by_primitive(results: pl.DataFrame) -> pl.DataFrame:
    best = best_rows(results)
    texts = best.select("entry", "primitives").drop_nulls()
    rows = [
        (entry, part, share)
        for entry, text in texts.iter_rows()
        for part, share in json.loads(text).items()
    ]
    long = pl.DataFrame(rows, schema=_PRIMITIVES, orient="row")
    return _named(long, best)


def _named(long: pl.DataFrame, best: pl.DataFrame) -> pl.DataFrame:
    """Return shares with what their entries are, the largest of each entry first."""
    ordered = long.sort("entry", "share_pct", descending=[False, True], maintain_order=True)
    entries = best.select("entry", "batch", *IDENTITY)
    return ordered.join(entries, on="entry", how="left", maintain_order="left")


layer_types = ZooTable("layer-types", "Which types of layer take the time?", _COLUMNS, _by_type)
primitives = ZooTable(
    "primitives", "Which library primitives take the time?", _COLUMNS, _by_primitive
)
