"""The clock of a measurement: CLOCK_MONOTONIC in integer nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of time. `now` is an attribute, so that hot paths can bind the function."""

    @property
    def now(self) -> Callable[[], int]:
        """Function that returns monotonic nanoseconds."""
        ...

    def wall_offset(self) -> int:
        """Return wall-clock time minus monotonic time, in nanoseconds."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    now: Callable[[], int] = staticmethod(time.monotonic_ns)

    def wall_offset(self) -> int:
        """Return wall-clock time minus monotonic time, from the tightest of five readings."""
        return min(_offset_reading() for _ in range(5))[1]


def _offset_reading() -> tuple[int, int]:
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return after - before, wall - (before + after) // 2
