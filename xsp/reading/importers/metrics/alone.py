"""Makes a recording of nothing but kernels from the metrics of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, span_rows
from xsp.reading.importers.recording import KernelMetrics, Recording
from xsp.text import counted
from xsp.warning import TraceWarning


def alone(metrics: KernelMetrics) -> Recording:
    """Return a recording of nothing but the measured kernels, one after the other.

    Raises:
        TraceFormatError: How long the kernels took was not measured.
    """
    rows = metrics.rows.filter(pl.col("duration_ns").is_not_null())
    if not rows.height:
        why = "".join(f" ({warning.message})" for warning in metrics.warnings[:1])
        raise TraceFormatError(
            f"{metrics.tool} gives no durations that can be read{why}: read its file with a trace "
            "of the same program, or measure gpu__time_duration.sum too"
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
        warnings=(*metrics.warnings, *_without_times(metrics, rows)),
        environment=metrics.environment,
    )


def _without_times(metrics: KernelMetrics, timed: pl.DataFrame) -> Iterator[TraceWarning]:
    yield TraceWarning(
        "no-timeline",
        f"{metrics.tool} measures kernels one by one, so the time between them is unknown; times "
        "of "
        "kernels are right. Give xsp a recording with times as well.",
    )
    if missing := metrics.rows.height - timed.height:
        yield TraceWarning(
            "no-duration", f"{counted(missing, 'kernel')} without a duration are left out"
        )
