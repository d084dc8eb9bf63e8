"""Imports a file of torch.profiler as one recording for each process."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.matching import nearest
from xsp.provider import ATTRIBUTE, ROW_SCHEMA, SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.call import doubled_calls, in_graphs, own_ids
from xsp.reading.importers.kineto.backward import with_forward_threads
from xsp.reading.importers.kineto.device import device_events
from xsp.reading.importers.kineto.event import Event, events, rescued
from xsp.reading.importers.kineto.host import host_events
from xsp.reading.importers.kineto.memory import with_memory
from xsp.reading.importers.kineto.nesting import Integers, nested
from xsp.reading.importers.kineto.process import (
    with_inputs,
    with_launches,
    with_modules,
    with_overheads,
    with_phases,
)
from xsp.reading.importers.kineto.rule import broken_rules
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
    """Yield the recording of each process; warnings of the whole file stand in the first."""
    host, marked = host_events(tables)
    room = resident_threads(chunks.metadata)
    host, work, doubled = _tied(host, device_events(tables, room))
    lines = [tables.table(sort) for sort in (Sort.FORWARD, Sort.BACKWARD)]
    host = with_forward_threads(host, *lines)
    memory, overheads = tables.table(Sort.MEMORY), _overheads(tables)
    about = origin(chunks.metadata, source.path)
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
    warnings = tuple(_warnings(tables, chunks, doubled, of_none))
    for number, pid in enumerate(processes):
        own = pl.lit(value=True) if len(processes) == 1 else pl.col("pid") == pid
        rows, around = nested(host.filter(own))
        rows = with_inputs(with_modules(with_phases(rows, around), around), around)
        found = steps(marked.filter(own), rows, around)
        rows, found, peak = with_memory(rows, around, memory.filter(own), found)
        rows, outside = with_overheads(rows, overheads)
        device = work.filter(pl.Series(owners == number, dtype=pl.Boolean))
        device = with_launches(device, rows)
        everything = in_graphs(concat_rows([_as_rows(rows), _as_rows(device)]))
        first = everything["start_ns"].min()
        yield Recording(
            tool=about.tool,
            rows=everything,
            roots=found,
            warnings=() if number else (*warnings, *_overhead(outside)),
            environment=about.environment,
            unix_ns=unix_ns(chunks.metadata, first if isinstance(first, int) else 0),
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
    tables: Tables, chunks: Chunks, doubled: int, of_no_process: int
) -> Iterator[TraceWarning]:
    """Yield what is missing of the file, and what of it was not understood."""
    if chunks.cut:
        yield TraceWarning(
            "cut-short", "the file ends in the middle; later spans are missing. Record again."
        )
    untimed = sum(tables.untimed.values())
    if chunks.damaged or untimed:
        yield TraceWarning(
            "damaged",
            f"{counted(chunks.damaged + untimed, 'event')} could not be read and are left out"
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


# Finds the steps in rows of the host.


def steps(marked: pl.DataFrame, rows: pl.DataFrame, around: Integers) -> SpanRows:
    """Return the steps, one after the other; none if the whole recording is one.

    Args:
        marked: The steps that the profiler marked: `name`, `start_ns`, `end_ns` and `thread`.
        rows: Rows of the host, as `nesting` returns them.
        around: Index of the row around each row, -1 for none.
    """
    found = _one_after_the_other(marked) if marked.height else _calls(rows, around)
    if not found.height:
        return no_rows()
    times = found.select("start_ns", "end_ns", "thread").to_dict()
    return span_rows({"kind": Kind.REGION.value, "name": found["name"], **times})


def _one_after_the_other(marked: pl.DataFrame) -> pl.DataFrame:
    """Return steps without those that begin before the step before them has ended."""
    found = marked.sort("start_ns", "end_ns", descending=[False, True])
    ended = found["end_ns"].cum_max().shift(1)
    return found.filter((pl.col("start_ns") >= ended).fill_null(value=True))


def _calls(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return a step for each call of the model, none if it was called once at most."""
    # Which rows lie in no layer, and not in the backward pass.
    is_layer = rows["kind"] == Kind.LAYER.value
    is_backward = (rows["attr.phase"] == "backward").fill_null(value=False)
    outermost = nearest(around, around, (is_layer | is_backward).to_numpy()) < 0
    modules = rows.filter(pl.col("attr.module_class").is_not_null(), pl.lit(outermost))
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    most = modules.group_by("thread", "name", maintain_order=True).agg(took.alias("ns"))
    if not most.height:
        return modules
    thread, name, _ = most.sort("ns", descending=True, maintain_order=True).row(0)
    calls = modules.filter(pl.col("thread") == thread, pl.col("name") == name).sort("start_ns")
    if calls.height < 2:
        return calls.clear()
    if modules.height == calls.height and not (rows["forward_thread"] > 0).any():
        return calls
    last = rows["end_ns"].max()
    return calls.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(last))


# Reads tool, environment, rank, host and clock from the metadata of a file.

_TOOL = "torch.profiler"
_EPOCH = 10**18  # ns since 1970: in 2001; times since the machine started are smaller
# What torch.profiler's own handler names a file: host, process, and milliseconds since 1970.
_FILE = re.compile(r"(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """The tool, the environment, the rank and the host that recorded a file.

    Attributes:
        tool: The tool and its version, as far as the file tells it.
        environment: Devices, versions and other facts.
        rank: Number of the process among those of a distributed program; None if unknown.
        host: Name of the machine; empty if unknown.
    """

    tool: str = _TOOL
    environment: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    host: str = ""


def origin(metadata: Mapping[str, Any], path: Path) -> Origin:
    """Return the tool, the environment, the rank and the host that recorded a file."""
    versions = dict(_versions(metadata))
    named = _FILE.fullmatch(path.name)
    host = str(metadata.get("hostname") or (named["host"] if named else ""))
    torch = versions.get("torch")
    said = _distribution(metadata)
    distributed = {
        name: said[name] for name in ("backend", "world_size", "nccl_version") if name in said
    }
    environment: dict[str, Any] = {
        "host": host,
        "devices": list(_devices(metadata)),
        "versions": versions,
        **distributed,
    }
    return Origin(
        tool=f"{_TOOL} of PyTorch {torch}" if torch else _TOOL,
        environment={name: value for name, value in environment.items() if value},
        rank=_integer(_distribution(metadata).get("rank")),
        host=host,
    )


def unix_ns(metadata: Mapping[str, Any], first_ns: int) -> int | None:
    """Return the wall-clock time at time 0 of a file's clock, None if the file does not tell.

    Args:
        metadata: What the file says beside its events.
        first_ns: The first time in the file.
    """
    base = _integer(metadata.get("baseTimeNanoseconds"))
    if base is not None and 0 <= base < 1 << 62:
        return base if first_ns < _EPOCH else 0
    return 0 if first_ns > _EPOCH else None


def resident_threads(metadata: Mapping[str, Any]) -> dict[int, int]:
    """Return how many threads each device can hold at a time, by the device's number."""
    found = {}
    for device in _list(metadata.get("deviceProperties")):
        if isinstance(device, dict):
            keys = ("id", "numSms", "maxThreadsPerMultiprocessor")
            number, multiprocessors, threads = (_integer(device.get(key)) for key in keys)
            if number is not None and multiprocessors and threads:
                found[number] = multiprocessors * threads
    return found


def _devices(metadata: Mapping[str, Any]) -> Iterator[str]:
    for device in _list(metadata.get("deviceProperties")):
        if isinstance(device, dict):
            yield str(device.get("name") or "unnamed device")


def _versions(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, name in (("pytorch_version", "torch"), ("torch_version", "torch")):
        if metadata.get(key):
            yield name, str(metadata[key])
    for key in ("cuda_runtime_version", "cuda_driver_version"):
        if number := _integer(metadata.get(key)):  # 1000 times the major, 10 times the minor one
            yield _spaced(key), f"{number // 1000}.{number % 1000 // 10}"
    for key in ("hip_runtime_version", "hip_driver_version"):
        if number := _integer(metadata.get(key)):  # ten million times the major one, and so on
            yield _spaced(key), f"{number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"
    for key in ("cupti_version", "roctracer_version", "rocprofiler-sdk_version"):
        if metadata.get(key):
            yield _spaced(key), str(metadata[key])


def _spaced(key: str) -> str:
    return key.removesuffix("_version").replace("_", " ")


def _distribution(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    found = metadata.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) else None


# Reads the events of a file piece by piece, and the metadata beside the events.

BEFORE = b"\xef\xbb\xbf \t\r\n"  # what may stand before JSON: a mark of UTF-8, and space
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_PIECE = 1 << 23  # bytes
_STEP = 1 << 18  # bytes that are read at once: what a damaged file may lose before its damage
_LONGEST = 1 << 28  # bytes without an event between them: this is no list of events


class Chunks:
    """The content of a file, piece by piece; to be iterated over once, and then asked.

    Attributes:
        begun: Whether a list of events was found.
        cut: Whether the file ends before its content does.
        damaged: How many events could not be read.
        metadata: What the file says beside its events.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._before = self._after = b""
        self.begun = False
        self.cut = False
        self.damaged = 0

    def __iter__(self) -> Iterator[list[Event]]:
        rest = self._begin()
        ended = False
        while not ended:
            more = self._read(_PIECE)
            rest += more
            place = _between(rest) if more else len(rest)
            if more and place < 0 and len(rest) < _LONGEST:
                continue
            piece, rest = rest[: max(place, 0)], rest[max(place, 0) :]
            found, ended = self._decoded(piece.strip(b" \t\r\n,"), last=not more)
            if found:
                yield found
            if not more and not ended:
                self.cut = ended = True
        self._after += rest
        while more := self._read(_PIECE):
            self._after += more

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata beside the events of the file; empty if the metadata cannot be read."""
        for end in (self._after, b"}"):
            try:
                found = json.loads(self._before.lstrip(BEFORE) + b"]" + end)
            except ValueError:
                continue
            return found if isinstance(found, dict) else {}
        return {}

    def _begin(self) -> bytes:
        """Return the beginning of the list, and keep what comes before it."""
        head = b""
        while len(head) < _LONGEST:
            more = self._read(_STEP)
            head += more
            start = LIST.search(head)
            if head.lstrip(BEFORE)[:1] == b"[":
                start = re.search(rb"\[", head)
            if start is not None:
                self.begun, self._before = True, head[: start.end()]
                return head[start.end() :]
            if not more:
                break
        return b""

    def _decoded(self, piece: bytes, *, last: bool) -> tuple[list[Event], bool]:
        """Return the events of a piece, and whether the list ends in it."""
        if piece.startswith(b"]"):
            self._after = piece[1:]
            return [], True
        if not last and (found := events(piece)) is not None:
            return found, False
        read, damaged, after = rescued(piece)
        # The event in which a file ends is no event that is damaged.
        self.damaged += damaged - (last and after is None and damaged > 0)
        if after is not None:
            self._after = after
        return read, after is not None

    def _read(self, count: int) -> bytes:
        """Return up to that many bytes; fewer only at the end of what can be read."""
        parts = []
        while count > 0:
            try:
                part = self._file.read1(min(count, _STEP))  # type: ignore[attr-defined]
            except (EOFError, OSError, zlib.error):
                self.cut = True
                part = b""
            if not part:
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _between(content: bytes) -> int:
    """Return the last place where an object ends and another follows, -1 if there is none.

    >>> _between(b'{"a": {}}, {"b"')
    9
    """
    at = len(content)
    while (at := content.rfind(b"{", 0, at)) >= 0:
        before = content[max(0, at - 256) : at].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            return at - (min(at, 256) - len(before)) - 1
    return -1
