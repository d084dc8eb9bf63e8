"""Summaries: says in sentences what the results tell of the zoo as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses import text_of
from xsp.answer.zoo.tables import failures, is_measured, models
from xsp.text import counted

_ROWS = 10
_TABLE = (
    *("model", "online_latency_ns", "max_throughput_per_s", "optimal_batch"),
    *("convolution_pct", "bound"),
)
_HEADINGS = ("model", "latency, batch 1", "throughput", "best batch", "convolution %", "bound")


def summary(results: pl.DataFrame) -> str:
    """Return the end of a run as text: counts, the fastest models, and what failed.

    Args:
        results: The frame of results.
    """
    table = models(results)
    lines = [counts(results)]
    ways = ["max_throughput_per_s", "online_latency_ns"]  # models without a batch have no rate
    known = table.filter(pl.any_horizontal(pl.col(ways).is_not_null()))
    quickest = known.sort(ways, descending=[True, False], nulls_last=True, maintain_order=True)
    if quickest.height > _ROWS:
        lines.append(f"the {_ROWS} of most throughput:")
    if quickest.height:
        shown = quickest.head(_ROWS).iter_rows(named=True)
        cells = [_HEADINGS, *(tuple(text_of(name, row[name]) for name in _TABLE) for row in shown)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for name, *rest in cells:
            aligned = (c.rjust(width) for c, width in zip(rest, widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
    lines += findings(table)
    for group in failures(results).head(_ROWS).iter_rows(named=True):
        said = f"{group['measurements']:,} {group['status']}: {group['reason']}"
        lines.append(f"{said} ({group['named']})")
    return "\n".join(lines)


def counts(results: pl.DataFrame) -> str:
    """Return how many models and measurements there are, and how many of these have no numbers."""
    measured = results.filter(is_measured())
    failed = results.height - measured.height
    said = f"{counted(results['model'].n_unique(), 'model')}, "
    said += f"{counted(measured.height, 'measurement')}"
    return f"{said}, {failed:,} without numbers" if failed else said


def findings(table: pl.DataFrame) -> list[str]:
    """Return sentences on all models together, from the table of models."""
    noun = "model" if table["model"].n_unique() == table.height else "entry"
    return list(_findings(table, noun))


def _findings(table: pl.DataFrame, noun: str) -> Iterator[str]:
    shares = _floats(table["convolution_pct"])
    if len(shares) > 1 and shares.max() > 0:
        yield (
            f"convolutions take {shares.min():.1f} to {shares.max():.1f} % of the latency, in half "
            f"of {counted(len(shares), noun)} more than {np.median(shares):.1f} %"
        )
    batches = table["optimal_batch"].drop_nulls()
    if batches.len() > 1:
        most = min(batches.mode().to_list())
        number = int((batches == most).sum())
        said = f"the best batch is {most} for {number:,} of {counted(batches.len(), noun)}"
        unsure = int((~table["optimal_batch_sure"].drop_nulls()).sum())
        yield f"{said}; of {unsure:,} it is not sure" if unsure else said
    bounds = table["bound"].drop_nulls()
    if bounds.len():
        number = int((bounds == "memory").sum())
        yield (f"{number:,} of {counted(bounds.len(), noun)} are memory-bound at their best batch")
    host = pl.col("device").fill_null("cpu").str.starts_with("cpu")
    unknown = table.filter(host, pl.col("bound").is_null(), pl.col("flops_per_byte").is_not_null())
    if unknown.height:
        yield (
            f"what limits {counted(unknown.height, noun)} is not known, as no peak of the machine "
            "was when measuring: xsp doctor --peak there, then xsp zoo run --again"
        )
    parts = _floats(table["overhead_pct"])
    if len(parts):
        yield (
            f"profiling would have added up to {parts.max():.1f} % to a latency, in half of "
            f"{counted(len(parts), noun)} less than {np.median(parts):.1f} %; it is removed"
        )


def _floats(values: pl.Series) -> NDArray[np.float64]:
    floats: NDArray[np.float64] = values.drop_nulls().cast(pl.Float64).to_numpy()
    return floats
