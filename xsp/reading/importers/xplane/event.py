"""Reads the events of a plane that can become rows, and counts the events left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from xsp.xplane import Plane

PYTHON = "$"  # names of the calls that the Python tracer records begin with it

# The stats that rows are made of.
STATS: Mapping[str, Any] = {
    **dict.fromkeys(
        ("correlation_id", "step_num", "cuda_graph_id", "_ct", "_c", "_pt", "_p"), pl.Int64
    ),
    **dict.fromkeys(
        (
            "kernel_details",
            "memcpy_details",
            "memset_details",
            "hlo_op",
            "hlo_module",
            "tf_op",
            "annotation",
            "context_id",
        ),
        pl.String,
    ),
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many events are no rows, for which reasons.

    Attributes:
        unknown: Events by the name of the plane, or of the plane and line, that was not read.
        marks: Events without a duration, by name.
        python: Calls that the Python tracer recorded.
        damaged: Events without a name, or whose times are damaged.
        sums: Events that stand for several occurrences, and have no time.
        outer: Operators of a device that hold others, and are shown by their self time.
    """

    unknown: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    python: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    outer: Counter[str] = field(default_factory=Counter)


def events(
    plane: Plane, left: LeftOut, lines: Iterable[int] | None = None, *, python: bool = False
) -> pl.DataFrame:
    """Return the events of some lines of a plane, with columns for `STATS`.

    Args:
        plane: The plane.
        left: Counts what is left out: calls of Python functions, sums, and damaged events.
        lines: Positions of the lines that are read; None: all.
        python: Whether calls of Python functions are read.
    """
    read = plane.events(STATS, lines=lines)
    left.sums.update(read.sums)
    if read.damaged:
        left.damaged["events"] += read.damaged
    if python:
        return read.frame
    kept = read.frame.filter(~pl.col("name").str.starts_with(PYTHON))
    if kept.height < read.frame.height:
        left.python["calls"] += read.frame.height - kept.height
    return kept
