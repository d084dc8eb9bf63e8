"""Metrics of kernels in, a recording of nothing but these kernels out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.importers.recording import KernelMetrics, Recording
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import ATTRIBUTE, span_rows
from xsp.text import counted


def alone(metrics: KernelMetrics) -> Recording:
    """Return a recording of nothing but the measured kernels, one after the other.

    Raises:
        TraceFormatError: How long the kernels took was not measured.
    """
    rows = metrics.rows.filter(pl.col("duration_ns").is_not_null())
    if not rows.height:
        raise TraceFormatError(
            f"{metrics.tool} measured no durations: read its file with a trace of the same "
            "program, or measure gpu__time_duration.sum too"
        )
    end = rows["duration_ns"].cum_sum()
    place: dict[str, Any] = {
        name: rows[name] for name in ("device", "stream") if name in rows.columns
    }
    kernels = span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": rows["name"],
            "start_ns": end - rows["duration_ns"],
            "end_ns": end,
            "device": 0,
            **place,
            **{name: rows[name] for name in rows.columns if name.startswith(ATTRIBUTE)},
        }
    ).with_columns(pl.col("device").fill_null(0))
    return Recording(
        metrics.tool,
        kernels,
        problems=(*metrics.problems, *_without_times(metrics, rows)),
        environment=metrics.environment,
    )


def _without_times(metrics: KernelMetrics, timed: pl.DataFrame) -> Iterator[Problem]:
    yield Problem(
        "no-timeline",
        f"{metrics.tool} measures kernels one by one: they stand one after the other here, and "
        "the time between them is not known",
    )
    if missing := metrics.rows.height - timed.height:
        yield Problem("no-duration", f"left out: {counted(missing, 'kernel')} without a duration")
