"""Anchors in PyTorch's profile in, the same anchors as `alignment` takes them out.

An anchor is an empty annotation that the profiler records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import polars as pl

from xsp_levels.framework.torch.profiler.event import Bools, PlainEvents
from xsp_levels.native.alignment import PREFIX, REPEATS, AnchorEvents, AnchorReading


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


def is_anchor(events: PlainEvents) -> Bools:
    """Return which of the profiler's events are anchors."""
    return events.by_name(lambda name: name.startswith(PREFIX), pl.Boolean).to_numpy()


def find_anchors(events: PlainEvents) -> AnchorEvents:
    """Pick the anchors out of the profiler's events."""
    found = events.only(is_anchor(events))
    threads = found.by_name(_thread, pl.Int64).to_numpy()
    start, duration, number = map(found.of, ("start_ns", "duration_ns", "start_thread_id"))
    order = np.lexsort((threads, number, duration, start))
    start, duration = start[order], duration[order]
    return AnchorEvents(
        thread=threads[order], number=number[order], start=start, end=start + duration
    )


def _thread(name: str) -> int:
    """Return the thread of which an anchor tells; 0 where the name is of something else."""
    return int(name[len(PREFIX) :]) if name.startswith(PREFIX) else 0
