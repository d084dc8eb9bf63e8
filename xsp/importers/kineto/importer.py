"""The importer: a source in, a recording of each process out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.errors import TraceFormatError
from xsp.importers.call import doubled_calls, in_graphs, own_ids
from xsp.importers.kineto.backward import with_forward_threads
from xsp.importers.kineto.chunk import BEFORE, LIST, Chunks
from xsp.importers.kineto.device import device_events
from xsp.importers.kineto.host import host_events
from xsp.importers.kineto.metadata import origin, resident_threads, unix_ns
from xsp.importers.kineto.nesting import Integers, nested
from xsp.importers.kineto.process import (
    with_launches,
    with_memory,
    with_modules,
    with_overheads,
    with_phases,
)
from xsp.importers.kineto.step import steps
from xsp.importers.kineto.table import Sort, Tables
from xsp.importers.metrics import CATEGORY, with_profiler_ranges
from xsp.importers.reading import listed
from xsp.importers.recording import Contents, Recording
from xsp.importers.source import Source
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import ATTRIBUTE, ROW_SCHEMA, SpanRows, concat_rows, no_rows, span_rows
from xsp.text import counted, duration

_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_SCHEMA = re.compile(rb'"schemaVersion"\s*:\s*\d')
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"(cpu_op|operator|user_annotation|python_function|runtime|gpu_\w+|ac2g|kernel|'
    rb'(cuda|xpu|mtia|privateuse1)_(runtime|driver))"'
)


@dataclass(frozen=True)
class Kineto:
    """Reads what torch.profiler writes, of PyTorch 1.9 and later, on CPUs, CUDA and ROCm.

    Attributes:
        python: Whether calls of Python functions become operators; else they are left out.
    """

    python: bool = False
    name = "kineto"
    tool = "torch.profiler"

    def recognises(self, source: Source) -> bool:
        """Tell whether this is a Chrome trace: a list of events, alone or as `traceEvents`.

        Others write lists of events too. A list alone has to have events of the profiler's
        categories.
        """
        head = source.head.lstrip(BEFORE)
        if head.startswith(b"["):
            return _CATEGORY.search(head) is not None
        return head.startswith(b"{") and (LIST.search(head) or _SCHEMA.search(head)) is not None

    def read(self, source: Source) -> Contents:
        """Return a recording for each process whose operators or calls the file holds.

        Raises:
            TraceFormatError: The file holds no list of events, or none of which spans are made.
        """
        tables = Tables(python=self.python)
        with source.open() as file:
            chunks = Chunks(file)
            for events in chunks:
                tables.add(events)
        if not chunks.begun:
            raise TraceFormatError(
                f"{source.path}: no list of events (`traceEvents`) was found; is the file whole?"
            )
        ranges = tables.strange.pop(CATEGORY, 0)
        recordings = tuple(_recordings(tables, chunks, source))
        if not ranges and not any(each.rows.height or each.roots.height for each in recordings):
            raise TraceFormatError(f"{source.path}: {_nothing(tables)}")
        return with_profiler_ranges(recordings, source, ranges) if ranges else recordings


def _recordings(tables: Tables, chunks: Chunks, source: Source) -> Iterator[Recording]:
    """Yield the recording of each process; problems of the whole file stand in the first."""
    host, marked = host_events(tables)
    room = resident_threads(chunks.metadata)
    host, work, doubled = _tied(host, device_events(tables, room))
    lines = [tables.table(sort) for sort in (Sort.FORWARD, Sort.BACKWARD)]
    host = with_forward_threads(host, *lines)
    memory, overheads = tables.table(Sort.MEMORY), _overheads(tables)
    about = origin(chunks.metadata, source.path)
    processes = _processes(host)
    owners = _owners(host, work, processes)
    of_none = len(processes) > 1 and host.filter(~pl.col("pid").is_in(processes)).height
    problems = tuple(_problems(tables, chunks, doubled, of_none))
    for number, pid in enumerate(processes):
        own = pl.lit(value=True) if len(processes) == 1 else pl.col("pid") == pid
        rows, around = nested(host.filter(own))
        rows = with_modules(with_phases(rows, around), around)
        rows, outside = with_overheads(with_memory(rows, memory.filter(own)), overheads)
        device = work.filter(pl.Series(owners == number, dtype=pl.Boolean))
        device = with_launches(device, rows)
        everything = in_graphs(concat_rows([_as_rows(rows), _as_rows(device)]))
        first = everything["start_ns"].min()
        yield Recording(
            tool=about.tool,
            rows=everything,
            roots=steps(marked.filter(own), rows, around),
            problems=() if number else (*problems, *_overhead(outside)),
            environment=about.environment,
            unix_ns=unix_ns(chunks.metadata, first if isinstance(first, int) else 0),
            rank=about.rank,
            host=about.host,
        )


def _tied(host: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return rows of host and devices such that a correlation id is that of one call.

    A call of the runtime makes a call of the driver, with the same id, which says no more.
    """
    calls = host.filter(_LAUNCH)
    runtime = calls.filter(~pl.col("driver"))["correlation_id"].drop_nulls().unique()
    inner = pl.col("driver") & pl.col("correlation_id").is_in(runtime.implode())
    host = pl.concat([host.filter(~_LAUNCH), calls.filter(~inner.fill_null(value=False))])
    keys = ("kind", "start_ns", "end_ns", "correlation_id")
    ids, doubled = own_ids(
        pl.concat([host.select(*keys, "thread"), work.select(keys)], how="diagonal")
    )
    host = host.with_columns(ids.head(host.height))
    return host, work.with_columns(ids.tail(work.height)), doubled


def _overheads(tables: Tables) -> pl.DataFrame:
    table = tables.table(Sort.OVERHEAD)
    names = tables.texts.read(table["name"], str, pl.String)
    return table.select("start_ns", "end_ns").insert_column(0, names.alias("name"))


def _processes(host: pl.DataFrame) -> list[int | None]:
    """Return the processes that ran operators or made calls, else the first of any."""
    told = host.filter(pl.col("pid").is_not_null())
    working = pl.col("kind").is_in([Kind.OP.value, Kind.LAUNCH.value])
    busy = told.filter(working & pl.col("function").is_null())["pid"].unique(maintain_order=True)
    return busy.to_list() or told["pid"].head(1).to_list() or [None]


def _owners(host: pl.DataFrame, work: pl.DataFrame, processes: list[int | None]) -> Integers:
    """Return the number of the process that each row of a device belongs to.

    What was launched by no recorded call belongs to the process that launched most on the device.
    """
    if len(processes) < 2:
        return np.zeros(work.height, np.int64)
    numbers = pl.DataFrame({"pid": processes, "number": range(len(processes))})
    calls = host.filter(_LAUNCH).join(numbers, on="pid").select("correlation_id", "number")
    calls = calls.drop_nulls().unique("correlation_id")
    found = work.join(calls, on="correlation_id", how="left", maintain_order="left")
    usual = pl.col("number").drop_nulls().mode().first().over("device")
    return found.select(pl.coalesce("number", usual, pl.lit(0))).to_series().to_numpy()


def _as_rows(rows: pl.DataFrame) -> SpanRows:
    """Return rows with the columns that they share with all providers, and attributes."""
    if not rows.height:
        return no_rows()
    kept = [
        column
        for column in rows
        if column.name in ROW_SCHEMA
        or (column.name.startswith(ATTRIBUTE) and column.null_count() < rows.height)
    ]
    return span_rows({column.name: column for column in kept})


def _problems(
    tables: Tables, chunks: Chunks, doubled: int, of_no_process: int
) -> Iterator[Problem]:
    """Yield what is missing of the file, and what of it was not understood."""
    if chunks.cut:
        yield Problem("cut-short", "the file ends in the middle; what is whole of it was read")
    untimed = sum(tables.untimed.values())
    if chunks.damaged or untimed:
        yield Problem(
            "damaged",
            f"{counted(chunks.damaged + untimed, 'event')} could not be read, {untimed} of them "
            "for want of a start and a duration of 0 or more; they are left out",
        )
    if tables.strange:
        yield Problem(
            "not-understood",
            f"events that xsp does not know are left out: {listed(tables.strange)}",
        )
    yield from doubled_calls(doubled)
    left_out = {
        "call of Python functions": tables.functions,
        "range of the host, repeated on a device": tables.table(Sort.MIRROR).height,
        "span of processes without operators": of_no_process,
    }
    if any(left_out.values()):
        told = ", ".join(_several(count, what) for what, count in left_out.items() if count)
        yield Problem("left-out", f"not shown: {told}")


def _nothing(tables: Tables) -> str:
    """Return why nothing is left of a file, and what to do."""
    if tables.functions:
        return (
            f"of the program torch.profiler recorded only {counted(tables.functions, 'call')} of "
            "Python functions, which are left out; operators of other threads are recorded where "
            "these threads run a profiler themselves"
        )
    if tables.strange:
        names = ", ".join(name for name, _ in tables.strange.most_common(5))
        return (
            f"its events ({counted(tables.strange.total(), 'event')}: {names}) are none of "
            "torch.profiler's, so another program wrote it; of TensorFlow and JAX xsp reads the "
            ".xplane.pb that lies beside such a file"
        )
    return "torch.profiler recorded nothing: was anything run while it was on?"


def _several(count: int, what: str) -> str:
    first, _, rest = what.partition(" ")
    return f"{counted(count, first)} {rest}"


def _overhead(outside: Mapping[str, int]) -> Iterator[Problem]:
    """Yield what was overhead, but of no call.

    Args:
        outside: Sums in ns, by the name that CUPTI has for the overhead.
    """
    if outside:
        sums = ", ".join(f"{name} {duration(float(ns))}" for name, ns in outside.items())
        yield Problem("overhead", f"overhead in no recorded call, of which CUPTI tells: {sums}")
