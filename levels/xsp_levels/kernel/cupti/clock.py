"""Readings of CUPTI's clock and the measurement's clock in, their alignment out.

CUPTI's times are those of the wall clock unless another tool changed that; the measurement's
are monotonic. Readings at the beginning and at the end of a recording bound the offset
between the two. Kineto, for one, gives CUPTI a clock that counts the processor's ticks, two or
three in a nanosecond, and leaves it to CUPTI: then the readings tell the rate as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from xsp_levels.native.alignment import Alignment

REPEATS = 16  # any reading may be interrupted: the tightest bounds count


_RATE = 1e-3  # clocks that count nanoseconds differ by less


@dataclass(frozen=True, slots=True)
class Reading:
    """CUPTI's clock (`theirs`), read between two readings of the measurement's in nanoseconds."""

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
    offset changes evenly, and the error covers a change at a single moment. If CUPTI's clock does
    not count nanoseconds, rate and offset are those of a line through the readings, and the error
    is by how much the line misses them.

    >>> align([Reading(10, 100, 14)], [Reading(50, 140, 54)])
    Alignment(times=(100, 140), offsets=(-88, -88), error_ns=2)
    """
    if _counts_otherwise(first, last):
        return _fitted(first, last)
    (low, high), (later_low, later_high) = _bounds(first), _bounds(last)
    times = first[0].theirs, last[-1].theirs
    if max(low, later_low) <= min(high, later_high):
        low, high = max(low, later_low), min(high, later_high)
        return Alignment(times, ((low + high) // 2,) * 2, _half(low, high))
    offsets = (low + high) // 2, (later_low + later_high) // 2
    step = abs(offsets[1] - offsets[0])
    return Alignment(times, offsets, step + max(_half(low, high), _half(later_low, later_high)))


def _counts_otherwise(first: Sequence[Reading], last: Sequence[Reading]) -> bool:
    """Tell whether CUPTI's clock surely runs at a rate of its own, at each end and in between.

    A clock that was set runs at the same rate as ours at each end.
    """
    spans = (first[0], first[-1]), (last[0], last[-1]), (first[0], last[-1])
    rates = [_rate(*span) for span in spans]
    return all(low > 1 + _RATE for low, _ in rates) or all(high < 1 - _RATE for _, high in rates)


def _rate(begin: Reading, end: Reading) -> tuple[float, float]:
    """Return the least and the greatest rate of CUPTI's clock between two readings."""
    passed, most = end.theirs - begin.theirs, max(1, end.after - begin.before)
    least = end.before - begin.after
    return passed / most, passed / least if least > 0 else float("inf")


def _fitted(first: Sequence[Reading], last: Sequence[Reading]) -> Alignment:
    """Return the line through the tightest reading at each end; its error is all readings'."""
    ends = [min(readings, key=lambda one: one.after - one.before) for readings in (first, last)]
    times = ends[0].theirs, ends[1].theirs
    offsets = _middle(ends[0]) - times[0], _middle(ends[1]) - times[1]
    line = Alignment(times, offsets)
    readings = (*first, *last)
    met = line.convert(np.array([one.theirs for one in readings], np.int64)).tolist()
    pairs = zip(met, readings, strict=True)
    missed = max(max(one.before - at, at - one.after) for at, one in pairs)
    widest = max(_half(one.before, one.after) for one in ends)
    return Alignment(times, offsets, widest + max(0, missed))


def _middle(reading: Reading) -> int:
    return (reading.before + reading.after) // 2


def _bounds(readings: Sequence[Reading]) -> tuple[int, int]:
    """Return the least and the greatest offset that suit all readings."""
    low = max(reading.before - reading.theirs for reading in readings)
    high = min(reading.after - reading.theirs for reading in readings)
    return min(low, high), max(low, high)


def _half(low: int, high: int) -> int:
    return (high - low + 1) // 2
