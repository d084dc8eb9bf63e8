"""Readings of CUPTI's clock and the measurement's clock in, their alignment out.

CUPTI's times are those of the wall clock unless another tool changed that; the measurement's
are monotonic. Readings at the beginning and at the end of a recording bound the offset
between the two. CUPTI could also be given a callback that returns the time, but CUPTI would
call it for every record, and the callback could not be taken back after the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xsp_levels.native.alignment import Alignment

REPEATS = 16  # any reading may be interrupted: the tightest bounds count


@dataclass(frozen=True, slots=True)
class Reading:
    """CUPTI's clock (`theirs`), read between two readings of the measurement's, in nanoseconds."""

    before: int
    theirs: int
    after: int


def read(
    ours: Callable[[], int], theirs: Callable[[], int], repeats: int = REPEATS
) -> list[Reading]:
    """Return readings of CUPTI's clock between readings of the measurement's clock."""
    return [Reading(ours(), theirs(), ours()) for _ in range(repeats)]


def align(first: Sequence[Reading], last: Sequence[Reading]) -> Alignment:
    """Return the alignment that readings at the beginning and at the end of a recording tell.

    If one offset suits all readings, the offset is constant. Else the clocks ran apart: the
    offset changes evenly, and the error covers a change at a single moment.

    >>> align([Reading(10, 100, 14)], [Reading(50, 140, 54)])
    Alignment(times=(100, 140), offsets=(-88, -88), error_ns=2)
    """
    (low, high), (later_low, later_high) = _bounds(first), _bounds(last)
    times = first[0].theirs, last[-1].theirs
    if max(low, later_low) <= min(high, later_high):
        low, high = max(low, later_low), min(high, later_high)
        return Alignment(times, ((low + high) // 2,) * 2, _half(low, high))
    offsets = (low + high) // 2, (later_low + later_high) // 2
    step = abs(offsets[1] - offsets[0])
    return Alignment(times, offsets, step + max(_half(low, high), _half(later_low, later_high)))


def _bounds(readings: Sequence[Reading]) -> tuple[int, int]:
    """Return the least and the greatest offset that suit all readings."""
    low = max(reading.before - reading.theirs for reading in readings)
    high = min(reading.after - reading.theirs for reading in readings)
    return min(low, high), max(low, high)


def _half(low: int, high: int) -> int:
    return (high - low + 1) // 2
