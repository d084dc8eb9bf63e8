"""Anchors in PyTorch's profile in, the same anchors as `alignment` takes them out.

An anchor is an empty annotation that the profiler records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
