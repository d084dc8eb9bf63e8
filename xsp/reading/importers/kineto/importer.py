"""Imports a file of torch.profiler as one recording for each process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, ROW_SCHEMA, SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.call import doubled_calls, in_graphs, own_ids
from xsp.reading.importers.kineto.backward import in_regions, with_forward_threads
from xsp.reading.importers.kineto.chunk import BEFORE, LIST, Chunks
from xsp.reading.importers.kineto.device import device_events
from xsp.reading.importers.kineto.host import host_events
from xsp.reading.importers.kineto.memory import with_memory
from xsp.reading.importers.kineto.nesting import nested
from xsp.reading.importers.kineto.origin import origin, resident_threads, unix_ns
from xsp.reading.importers.kineto.process import (
    with_inputs,
    with_launches,
    with_modules,
    with_overheads,
    with_phases,
)
from xsp.reading.importers.kineto.rule import broken_rules
from xsp.reading.importers.kineto.step import steps
from xsp.reading.importers.kineto.table import Sort, Tables
from xsp.reading.importers.metrics import CATEGORY, with_profiler_ranges
from xsp.reading.importers.reading import listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.source import Source
from xsp.text import counted, duration
from xsp.warning import TraceWarning

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

    def recognizes(self, source: Source) -> bool:
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
            for chunk in chunks:
                tables.add(chunk)
        if not chunks.begun:
            raise TraceFormatError(
                f"{source.path}: no list of events (`traceEvents`) was found; is the file whole?"
            )
        ranges = tables.strange.pop(CATEGORY, 0)
        facts = Facts(chunks.metadata, chunks.cut, chunks.damaged)
        found = tuple(recordings(tables, facts, source))
        if not ranges and not any(each.rows.height or each.roots.height for each in found):
            raise TraceFormatError(f"{source.path}: {_nothing(tables)}")
        return with_profiler_ranges(found, source, ranges) if ranges else found


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a file beside its events.

    Attributes:
        metadata: What the file says beside its events.
        cut: Whether the file ends before its content does.
        damaged: How many events could not be read.
    """

    metadata: Mapping[str, Any]
    cut: bool = False
    damaged: int = 0


def recordings(tables: Tables, facts: Facts, source: Source) -> Iterator[Recording]:
    """Yield the recording of each process; warnings of the whole file stand in the first."""
    host, marked = host_events(tables)
    room = resident_threads(facts.metadata)
    host, work, doubled = _tied(host, device_events(tables, room))
    lines = [tables.table(sort) for sort in (Sort.FORWARD, Sort.BACKWARD)]
    host = with_forward_threads(host, *lines)
    memory, overheads = tables.table(Sort.MEMORY), _overheads(tables)
    about = origin(facts.metadata, source.path)
    # The processes that ran operators or made calls, else the first of any.
    told = host.filter(pl.col("pid").is_not_null())
    working = pl.col("kind").is_in([Kind.OP.value, Kind.LAUNCH.value])
    busy = told.filter(working & pl.col("function").is_null())["pid"].unique(maintain_order=True)
    processes = busy.to_list() or told["pid"].head(1).to_list() or [None]
    # The number of the process that each row of a device belongs to.
    # What was launched by no recorded call belongs to the process that launched most on the device.
    if len(processes) < 2:
        owners = np.zeros(work.height, np.int64)
    else:
        numbers = pl.DataFrame({"pid": processes, "number": range(len(processes))})
        calls = host.filter(_LAUNCH).join(numbers, on="pid").select("correlation_id", "number")
        calls = calls.drop_nulls().unique("correlation_id")
        found = work.join(calls, on="correlation_id", how="left", maintain_order="left")
        usual = pl.col("number").drop_nulls().mode().first().over("device")
        owners = found.select(pl.coalesce("number", usual, pl.lit(0))).to_series().to_numpy()
    of_none = len(processes) > 1 and host.filter(~pl.col("pid").is_in(processes)).height
    warnings = tuple(_warnings(tables, facts, doubled, of_none))
    for number, pid in enumerate(processes):
        own = pl.lit(value=True) if len(processes) == 1 else pl.col("pid") == pid
        rows, around = nested(host.filter(own))
        rows = with_inputs(with_modules(with_phases(rows, around), around), around)
        rows = in_regions(rows, around)
        roots = steps(marked.filter(own), rows, around)
        rows, roots, peak = with_memory(rows, around, memory.filter(own), roots)
        rows, outside = with_overheads(rows, overheads)
        device = work.filter(pl.Series(owners == number, dtype=pl.Boolean))
        device = with_launches(device, rows)
        everything = in_graphs(concat_rows([_as_rows(rows), _as_rows(device)]))
        first = everything["start_ns"].min()
        yield Recording(
            tool=about.tool,
            rows=everything,
            roots=roots,
            warnings=() if number else (*warnings, *_overhead(outside)),
            environment=about.environment,
            unix_ns=unix_ns(facts.metadata, first if isinstance(first, int) else 0),
            rank=_rank(tables, pid) if len(processes) > 1 else about.rank,
            name=f"process {pid}" if len(processes) > 1 else "",
            host=about.host,
            peak_bytes=peak,
        )


def _rank(tables: Tables, pid: int | None) -> int | None:
    """Return the rank of a process of several in a file; None if the file does not tell."""
    found = tables.ranks.get(pid, set())
    return min(found) if len(found) == 1 else None


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


def _warnings(
    tables: Tables, facts: Facts, doubled: int, of_no_process: int
) -> Iterator[TraceWarning]:
    """Yield what is missing of the file, and what of it was not understood."""
    if facts.cut:
        yield TraceWarning(
            "cut-short", "the file ends in the middle; later spans are missing. Record again."
        )
    untimed = sum(tables.untimed.values())
    if facts.damaged or untimed:
        yield TraceWarning(
            "damaged",
            f"{counted(facts.damaged + untimed, 'event')} could not be read and are left out"
            + (f" ({untimed} without a start or a duration)" if untimed else "")
            + "; the others are right",
        )
    if tables.strange:
        yield TraceWarning(
            "not-understood",
            f"xsp does not know and left out: {listed(tables.strange)}",
        )
    yield from doubled_calls(doubled)
    yield from broken_rules(tables)
    left_out = {
        "call of Python functions": tables.functions,
        "range of the host, repeated on a device": tables.table(Sort.MIRROR).height,
        "span of processes without operators": of_no_process,
    }
    if any(left_out.values()):
        told = ", ".join(_several(count, what) for what, count in left_out.items() if count)
        yield TraceWarning("left-out", f"not shown: {told}")


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


def _overhead(outside: Mapping[str, int]) -> Iterator[TraceWarning]:
    """Yield what was overhead, but of no call.

    Args:
        outside: Sums in ns, by the name that CUPTI has for the overhead.
    """
    if outside:
        sums = ", ".join(f"{name} {duration(float(ns))}" for name, ns in outside.items())
        yield TraceWarning(
            "overhead",
            f"CUPTI reports overhead outside of recorded calls; spans may include it: {sums}",
        )
