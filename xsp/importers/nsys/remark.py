"""Tables and rows in; problems, which say what is missing of them or not understood, out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from xsp.importers.nsys import about, device, host, table
from xsp.importers.nsys.database import Database
from xsp.importers.nsys.table import Tables
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import SpanRows
from xsp.text import counted, duration


def of_file(database: Database, tables: Tables, idle: Sequence[str]) -> Iterator[Problem]:
    """Yield what is missing of all processes together.

    Args:
        database: The file.
        tables: The tables of all processes.
        idle: Names of processes that are left out.
    """
    if said := about.warnings(database):
        yield Problem("tool-warning", f"Nsight Systems warned: {'; '.join(said)}")
    if others := table.not_shown(database):
        yield Problem("not-understood", f"no spans are made of {_listed(others)}")
    if tables.damaged:
        yield Problem(
            "damaged",
            f"{_listed(tables.damaged)} are left out: they have no time or no device, or end "
            "before they begin",
        )
    if tables.stray:
        yield Problem("no-process", f"{_listed(tables.stray)} are left out: they name no process")
    if idle:
        yield Problem(
            "idle-processes",
            f"{counted(len(idle), 'process')} with nothing but calls of the system left out: "
            + ", ".join(idle),
        )


def of_process(tables: Tables, rows: SpanRows, events: Mapping[str, int]) -> Iterator[Problem]:
    """Yield what is missing of one process.

    Args:
        tables: The process's tables.
        rows: The spans that were made of the tables.
        events: How many NVTX events of each sort no span was made of.
    """
    if events:
        said = ", ".join(f"{what} ({count:,})" for what, count in events.items())
        yield Problem("not-understood", f"NVTX events that no spans are made of: {said}")
    if unnamed := rows.filter(pl.col("name") == host.UNNAMED).height:
        yield Problem("unnamed", f"the file lacks the names of {counted(unnamed, 'span')}")
    launches = rows.filter(pl.col("kind") == Kind.LAUNCH.value)
    if repeated := host.repeated_ids(launches):
        yield Problem(
            "repeated-id",
            f"{counted(repeated, 'call')} bear the correlation id of another call; what a device "
            "did is shown with the call that began last before it",
        )
    if graphs := device.graphs_as_one(rows):
        yield Problem(
            "graphs-as-one",
            f"{counted(graphs, 'launch')} of CUDA graphs were recorded as one span each, of which "
            "the kernels are not known; `nsys profile --cuda-graph-trace=node` records them",
        )
    if spent := _union(tables[table.OVERHEAD]):
        yield Problem(
            "overhead",
            f"Nsight Systems says that its own work took {duration(spent)} in this process, on "
            "whichever thread; what of it lies in spans is in their times",
        )


def _union(frame: pl.DataFrame) -> int:
    """Return the nanoseconds in which at least one of some events went on."""
    ordered = frame.sort("start")
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    reached = np.maximum.accumulate(end)
    new = end - np.maximum(start, np.append(start[:1], reached[:-1]))
    return int(np.maximum(new, 0).sum())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counted(count, 'row')} of {name}" for name, count in counts.items())
