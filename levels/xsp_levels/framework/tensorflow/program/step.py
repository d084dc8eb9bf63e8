"""Records backward passes, optimizer steps and data loading as rows of kind region."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.clock import Clock
from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.tensorflow.program.entry import BACKWARD, entry_points

__all__ = ["BACKWARD", "Interval", "StepRecorder", "step_rows"]


@dataclass(frozen=True, slots=True)
class Interval:
    """One part of a program, such as a backward pass or a step of an optimizer, in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    error: str | None = None


class StepRecorder:
    """Records backward passes, optimizers' steps and data loading between `start` and `stop`."""

    def __init__(self) -> None:
        self._kept: list[Interval] = []
        self._disarm: Callable[[], None] | None = None

    def start(self, clock: Clock) -> None:
        """Begin to record."""
        entry_points().record(self._note, clock.now)
        self._disarm = lambda: entry_points().record(None)

    def disarm(self) -> None:
        """End recording."""
        disarm, self._disarm = self._disarm, None
        if disarm is not None:
            disarm()

    def stop(self) -> tuple[Interval, ...]:
        """End recording, and return the recorded intervals."""
        self.disarm()
        return tuple(self._kept)

    def _note(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        subject: Any,
        error: str | None,
    ) -> None:
        self._kept.append(Interval(name, start_ns, end_ns, threading.get_ident(), error))


def step_rows(steps: tuple[Interval, ...]) -> SpanRows:
    """Return a row of kind region per part. Pure."""
    if not steps:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": [step.name for step in steps],
            "start_ns": [step.start_ns for step in steps],
            "end_ns": [step.end_ns for step in steps],
            "thread": [step.thread for step in steps],
            "attr.error": pl.Series([step.error for step in steps], dtype=pl.String),
        }
    )
