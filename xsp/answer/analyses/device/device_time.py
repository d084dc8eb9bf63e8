"""Divides the time of each device into computing, communicating, copying and idling."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMMUNICATING, COMPUTING, COPYING, Work
from xsp.answer.analyses.tree import Floats, Tree
from xsp.trace import Trace

_COLUMNS = {
    "rank": "Rank of the process, or its number; null where the trace is of one process.",
    "device": "Number of the device.",
    "part": "Which part of the time.",
    "time_ns": "How long it lasted; work that runs side by side counts once.",
    "share_pct": "As a share of the whole; null for what lies outside of that.",
}


@analysis("What do the devices do with their time?", _COLUMNS, needs=(Need.DEVICE,))
def device_time(trace: Trace) -> pl.DataFrame:
    """Return the time that each device worked, by kind of work, and the time that it idled.

    Args:
        trace: A trace with work of a device.

    Raises:
        AnalysisError: No device worked in the trace.
    """
    tree = Tree.of(trace)
    work = Work.of(tree)
    parts = times_of(work, trace)
    whole = parts["whole"]
    frames = []
    for order, (part, time) in enumerate(parts.items()):
        inside = not part.startswith("idle ") and whole > 0
        share = np.where(inside, 100 * time / np.maximum(whole, 1), np.nan)
        columns = {"part": [part] * len(time), "time_ns": time, "share_pct": share}
        frame = work.places.with_row_index("place").hstack(pl.DataFrame(columns))
        frames.append(frame.with_columns(order=pl.lit(order)))
    table = pl.concat(frames).sort("place", "order")
    return table.with_columns(pl.col("share_pct").fill_nan(None)).select(*_COLUMNS)


def times_of(work: Work, trace: Trace) -> dict[str, Floats]:
    """Return the time of each part, a number per place in ns.

    `exposed` is what is hidden behind nothing else: communication while nothing computes, copies
    while nothing computes or communicates.
    """
    began = work.table.group_by("place").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    first, last = (began.sort("place")[c].cast(pl.Float64).to_numpy() for c in began.columns[1:])
    computing = work.covered_ns(COMPUTING)
    both = work.covered_ns(COMPUTING, COMMUNICATING)
    busy = work.covered_ns(COMPUTING, COMMUNICATING, COPYING)
    start, end = trace.spans["start_ns"][0], trace.spans["end_ns"][0]
    return {
        "whole": last - first,
        "busy": busy,
        "computing": computing,
        "communicating": work.covered_ns(COMMUNICATING),
        "exposed communication": both - computing,
        "copying": work.covered_ns(COPYING),
        "exposed copies": busy - both,
        "idle": last - first - busy,
        "idle before the first work": np.maximum(first - start, 0.0),
        "idle after the last work": np.maximum(end - last, 0.0),
    }
