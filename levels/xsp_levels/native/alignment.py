"""Converts times of a vendor's clock to times of the measurement's clock.

The module that reads a vendor's clock and the measurement's clock one right after the other
makes the `Alignment` from its readings. Where the vendor's clock can be read by no other way than
that a profiler records something, that is an anchor: an empty annotation, with the measurement's
clock read before, inside and after, and the number of the Python thread in its name. Each anchor
bounds the offset between the two clocks from both sides; the bounds of all anchors together leave
some 0.1 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

PREFIX = "xsp.anchor "
REPEATS = 8  # the first anchor is slow, any may be interrupted: the tightest bounds count


@dataclass(frozen=True, slots=True)
class Alignment:
    """The offset between two clocks: it changes evenly from one instant to another.

    A vendor's clock may count something else than nanoseconds: only instants are converted, then,
    and durations are differences of converted instants.

    Attributes:
        times: Two instants of the vendor's clock, in whatever that clock counts.
        offsets: What is added to the vendor's time at each of the two instants.
        error_ns: By how much a converted time can be wrong, as far as the readings tell.
    """

    times: tuple[int, int] = (0, 0)
    offsets: tuple[int, int] = (0, 0)
    error_ns: int = 0

    def convert(self, vendor: Integers) -> Integers:
        """Return instants of the vendor's clock in nanoseconds of the measurement's clock.

        >>> Alignment((0, 100), (1000, 1010)).convert(np.array([0, 50, 100])).tolist()
        [1000, 1055, 1110]
        """
        first, last = self.offsets
        # relative to the first instant: a float has no room for nanoseconds since 1970
        since = (vendor - self.times[0]).astype(np.float64)
        span = max(1, self.times[1] - self.times[0])
        drift = np.rint(since * ((last - first) / span)).astype(np.int64)
        return vendor + first + drift


@dataclass(frozen=True, slots=True)
class AnchorReading:
    """The measurement's clock around one anchor, in nanoseconds.

    Attributes:
        thread: `threading.get_ident()` of the thread that made the anchor.
        before: Read last before the anchor began.
        inside: Read between the anchor's beginning and end.
        after: Read first after the anchor ended.
    """

    thread: int
    before: int
    inside: int
    after: int


@dataclass(frozen=True, slots=True)
class AnchorEvents:
    """The same anchors as the profiler recorded them, by time.

    Attributes:
        thread: The Python thread that each anchor's name states.
        number: The profiler's own number of the same thread.
        start: Beginning of each anchor, in nanoseconds of the profiler's clock.
        end: End of each anchor, likewise.
    """

    thread: Integers
    number: Integers
    start: Integers
    end: Integers

    def threads(self) -> dict[int, int]:
        """Return the Python thread of each of the profiler's thread numbers."""
        return dict(zip(self.number.tolist(), self.thread.tolist(), strict=True))


def align(readings: Sequence[AnchorReading], seen: AnchorEvents) -> Alignment | None:
    """Return the alignment of the profiler's clock, or None if the profiler recorded no anchor.

    Each anchor must begin between `before` and `inside` and end between `inside`
    and `after`. If one offset suits all anchors, the offset is the middle of the bounds.
    If none does, the profiler's clock was set in the meantime: the first anchors and the
    last anchors then get an offset each.
    """
    low, high, start = _bounds(readings, seen)
    if not start.size:
        return None
    times = int(start[0]), int(start[-1])
    if low.max() <= high.min() or times[0] == times[1]:
        middle, error = _middle(low, high)
        return Alignment(times, (middle, middle), error)
    first, first_error = _middle(low[:REPEATS], high[:REPEATS])
    last, last_error = _middle(low[-REPEATS:], high[-REPEATS:])
    return Alignment(times, (first, last), max(first_error, last_error))


def _bounds(
    readings: Sequence[AnchorReading], seen: AnchorEvents
) -> tuple[Integers, Integers, Integers]:
    """Return the least and the greatest offset that each anchor allows, and the anchor's start."""
    table = np.array([(r.thread, r.before, r.inside, r.after) for r in readings], np.int64)
    table = table.reshape(-1, 4)
    parts = []
    for thread in np.unique(seen.thread):
        ours, theirs = table[table[:, 0] == thread], np.flatnonzero(seen.thread == thread)
        if len(ours) != len(theirs):  # an anchor was lost, and nothing tells which
            continue
        start, end = seen.start[theirs], seen.end[theirs]
        before, inside, after = ours[:, 1], ours[:, 2], ours[:, 3]
        low = np.maximum(before - start, inside - end)
        high = np.minimum(inside - start, after - end)
        parts.append(np.stack([start, low, high]))
    start, low, high = np.concatenate([np.empty((3, 0), np.int64), *parts], axis=1)
    order = np.argsort(start, kind="stable")
    return low[order], high[order], start[order]


def _middle(low: Integers, high: Integers) -> tuple[int, int]:
    lowest, highest = int(low.max()), int(high.min())
    return (lowest + highest) // 2, (abs(highest - lowest) + 1) // 2
