"""Anchors in PyTorch's profile in; the alignment of its clock, and Python's thread numbers, out.

An anchor is an empty annotation that the profiler records while the measurement's clock
is read before, inside and after the annotation. The anchor's name holds the number of the
Python thread. Each anchor bounds the offset between the two clocks from both sides; the
bounds of all anchors together leave some 0.1 us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xsp_levels.native.alignment import Alignment

Integers = npt.NDArray[np.int64]

PREFIX = "xsp.anchor "
REPEATS = 8  # the first anchor is slow, any may be interrupted: the tightest bounds count


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


def make_anchors(now: Callable[[], int], *, repeats: int = REPEATS) -> list[AnchorReading]:
    """Make anchors on the calling thread while a profiler records."""
    from torch._C._profiler import _RecordFunctionFast  # noqa: PLC0415

    thread = threading.get_ident()
    anchor = _RecordFunctionFast(PREFIX + str(thread))
    readings = []
    for _ in range(repeats):
        before = now()
        with anchor:
            inside = now()
        readings.append(AnchorReading(thread, before, inside, now()))
    return readings


def find_anchors(names: Sequence[str], events: Sequence[Any]) -> AnchorEvents:
    """Pick the anchors out of the profiler's events.

    Args:
        names: Name of each event.
        events: Kineto's events, in the same order.
    """
    found = sorted(
        (event.start_ns(), event.duration_ns(), event.start_thread_id(), int(name[len(PREFIX) :]))
        for name, event in zip(names, events, strict=True)
        if name.startswith(PREFIX)
    )
    start, duration, number, thread = np.array(found, np.int64).reshape(-1, 4).T
    return AnchorEvents(thread=thread, number=number, start=start, end=start + duration)


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
