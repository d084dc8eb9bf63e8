"""Makes anchors while JAX's profiler records, and finds them among its events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import polars as pl

from xsp_levels.native.alignment import PREFIX, REPEATS, AnchorEvents, AnchorReading


def make_anchors(annotate: Callable[[str], Any], now: Callable[[], int]) -> list[AnchorReading]:
    """Make anchors on the calling thread while the profiler records.

    Args:
        annotate: JAX's `TraceAnnotation`.
        now: Reads the measurement's clock.
    """
    thread = threading.get_ident()
    readings = []
    for _ in range(REPEATS):
        before = now()
        with annotate(f"{PREFIX}{thread}"):
            inside = now()
        readings.append(AnchorReading(thread, before, inside, now()))
    return readings


def find_anchors(events: pl.DataFrame) -> AnchorEvents:
    """Pick the anchors out of the profiler's events."""
    found = events.filter(pl.col("name").str.starts_with(PREFIX)).sort("start_ns")
    thread = found["name"].str.strip_prefix(PREFIX).cast(pl.Int64)
    return AnchorEvents(
        thread=thread.to_numpy(),
        number=found["line_id"].to_numpy(),
        start=found["start_ns"].to_numpy(),
        end=found["end_ns"].to_numpy(),
    )
