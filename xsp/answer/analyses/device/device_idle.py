"""Divides the idle time of devices and of their streams by cause."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import Work
from xsp.answer.analyses.tree import Tree
from xsp.matching import Ints
from xsp.trace import Trace

_COLUMNS = {
    "rank": "Rank of the process, or its number; null where the trace is of one process.",
    "device": "Number of the device.",
    "stream": "Number of the stream; null for the device as a whole, when no stream of it works.",
    "cause": "What the next work waits for: `host`, `launch`, `stream`, `queue` or `unknown`.",
    "idle_ns": "How long.",
    "share_pct": "As a share of all idle time of the device, or of the stream.",
    "whole_pct": "As a share of the time from the first work to the last one's end.",
    "count": "In how many of the idle times there is some of it.",
    "longest_ns": "The most in one idle time.",
    "before": "Name of the work in front of which most of it lies, all of that name together.",
}

CAUSES = ("host", "launch", "stream", "queue", "unknown")


@analysis("Why do the devices idle?", _COLUMNS, needs=(Need.DEVICE,))
def device_idle(trace: Trace) -> pl.DataFrame:
    """Return the causes of all idle times between the first and the last work.

    Args:
        trace: A trace with work of a device.

    Raises:
        AnalysisError: No device worked in the trace.
    """
    work = Work.of(Tree.of(trace))
    devices = _summed(idle_times(work, "place"), work, "place")
    devices = devices.with_columns(stream=pl.lit(None, pl.Int64))
    streams = _summed(idle_times(work, "lane"), work, "lane")
    table = pl.concat([devices.select(*_COLUMNS), streams.select(*_COLUMNS)])
    return table.sort("rank", "device", "stream", nulls_last=False, maintain_order=True)


def idle_times(work: Work, group: str) -> pl.DataFrame:
    """Return each idle time, divided by cause.

    An idle time from a to b ends with the work that begins at b, whose call began at s and
    returned at r. It is the host's until s, the launch's until r, and then, until b, the other
    streams' while one of these works on the same device, and the queue's while none does.

    Returns:
        A row per idle time: the number of the group, the name of the work that ends it, and how
        many ns of it each cause took.
    """
    rows, began = work.gaps(group)
    ended = work.column("start_ns")[rows]
    called, returned = (
        work.table[name][rows].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in ("call_start_ns", "call_end_ns")
    )
    known = ~np.isnan(called)
    launching = np.where(known, np.clip(called, began, ended), began).astype(np.int64)
    launched = np.where(known, np.clip(returned, launching, ended), launching).astype(np.int64)
    others = work.worked_ns(work.column("place")[rows], launched, ended)
    waiting = ended - launched - others
    parts: Mapping[str, Ints] = {
        "host": launching - began,
        "launch": launched - launching,
        "stream": np.where(known, others, 0),
        "queue": np.where(known, waiting, 0),
        "unknown": np.where(known, 0, ended - began),
    }
    return pl.DataFrame({group: work.column(group)[rows], **parts}).with_columns(
        work.table["name"][rows].alias("before")
    )


def _summed(times: pl.DataFrame, work: Work, group: str) -> pl.DataFrame:
    """Return a row for each group and cause, the cause with most time first."""
    long = times.unpivot(
        on=CAUSES, index=[group, "before"], variable_name="cause", value_name="idle_ns"
    ).filter(pl.col("idle_ns") > 0)
    names = long.group_by(group, "cause", "before").agg(pl.col("idle_ns").sum())
    most = names.sort("idle_ns", "before", descending=[True, False]).unique(
        (group, "cause"), keep="first", maintain_order=True
    )
    sums = long.group_by(group, "cause").agg(
        pl.col("idle_ns").sum(),
        count=pl.len().cast(pl.Int64),
        longest_ns=pl.col("idle_ns").max(),
    )
    whole = work.table.group_by(group).agg(whole=pl.col("end_ns").max() - pl.col("start_ns").min())
    labels = (work.places if group == "place" else work.lanes.drop("place")).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias(group)
    )
    return (
        sums.join(most.select(group, "cause", "before"), on=(group, "cause"))
        .join(whole, on=group)
        .join(labels, on=group)
        .with_columns(
            share_pct=100 * pl.col("idle_ns") / pl.col("idle_ns").sum().over(group),
            whole_pct=100 * pl.col("idle_ns") / pl.col("whole"),
        )
        .sort(group, "idle_ns", "cause", descending=[False, True, False])
    )
