"""Results: a point and its trace, or what prevented one, in; the facts of a table's row out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from xsp.sweep.point import Point
from xsp.trace import Trace


class Status(StrEnum):
    """What became of a point."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out-of-memory"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a point; the fields are columns of the table (`table.COLUMNS`).

    Attributes:
        key: The point's settings as one text.
        settings: The point's settings.
        status: What became of the point.
        reason: Why there is no trace; None where there is one.
        trace: Name of the trace's file in the folder; None where there is none.
        measured: Numbers of the trace by column; empty where there is none.
        problems: Problems of the trace, as sentences.
        took_s: Seconds that the point took, loading included; None where nothing was started.
        basis: What the result rests on beside the settings.
    """

    key: str
    settings: Mapping[str, Any]
    status: Status
    reason: str | None = None
    trace: str | None = None
    measured: Mapping[str, float | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    took_s: float | None = None
    basis: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether measuring the point again would say the same again."""
        return self.status in (Status.MEASURED, Status.OUT_OF_MEMORY)


def numbers_of(trace: Trace) -> dict[str, float | None]:
    """Return the numbers of a trace that stand in the table, by column."""
    root, batch = trace.root, trace.metadata["settings"].get("batch")
    environment = trace.metadata["environment"]
    return {
        "latency_ns": root.latency_ns,
        "latency_low_ns": root.latency_low_ns,
        "latency_high_ns": root.latency_high_ns,
        "throughput_per_s": _per_s(batch, root.latency_ns),
        "throughput_low_per_s": _per_s(batch, root.latency_high_ns),
        "throughput_high_per_s": _per_s(batch, root.latency_low_ns),
        "runs": root.runs,
        "peak_memory_bytes": environment.get("peak_memory_bytes"),
        "peak_device_memory_bytes": environment.get("peak_device_memory_bytes"),
    }


def without_trace(point: Point, status: Status, reason: str) -> Result:
    """Return the result of a point that has no trace."""
    return Result(point.key, point.settings, status, reason)


def _per_s(batch: int | None, latency_ns: float | None) -> float | None:
    return 1e9 * batch / latency_ns if batch and latency_ns else None
