"""Tells what each thread did during one step: when it ran, waited for a CPU, and was blocked."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.trace import Trace

_SCHEMA: dict[str, Any] = {
    "thread": pl.String,
    "state": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "lasts_ns": pl.Int64,
    "cause": pl.String,
}
_COLUMNS = {
    "thread": "Name of the thread; the number of the thread follows where several have the name.",
    "state": "`running`, `runnable` (it waited for a CPU) or `blocked` (for something else).",
    "start_ns": "When that began, from the begin of the step, or of the program's window.",
    "end_ns": "When it ended.",
    "lasts_ns": "How long it lasted.",
    "cause": "System call in which the thread was blocked; null: none, or not known.",
}


@analysis("What did each thread do during one step?", _COLUMNS, needs=(Need.STATES,))
def thread_timeline(trace: Trace) -> pl.DataFrame:
    """Return the states of threads over one step, by thread and time.

    Args:
        trace: A trace with the system level.

    Raises:
        AnalysisError: The trace has no states of threads.
    """
    told: Any = trace.root.attributes.get("thread_timeline") or ()
    table = pl.DataFrame([dict(each) for each in told], infer_schema_length=None)
    if not table.height:
        return pl.DataFrame(schema=_SCHEMA)
    rank = pl.col("number").rank("dense").over("name")
    several = pl.col("number").n_unique().over("name") > 1
    label = pl.when(several).then(pl.format("{} {}", "name", rank)).otherwise("name")
    return (
        table.rename({"thread": "number"})
        .with_columns(
            thread=label.fill_null("thread"), lasts_ns=pl.col("end_ns") - pl.col("start_ns")
        )
        .select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items())
    )
