"""Training steps in; intervals of backward passes, optimizer steps and data loading out."""

from __future__ import annotations

from dataclasses import dataclass

from xsp.clock import Clock
from xsp.provider import SpanRows, no_rows

BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of a program besides the calls of its model."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


class StepRecorder:
    """Records backward passes, optimizer steps and data loading between `start` and `stop`."""

    def start(self, clock: Clock) -> None:
        """Begin to record."""

    def disarm(self) -> None:
        """End recording."""

    def stop(self) -> tuple[Interval, ...]:
        """End recording, and return what was recorded."""
        return ()


def step_rows(steps: tuple[Interval, ...]) -> SpanRows:
    """Return a pipeline row for each interval."""
    return no_rows()
