"""Rows of one process in; the ranges that are steps, and all other rows, out.

Steps are taken for evaluations only where they are plain: the outermost ranges of the thread
that launches most are of one name, but for numbers ("step 3", "ProfilerStep#12"), there are
several of them, and most of what the process launched was launched in them.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows

_MOST = 0.5  # of all launches


def part_steps(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return the steps in the order of time, of which there may be none, and the other rows."""
    launches = rows.filter(pl.col("kind") == Kind.LAUNCH.value)
    if launches["thread"].null_count() == launches.height:
        return no_rows(), rows
    outermost = _outermost(rows.with_row_index("row"), _busiest(launches))
    names = outermost["name"].str.replace_all(r"\d+", "#")
    if outermost.height < 2 or names.n_unique() > 1:
        return no_rows(), rows
    if _inside(outermost, launches) < _MOST * launches.height:
        return no_rows(), rows
    is_step = np.zeros(rows.height, bool)
    is_step[outermost["row"].to_numpy()] = True
    return outermost.drop("row"), rows.filter(~is_step)


def _busiest(launches: SpanRows) -> int:
    """Return the thread that launched most."""
    counts = launches.drop_nulls("thread").group_by("thread").len().sort("len", "thread")
    return int(counts["thread"][-1])


def _outermost(rows: pl.DataFrame, thread: int) -> pl.DataFrame:
    """Return the pipeline spans of a thread that lie in no other of the thread, by time."""
    spans = rows.filter((pl.col("kind") == Kind.PIPELINE.value) & (pl.col("thread") == thread))
    ordered = spans.sort(["start_ns", "end_ns"], descending=[False, True])
    reached = ordered["end_ns"].cum_max().shift(1)
    return ordered.filter((ordered["start_ns"] >= reached).fill_null(value=True))


def _inside(steps: pl.DataFrame, launches: SpanRows) -> int:
    """Return how many launches, of whatever thread, began in a step."""
    start = launches["start_ns"].to_numpy()
    at = np.searchsorted(steps["start_ns"].to_numpy(), start, side="right") - 1
    ends = steps["end_ns"].to_numpy()
    return int(np.count_nonzero((at >= 0) & (start < ends[np.maximum(at, 0)])))
