"""Reports missing, damaged and unknown parts of Nsight Systems' files as warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows
from xsp.reading.importers.nsys import about, device, host, table
from xsp.reading.importers.nsys.database import Database
from xsp.reading.importers.nsys.table import Tables
from xsp.text import counted, duration
from xsp.warning import TraceWarning


def of_file(database: Database, tables: Tables, idle: Sequence[str]) -> Iterator[TraceWarning]:
    """Yield the warnings of all processes together.

    Args:
        database: The file.
        tables: The tables of all processes.
        idle: Names of processes that are left out.
    """
    if said := about.warnings(database):
        yield TraceWarning("tool-warning", f"Nsight Systems warned: {'; '.join(said)}")
    if others := table.not_shown(database):
        yield TraceWarning("not-understood", f"xsp does not show {_listed(others)}")
    if tables.damaged:
        yield TraceWarning(
            "damaged",
            f"{_listed(tables.damaged)} have no time or device, or end before they begin; they are "
            "left out, the others are right",
        )
    if tables.stray:
        yield TraceWarning(
            "no-process", f"{_listed(tables.stray)} name no process and are left out"
        )
    if idle:
        yield TraceWarning(
            "idle-processes",
            f"{counted(len(idle), 'process')} with only system calls left out: " + ", ".join(idle),
        )


def of_process(tables: Tables, rows: SpanRows, events: Mapping[str, int]) -> Iterator[TraceWarning]:
    """Yield the warnings of one process.

    Args:
        tables: The process's tables.
        rows: The spans that were made of the tables.
        events: How many NVTX events of each sort no span was made of.
    """
    if events:
        said = ", ".join(f"{what} ({count:,})" for what, count in events.items())
        yield TraceWarning("not-understood", f"xsp does not show these NVTX events: {said}")
    if unnamed := rows.filter(pl.col("name") == host.UNNAMED).height:
        yield TraceWarning("unnamed", f"the file lacks the names of {counted(unnamed, 'span')}")
    launches = rows.filter(pl.col("kind") == Kind.LAUNCH.value)
    if repeated := host.repeated_ids(launches):
        yield TraceWarning(
            "repeated-id",
            f"{counted(repeated, 'call')} share a correlation id with another call; xsp gave "
            "device "
            "work to the last call before it",
        )
    if graphs := device.graphs_as_one(rows):
        yield TraceWarning(
            "graphs-as-one",
            f"{counted(graphs, 'launch')} of CUDA graphs are one span each, without their kernels. "
            "Record with `nsys profile --cuda-graph-trace=node`.",
        )
    # The nanoseconds in which at least one of some events went on.
    frame = tables[table.OVERHEAD]
    ordered = frame.sort("start")
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    reached = np.maximum.accumulate(end)
    new = end - np.maximum(start, np.append(start[:1], reached[:-1]))
    union = int(np.maximum(new, 0).sum())
    if spent := union:
        yield TraceWarning(
            "overhead",
            f"Nsight Systems' own work took {duration(spent)} in this process; times of spans may "
            "include it",
        )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counted(count, 'row')} of {name}" for name, count in counts.items())
