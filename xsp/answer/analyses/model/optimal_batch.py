"""Finds the best batch size of a model (of A1 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.model.evaluation import MEANINGS, step_rows
from xsp.errors import AnalysisError
from xsp.trace import Trace

_COLUMNS = MEANINGS | {
    "gain_pct": "By how much twice the batch size raises the throughput; null for the largest.",
    "gain_low_pct": "Lower end of its interval: both throughputs at their unfavourable ends.",
    "gain_high_pct": "Upper end of its interval: both throughputs at their favourable ends.",
    "within_target": "Whether the latency with its interval is within the target, if there is one.",
    "optimal": "Whether it is the best of its model and settings; null where it is the only one.",
}

_SERIES = ("series", "settings")


@analysis("Which batch size is best?", _COLUMNS, several=True)
def optimal_batch(
    *traces: Trace, threshold_pct: float = 5.0, latency_target_ns: float | None = None
) -> pl.DataFrame:
    """Return the batch sizes of each model in ascending order, and which of them is best.

    Without a latency target the best is the smallest batch size of which a doubling raises the
    throughput by no more than the threshold; the largest where every doubling raises it by more.
    With a target, it is the one of most throughput among those whose latency is within the target.

    Args:
        traces: Traces of a model at several batch sizes, of some models or settings if need be.
        threshold_pct: Rise of the throughput in percent that is not worth doubling the batch.
        latency_target_ns: Latency that a step may have at most, in ns; None: any.

    Raises:
        AnalysisError: No trace has a batch size and a latency.
    """
    rows = step_rows(traces).drop_nulls(["batch", "latency_ns"])
    if not rows.height:
        raise AnalysisError(
            f"optimal-batch: no batch size is known of {traces[0].name}: measure with --batch and "
            "levels=2 or more, or use xsp sweep"
        )
    target = pl.lit(latency_target_ns, dtype=pl.Float64)
    reach = pl.max_horizontal("latency_ns", "latency_high_ns")
    chosen = _by_throughput(threshold_pct) if latency_target_ns is None else _within_target()
    # By how many percent twice the batch raises the throughput, with the interval.
    # Where the next batch measured is not twice as large, its gain counts for as many doublings.
    low, rate, high = "throughput_low_per_s", "throughput_per_s", "throughput_high_per_s"
    pairs = {"gain_pct": (rate, rate), "gain_low_pct": (high, low), "gain_high_pct": (low, high)}
    larger = pl.col("batch").shift(-1) > pl.col("batch")  # a batch may have been measured twice
    doublings = (pl.col("batch").shift(-1) / pl.col("batch")).log(2)
    gains = [
        pl.when(larger)
        .then(100 * ((pl.col(after).shift(-1) / pl.col(before)).pow(1 / doublings) - 1))
        .over(_SERIES)
        .alias(name)
        for name, (before, after) in pairs.items()
    ]
    return (
        rows.sort("batch", maintain_order=True)
        .sort(pl.struct(_SERIES).rank("dense"), maintain_order=True)
        .with_columns(gains)
        .with_columns(within_target=reach <= target)
        .with_columns(optimal=pl.when(pl.len().over(_SERIES) > 1).then(chosen))
        .select(*_COLUMNS)
    )


def _by_throughput(threshold_pct: float) -> pl.Expr:
    batch = pl.col("batch")
    enough = pl.col("gain_pct") <= threshold_pct
    return batch == pl.coalesce(batch.filter(enough).min(), batch.max()).over(_SERIES)


def _within_target() -> pl.Expr:
    within = pl.col("throughput_per_s").filter("within_target").max().over(_SERIES)
    best = pl.col("throughput_per_s") == within
    return pl.col("within_target") & best.fill_null(value=False)
