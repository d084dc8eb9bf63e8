"""CUPTI's clock against ours: pairs of readings in, a conversion out. Pure but for `read`.

CUPTI's times are the wall clock's unless another tool changed that; ours are
monotonic. Pairs at the beginning and at the end of a recording bound what lies
between the two. CUPTI could ask us for the time itself, but what it asks is asked
for every record, and cannot be given back when we are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xsp_levels.native.alignment import Alignment

REPEATS = 16  # any may be interrupted: the tightest count


@dataclass(frozen=True, slots=True)
class Reading:
    """CUPTI's clock, read between two readings of ours; all in nanoseconds."""

    before: int
    theirs: int
    after: int


def read(
    ours: Callable[[], int], theirs: Callable[[], int], repeats: int = REPEATS
) -> list[Reading]:
    """Return readings of both clocks, one right after the other."""
    return [Reading(ours(), theirs(), ours()) for _ in range(repeats)]


def align(first: Sequence[Reading], last: Sequence[Reading]) -> Alignment:
    """Return the conversion that readings at the beginning and at the end tell.

    One offset that suits both is taken if there is one. Else the clocks ran apart: the
    offset changes evenly, and the error covers that it may have changed at once.

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
    """Return the least and the greatest offset that all readings allow."""
    low = max(reading.before - reading.theirs for reading in readings)
    high = min(reading.after - reading.theirs for reading in readings)
    return min(low, high), max(low, high)


def _half(low: int, high: int) -> int:
    return (high - low + 1) // 2
