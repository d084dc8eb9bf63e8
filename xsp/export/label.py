"""Labels: the names and attributes under which people find a span."""

from __future__ import annotations

import polars as pl

from xsp.export import text
from xsp.quantity import estimate, percent
from xsp.trace import EXPORTED, USER, attribute
from xsp.trace import similarity as shape

PREFIX = "attr."


def names(spans: pl.DataFrame, subject: str = "") -> pl.Series:
    """Return what each span is called: what a person would search for.

    Args:
        spans: Columns of `trace.spans`, and those of a reduction.
        subject: What was measured; it follows the name of the root, unless that
            is its name already.
    """
    known = spans.select(
        "name",
        "kind",
        pl.col("parent_id").is_null().alias("root"),
        "rolled_count",
        shape.field(spans, "module_path").alias("path"),
        shape.field(spans, "module_class").alias("class"),
        shape.field(spans, "phase").alias("phase"),
    )
    layer = pl.concat_str(
        pl.col("path").replace("", None),
        pl.coalesce("class", "name"),
        separator=" ",
        ignore_nulls=True,
    )
    backward = (
        pl.when(pl.col("phase") == "backward").then(pl.lit(" backward")).otherwise(pl.lit(""))
    )
    single = pl.when(pl.col("kind") == "layer").then(layer + backward).otherwise("name")
    rolled = pl.format("{} \u00d7 {}", "rolled_count", single)
    whose = pl.when(pl.col("root") & (pl.col("name") != subject)).then(
        pl.lit(f" {subject}".rstrip())
    )
    shown = pl.when(pl.col("rolled_count").is_null()).then(single).otherwise(rolled)
    whole = pl.concat_str(shown.replace("", "(no name)"), whose.fill_null(""))
    return text.shortened(known.select(shown=whole).to_series())


def attributes(spans: pl.DataFrame, root_ns: float | None) -> pl.DataFrame:
    """Return one column `attr.NAME` per attribute, null where a span lacks it.

    Args:
        spans: Columns of `trace.spans`, and those of a reduction.
        root_ns: Latency of the model, for the spans' shares of it.
    """
    known = pl.lit(100 / root_ns if root_ns else None, pl.Float64)
    share = (pl.col("latency_ns") * known).round(3)
    frame = spans.select(
        *(pl.col(one.column).alias(PREFIX + one.name) for one in EXPORTED if one.column),
        _readable(spans, root_ns).alias(f"{PREFIX}xsp.latency"),
        share.alias(f"{PREFIX}xsp.share_pct"),
        pl.col("span_id").cast(pl.String).alias(f"{PREFIX}xsp.span_id"),
        pl.when(pl.col("rolled_count").is_not_null())
        .then("latency_ns")
        .alias(f"{PREFIX}xsp.rolled.sum_ns"),
    )
    struct = spans["attributes"].struct.unnest()
    taken = {PREFIX + one.name for one in EXPORTED}
    more = [_column(struct[name], taken) for name in struct.columns]
    # Parts of a nanosecond are no more than digits in a list of tags.
    whole = [pl.col(name).round() for name in frame.columns if name.endswith("_ns")]
    return frame.with_columns(*whole, pl.col(pl.Int32).cast(pl.Int64)).hstack(more)


def _readable(spans: pl.DataFrame, root_ns: float | None) -> pl.Series:
    """Return latencies as people read them, `45.7 ± 1.7 ms · 12.3 %`."""
    numbers = spans.select("latency_ns", "latency_low_ns", "latency_high_ns")
    return pl.Series(
        [_latency(*row, root_ns=root_ns) for row in numbers.iter_rows()], dtype=pl.String
    )


def _latency(
    latency: float | None, low: float | None, high: float | None, *, root_ns: float | None
) -> str | None:
    if latency is None:
        return None
    margin = None if low is None or high is None else (high - low) / 2
    value, plus_minus, unit = estimate(latency, margin)
    said = f"{value} ± {plus_minus} {unit}" if plus_minus else f"{value} {unit}"
    return f"{said} · {percent(latency / root_ns)}" if root_ns else said


def _column(values: pl.Series, taken: set[str]) -> pl.Series:
    """Return one field of a trace's `attributes` under the name it has outside, once."""
    known = attribute(values.name)
    name = values.name.removeprefix(USER) if known is None else known.exported
    name = PREFIX + (name or USER.rstrip("."))
    while name in taken:
        name += "'"
    taken.add(name)
    if known is not None and isinstance(values.dtype, pl.List):
        values = text.joined(values)
    return text.plain(values).alias(name)
