"""Rows of one process in; the ranges that are steps, and all other rows, out.

Steps are taken for evaluations only where they are plain: of the outermost ranges of the thread
that launches most, those of one name alone, but for numbers ("step 3", "ProfilerStep#12"), come
several times, and most of what the process launched was launched in them. Where "forward" and
"backward" take turns, neither is a step.
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
    steps = _recurring(_outermost(rows.with_row_index("row"), _busiest(launches)))
    if not steps.height or _inside(steps, launches) < _MOST * launches.height:
        return no_rows(), rows
    is_step = np.zeros(rows.height, bool)
    is_step[steps["row"].to_numpy()] = True
    return steps.drop("row"), rows.filter(~is_step)


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


def _recurring(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of the name that recurs, whatever its numbers; none where several do."""
    name = pl.col("name").str.replace_all(r"\d+", "#")
    recurring = spans.filter(pl.len().over(name) > 1)
    alone = recurring.select(name.n_unique()).item() == 1
    return recurring if alone else recurring.clear()


def _inside(steps: pl.DataFrame, launches: SpanRows) -> int:
    """Return how many launches, of whatever thread, began in a step."""
    start = launches["start_ns"].to_numpy()
    at = np.searchsorted(steps["start_ns"].to_numpy(), start, side="right") - 1
    ends = steps["end_ns"].to_numpy()
    return int(np.count_nonzero((at >= 0) & (start < ends[np.maximum(at, 0)])))
