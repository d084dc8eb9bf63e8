"""Tells of each thread of a step how long it ran, waited for a CPU, and was blocked."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.trace import Trace

_NUMBERS = ("running_ns", "runnable_ns", "blocked_ns", "preempted", "migrations", "page_faults")
_COLUMNS = {
    "thread": "Name of the thread; of a process that the program started, that of the process.",
    "threads": "How many threads of that name there are.",
    "running_ns": "Time on CPUs in a step, of all of them; in the trace of a program, in all.",
    "runnable_ns": "Time in which they could have run, and waited for a CPU.",
    "blocked_ns": "Time in which they waited for something else.",
    "running_pct": "Running time as a share of the step, of one thread: 100 is one CPU.",
    "runnable_pct": "Time of waiting for a CPU as a share of the step, likewise.",
    "preempted": "How often they had to give way to another thread.",
    "migrations": "How often they went on on another CPU.",
    "page_faults": "How often they touched memory that was not mapped; null: not known.",
}


@analysis("Which threads ran, waited for a CPU, and slept?", _COLUMNS, needs=(Need.STATES,))
def thread_states(trace: Trace) -> pl.DataFrame:
    """Return the states of threads in a step, by name, those that ran longest first.

    Args:
        trace: A trace with the system level.

    Raises:
        AnalysisError: The trace has no states of threads.
    """
    states: Any = trace.root.attributes.get("thread_states") or ()
    table = pl.DataFrame(
        [dict(state) for state in states],
        schema={"name": pl.String, **dict.fromkeys(_NUMBERS, pl.Float64)},
    )
    whole_ns = trace.root.latency_ns
    return (
        table.group_by("name", maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("threads"), *(_sum(name) for name in _NUMBERS))
        .with_columns(
            thread=pl.col("name"),
            running_pct=100 * pl.col("running_ns") / whole_ns,
            runnable_pct=100 * pl.col("runnable_ns") / whole_ns,
        )
        .sort("running_ns", descending=True, maintain_order=True)
        .select(*_COLUMNS)
    )


def _sum(name: str) -> pl.Expr:
    """Return the sum of known values; null where none is known."""
    column = pl.col(name)
    return pl.when(column.is_not_null().any()).then(column.sum()).alias(name)
