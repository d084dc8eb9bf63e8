"""Recordings: rows that an importer made of a file in, with what the file says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from xsp.provider import SpanRows, no_rows
from xsp.warning import TraceWarning


@dataclass(frozen=True, slots=True)
class Recording:
    """What one process did, as another tool recorded it.

    A file that holds several processes gives several recordings, on one clock.

    Attributes:
        tool: The tool and its version, as the file tells them: `"Nsight Systems 2025.3.1"`.
        rows: All spans (`xsp.provider.ROW_SCHEMA`, and attributes), in any order. Times are in
            nanoseconds on one clock of the importer's choice, the same for all rows.
        roots: The steps that the file marks, one row of kind `region` each, one after the other
            in time; none: the whole recording is one step. Their rows are
            not among `rows`. Names that differ, as `ProfilerStep#7`, tell which steps of several
            recordings are the same.
        name: What was recorded, for people; empty: the name of the file.
        warnings: What is missing or not understood, counted by name.
        environment: Where it was recorded, as far as the file tells: `devices` (a list of
            names), `host`, `versions` (a mapping), ...
        unix_ns: Wall-clock time at time 0 of the rows' clock, in nanoseconds since 1970; None
            if the file does not tell.
        rank: Number of the process among those of a distributed program; None if unknown.
        host: Name of the machine; empty if unknown.
        peak_bytes: Most memory held at one time in a recording without steps; None if unknown.
    """

    tool: str
    rows: SpanRows
    roots: SpanRows = field(default_factory=no_rows)
    name: str = ""
    warnings: tuple[TraceWarning, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    unix_ns: int | None = None
    rank: int | None = None
    host: str = ""
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class KernelMetrics:
    """What a tool measured of single kernels, without saying when they ran.

    Attributes:
        tool: The tool and its version.
        rows: One row per kernel, in the order in which they ran: `name`, `duration_ns` (null if
            it was not measured), attributes under names that begin with `attr.`, and `device`
            and `stream` where they are known.
        warnings: What is missing or not understood, counted by name.
        environment: Where it was measured, as far as the file tells.
    """

    tool: str
    rows: pl.DataFrame
    warnings: tuple[TraceWarning, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


Contents = tuple[Recording | KernelMetrics, ...]
