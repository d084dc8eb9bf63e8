"""Rows of a trace that sums up occurrences, and of spans that ran at once on several threads."""

from __future__ import annotations

import polars as pl
import samples
from samples import layer, op, pipeline

from xsp.trace.outline import outline
from xsp.trace.row import Outline, Row
from xsp.trace.text import Show, text

EVERY = Show(errors=True, overhead=True)


def row(drawn: Outline, name: str) -> Row:
    return next(each for each in drawn.rows if each.name == name)


def known_to(spans: pl.DataFrame, name: str, low: float, high: float) -> pl.DataFrame:
    """Return spans of which one has another interval."""
    one = pl.col("name") == name
    return spans.with_columns(
        latency_low_ns=pl.when(one).then(low).otherwise("latency_low_ns"),
        latency_high_ns=pl.when(one).then(high).otherwise("latency_high_ns"),
    )


def test_a_latency_that_is_not_known_shows_its_bound_everywhere() -> None:
    spans = samples.frame(pipeline("predict", op("add", own_ns=102), own_ns=100_000))
    noisy = known_to(spans, "add", 0.0, 4_968.0)
    [line] = [line for line in text(noisy, {}, show=EVERY).splitlines() if "add" in line]
    assert line.split()[:-2] == ["<", "5", "µs", "<", "5", "≈", "0"]


def test_what_runs_inside_takes_no_longer_than_what_is_around_it_may() -> None:
    inner = layer("conv", "Conv2d", op("add", own_ns=20_000), own_ns=0)
    spans = samples.frame(pipeline("predict", inner, own_ns=100_000))
    noisy = known_to(known_to(spans, "conv", 0.0, 85_000.0), "add", 0.0, 900_000.0)
    drawn = outline(noisy)
    assert row(drawn, "add").most_ns == row(drawn, "conv").most_ns == 85_000
    assert row(drawn, "add").part() == row(drawn, "conv").part() == "< 71 %"
    beside = noisy.with_columns(thread=pl.Series([1, 1, 2]))
    assert row(outline(beside), "add").most_ns == 900_000


def test_a_share_that_cannot_be_is_not_shown() -> None:
    spans = samples.frame(pipeline("predict", op("add", own_ns=1_000), own_ns=0))
    for factor, said in ((3.48, "?"), (1.02, "≈ 100 %")):
        latency = 1_000 * factor
        longer = known_to(spans, "add", latency - 50, latency + 50).with_columns(
            latency_ns=pl.when(pl.col("name") == "add").then(latency).otherwise("latency_ns")
        )
        assert row(outline(longer), "add").part() == said
