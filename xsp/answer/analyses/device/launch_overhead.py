"""Measures the cost of launches beside the time of the launched work, by name."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import Work
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "call": "Name of the call that launches.",
    "work": "Name of what it launches; null where one call launches several, as a graph does.",
    "launches": "How many calls.",
    "call_ns": "Time of these calls on the host.",
    "call_median_ns": "Median of one call.",
    "work_ns": "Time of what they launched, on the device.",
    "work_median_ns": "Median of what one call launched.",
    "short": "How many calls took longer than what they launched.",
    "short_pct": "As a share of these calls.",
    "latency_median_ns": "Median from a call's return until the work began; 0 if that was before.",
    "launch_to_start_ns": "From the beginning of each call until its work began, summed.",
    "ahead_mean": "Mean of how much was launched on the stream and not done when a call returned.",
    "ahead_max": "The most of that.",
}


@analysis(
    "What does launching cost, and how far is the host ahead?", _COLUMNS, needs=(Need.LAUNCHES,)
)
def launch_overhead(trace: Trace) -> pl.DataFrame:
    """Return the cost of each kind of launch, those that take most time of the host first.

    Args:
        trace: A trace with launches.

    Raises:
        AnalysisError: The trace has no launches.
    """
    launches = launches_of(Work.of(Tree.of(trace)))
    call, work = pl.col("call_ns"), pl.col("work_ns")
    table = launches.group_by("call", "work").agg(
        launches=pl.len().cast(pl.Int64),
        call_ns=call.sum(),
        call_median_ns=call.median(),
        work_ns=work.sum(),
        work_median_ns=work.median(),
        short=(work < call).sum().cast(pl.Int64),
        short_pct=100 * (work < call).mean(),
        latency_median_ns=pl.col("latency_ns").median(),
        launch_to_start_ns=pl.col("launch_to_start_ns").sum(),
        ahead_mean=pl.col("ahead").mean(),
        ahead_max=pl.col("ahead").max(),
    )
    order = ("call_ns", "call", "work")
    return table.sort(*order, descending=[True, False, False]).select(*_COLUMNS)


def launches_of(work: Work) -> pl.DataFrame:
    """Return each call that launched work, with the time of the launched work."""
    # How much work of the same stream was launched before each, and not done at its launch.
    # NaN where the launch is not known.
    known = work.table["launch"].is_not_null().to_numpy()
    called, returned = (
        work.table[name].fill_null(0).to_numpy() for name in ("call_start_ns", "call_end_ns")
    )
    lane, end = work.column("lane"), work.column("end_ns")
    apart = int(max(end.max(initial=0), returned.max(initial=0))) + 1
    launched = np.sort((lane * apart + called)[known])
    done = np.sort((lane * apart + end)[known])
    before = np.searchsorted(launched, lane * apart + called)
    finished = np.searchsorted(done, lane * apart + returned, "right")
    ahead = np.where(known, np.maximum(before - finished, 0), np.nan)
    table = work.table.with_columns(pl.Series("ahead", ahead).fill_nan(None).cast(pl.Int64))
    table = table.filter(pl.col("launch").is_not_null())
    first = pl.col("start_ns").min()
    return table.group_by("launch", maintain_order=True).agg(
        call=pl.col("api").first(),
        lane=pl.col("lane").first(),
        work=pl.when(pl.len() == 1).then(pl.col("name").first()),
        call_ns=(pl.col("call_end_ns") - pl.col("call_start_ns")).first(),
        work_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        latency_ns=(first - pl.col("call_end_ns").first()).clip(lower_bound=0),
        launch_to_start_ns=first - pl.col("call_start_ns").first(),
        ahead=pl.col("ahead").min(),
    )
