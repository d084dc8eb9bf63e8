"""Sums system calls by their name and the layer or operator that makes them."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "name": "Name of the system call.",
    "process": "Process that makes the calls; null: the one that runs the model.",
    "around": "Name of the span that they lie in.",
    "path": "Path of that span in the trace.",
    "calls": "How many of them a step makes on average; in the trace of a program, all.",
    "latency_ns": "Time in these calls; of several processes, of one of them on average.",
    "share_pct": "That as a share of the trace's latency.",
    "call_ns": "Time of one call.",
    "failed": "How many of them failed; null: none.",
    "io_bytes": "Bytes that they read or wrote; null: these calls do neither.",
    "steps_share": "Share of steps in which there was one.",
}


@analysis("Which system calls take time, and for which layers and operators?", _COLUMNS,
          needs=(Need.SYSTEM_CALLS,))  # fmt: skip
def system_calls(trace: Trace) -> pl.DataFrame:
    """Return system calls by the span around and their name, those that take longest first.

    Args:
        trace: A trace with system calls.

    Raises:
        AnalysisError: The trace has no system calls.
    """
    tree = Tree.of(trace)
    around = tree.spans[tree.parent.clip(0)]
    number = {
        name: tree.attribute(name, pl.Float64)
        for name in ("calls_per_step", "failed_calls", "io_bytes", "steps_share")
    }
    often = tree.attribute("calls", pl.Int64).fill_null(1)
    scale = often / number["calls_per_step"].round().clip(1)  # occurrences of the span around
    table = tree.spans.select("kind", "name", "latency_ns").with_columns(
        tree.attribute("process_name").alias("process"),
        around["name"].alias("around"),
        around["path"].alias("path"),
        (number["calls_per_step"] * scale).fill_null(often).alias("calls"),
        (number["failed_calls"] * scale).alias("failed"),
        (number["io_bytes"] * scale).alias("io_bytes"),
        number["steps_share"],
    )
    return (
        table.filter(pl.col("kind") == Kind.SYSCALL.value)
        .with_columns(
            share_pct=100 * pl.col("latency_ns") / tree.latency_ns()[0],
            call_ns=pl.col("latency_ns") / pl.col("calls"),
        )
        .sort("latency_ns", descending=True, nulls_last=True, maintain_order=True)
        .select(*_COLUMNS)
    )
