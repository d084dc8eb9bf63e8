"""Real files of other profilers, and where their device rows lie: for tests of importers."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from xsp.importers import Recording, trace_of
from xsp.trace import Trace

_BESIDE = Path(__file__).parents[2] / ".." / "shared" / "traces"


def real_file(name: str) -> Path:
    """Return a real trace; the test is skipped where there is none."""
    path = Path(os.environ.get("XSP_TRACES", _BESIDE)) / name
    if not path.exists():
        pytest.skip(f"needs {name} of real traces, in ../shared/traces or XSP_TRACES")
    return path


def sums_by_name(recording: Recording, *kinds: str) -> dict[str, tuple[int, int]]:
    """Return count and summed duration in ns of device rows, by full name, else name."""
    rows = recording.rows.filter(pl.col("kind").is_in(kinds))
    full = "attr.full_name" if "attr.full_name" in rows.columns else "name"
    named = rows.group_by(pl.coalesce(full, "name").alias("name")).agg(
        pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time")
    )
    return {name: (count, time) for name, count, time in named.iter_rows()}


def checked_trace(recording: Recording, *, steps: bool = True) -> Trace:
    """Return the trace of a recording, in which what is known of its places holds."""
    trace = trace_of(recording, "recorded", steps=steps)
    trace.check()
    return trace


def astray(trace: Trace) -> int:
    """Return how many device rows lie elsewhere than with, or in, the call that launched them."""
    spans = trace.spans
    launches = spans.filter(pl.col("kind") == "launch").select(
        "correlation_id", call="span_id", around="parent_id"
    )
    work = spans.filter(
        pl.col("kind").is_in(["kernel", "memcpy", "memset"])
        & pl.col("correlation_id").is_not_null()
    )
    both = work.join(launches, on="correlation_id", how="inner")
    near = (pl.col("parent_id") == pl.col("call")) | (pl.col("parent_id") == pl.col("around"))
    return both.group_by("span_id").agg(near.any()).filter(~pl.col("parent_id")).height


def launched(trace: Trace) -> int:
    """Return how many device rows have a recorded call."""
    spans = trace.spans
    calls = spans.filter(pl.col("kind") == "launch")["correlation_id"].drop_nulls()
    return spans.filter(
        pl.col("device").is_not_null() & pl.col("correlation_id").is_in(calls.implode())
    ).height


def children(trace: Trace, name: str) -> list[str]:
    """Return the names of the spans right below the first span of a name."""
    above = trace.spans.filter(pl.col("name") == name)["span_id"][0]
    return trace.spans.filter(pl.col("parent_id") == above)["name"].to_list()


def codes(recording: Recording) -> dict[str, str]:
    """Return the messages of warnings by their codes."""
    return {each.code: each.message for each in recording.warnings}
