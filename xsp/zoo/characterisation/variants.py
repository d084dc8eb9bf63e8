"""Variants (Table X of the paper): results in, each model against its first settings, out.

The paper sets MXNet's models against TensorFlow's. Here every entry of a model (another framework,
precision or machine) is set against the model's first.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import polars as pl

from xsp.zoo.characterisation.entry import IDENTITY, TOLD, best_rows
from xsp.zoo.characterisation.models import WORK, models
from xsp.zoo.characterisation.table import ZooTable

_COLUMNS = {
    **IDENTITY,
    "differs": "What differs from the model's first entry.",
    "online_latency_ratio": "Latency at batch 1, relative to that of the model's first entry.",
    "max_throughput_ratio": "Most throughput, relative to that of the model's first entry.",
    "optimal_batch": "Best batch; null where one batch alone was tried.",
    "kernel_pct": "Share of the latency in kernels; without a device in innermost operators and "
    "library calls. At the best batch.",
    **WORK,
}


def _variants(results: pl.DataFrame) -> pl.DataFrame:
    rows = models.make(results).filter(pl.len().over("model") > 1)
    ratios = [
        (pl.col(name) / pl.col(name).first().over("model")).alias(f"{ratio}_ratio")
        for name, ratio in (
            ("online_latency_ns", "online_latency"),
            ("max_throughput_per_s", "max_throughput"),
        )
    ]
    missing = [name for name in WORK if name not in rows.columns]
    work = best_rows(results).select("entry", *missing)
    first = rows.select(pl.col("variant").first().over("model")).to_series()
    further = [_further(*pair) for pair in zip(rows["variant"], first, strict=True)]
    rows = rows.with_columns(*ratios, further=pl.Series(further, dtype=pl.String))
    return rows.with_columns(differs=_difference()).join(
        work, on="entry", how="left", maintain_order="left"
    )


def _difference() -> pl.Expr:
    """Return in words what differs from the model's first entry; empty of the first itself."""
    told = []
    for name in ("host", *(name for name in TOLD if name != "machine")):
        value = pl.col(name).cast(pl.String)
        other = value.ne_missing(value.first().over("model"))
        told.append(pl.when(other).then(pl.format(name + " {}", value.fill_null("as is"))))
    return pl.concat_str([*told, pl.col("further")], separator=", ", ignore_nulls=True)


def _further(variant: str, other: str) -> str | None:
    """Return the settings without a column of their own that differ from those of another."""
    now, first = _settings(variant), _settings(other)
    names = [name for name in {**now, **first} if now.get(name) != first.get(name)]
    told = [f"{name} {now.get(name, 'as is')}" for name in names if name not in TOLD]
    return ", ".join(told) or None


@cache
def _settings(variant: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(variant)
    return found


variants = ZooTable(
    "variants",
    "How do frameworks, settings and machines compare?",
    _COLUMNS,
    _variants,
    "Table X",
)
