"""Measures how much work waits in the queue of each stream."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import Work
from xsp.answer.analyses.device.launch_overhead import launches_of
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_FULL = 1_024  # entries of a stream's queue, as HolisticTraceAnalysis assumes of CUDA
_COLUMNS = {
    "rank": "Rank of the process, or its number; null where the trace is of one process.",
    "device": "Number of the device.",
    "stream": "Number of the stream.",
    "launches": "How many calls launched work on it.",
    "ahead_mean": "Mean of how much was launched on the stream and not done when a call returned.",
    "ahead_median": "Median of that.",
    "ahead_max": "The most of that.",
    "empty_pct": "Share of the calls that found all earlier work of the stream done.",
    "full": f"How many calls found {_FULL:,} or more, where a call waits for room.",
    "full_ns": "How long these calls took.",
}


@analysis("How full is the queue of each stream?", _COLUMNS, needs=(Need.LAUNCHES,))
def stream_queue(trace: Trace) -> pl.DataFrame:
    """Return how far the host is ahead of each stream.

    Args:
        trace: A trace with launches.

    Raises:
        AnalysisError: The trace has no launches.
    """
    work = Work.of(Tree.of(trace))
    ahead, full = pl.col("ahead"), pl.col("ahead") >= _FULL
    table = (
        launches_of(work)
        .group_by("lane")
        .agg(
            launches=pl.len().cast(pl.Int64),
            ahead_mean=ahead.mean(),
            ahead_median=ahead.median(),
            ahead_max=ahead.max(),
            empty_pct=100 * (ahead == 0).mean(),
            full=full.sum().cast(pl.Int64),
            full_ns=pl.col("call_ns").filter(full).sum(),
        )
    )
    lanes = work.lanes.with_columns(lane=pl.int_range(pl.len(), dtype=pl.Int64))
    return lanes.join(table, on="lane").sort("lane").select(*_COLUMNS)
