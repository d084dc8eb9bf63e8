"""Reads the needed columns of Nsight Systems' tables, process by process.

Nsight numbers a thread over all machines of a session: 8 bits for the machine, 8 for the virtual
machine, 24 for the process and 24 for the thread ("Serialized GlobalId" in its schema). A process
has the number of its thread 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from xsp.reading.importers.nsys.database import Database

_TEXT = ("text",)
_TIMES = ("start", "end")
_PLACE = (*_TIMES, "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_CALL = (*_TIMES, "globalTid", "correlationId", "nameId")
_NAMED = (*_TIMES, "globalTid", "nameId", "textId")

API = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYSTEM = "OSRT_API"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
SET = "CUPTI_ACTIVITY_KIND_MEMSET"
WAIT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NODE = "CUDA_GRAPH_NODE_EVENTS"
RANGE = "NVTX_EVENTS"
OVERHEAD = "PROFILER_OVERHEAD"
ACTIVITIES = (KERNEL, COPY, SET, WAIT, GRAPH)  # what devices did
# Calls of libraries that Nsight traces by itself, without NVTX.
LIBRARIES = {
    "CUBLAS_EVENTS": "cuBLAS",
    "CUDNN_EVENTS": "cuDNN",
    "MPI_COLLECTIVES_EVENTS": "MPI",
    "MPI_P2P_EVENTS": "MPI",
    "MPI_START_WAIT_EVENTS": "MPI",
    "MPI_OTHER_EVENTS": "MPI",
    "UCP_SUBMIT_EVENTS": "UCX",
    "UCP_PROGRESS_EVENTS": "UCX",
    "UCP_EVENTS": "UCX",
}

# The columns that are read of each table whose rows become spans, or belong to spans.
FORMS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(API, _CALL),
    SYSTEM: _NAMED,
    **dict.fromkeys(LIBRARIES, _NAMED),
    KERNEL: (
        *_PLACE,
        *("demangledName", "shortName", "registersPerThread"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("staticSharedMemory", "dynamicSharedMemory", "graphId", "graphNodeId"),
    ),
    COPY: (*_PLACE, "bytes", "copyKind", "srcKind", "dstKind", "graphId", "graphNodeId"),
    SET: (*_PLACE, "bytes", "memKind", "graphId", "graphNodeId"),
    WAIT: (*_PLACE, "syncType"),
    GRAPH: (*_PLACE, "graphId"),
    NODE: ("start", "globalTid", "graphNodeId", "originalGraphNodeId"),
    RANGE: (*_TIMES, "eventType", "text", "textId", "domainId", "globalTid", "endGlobalTid"),
    OVERHEAD: (*_TIMES, "globalTid"),
}
# Tables that hold no spans, but names, numbers and facts about the recording.
_ABOUT = (
    *("StringIds", "ENUM_", "EXPORT_META_DATA", "META_DATA_", "TARGET_INFO_", "ANALYSIS_"),
    *("PROCESSES", "ThreadNames", "ProcessStreams", "DIAGNOSTIC_EVENT", "MPI_RANKS", "sqlite_"),
    *("UCP_WORKERS", "NVTX_PAYLOAD_", "NVTX_SCOPES", "RANK_"),
)
# Events of which only both ends together make a span. NVTX knows events without an end.
_TIMED = [name for name in FORMS if name not in (NODE, RANGE)]

_LONGEST = 1 << 60  # ns, or 36 years: only damaged times are longer

PROCESS = 1 << 24  # numbers of threads in each process


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one process, or of all processes.

    Attributes:
        frames: Columns of each table of `FORMS`.
        damaged: How many rows of each table are left out: they lack a time or a device, or end
            before they begin.
        stray: How many rows of each table are left out: they name no process, of several.
    """

    frames: Mapping[str, pl.DataFrame]
    damaged: Mapping[str, int] = field(default_factory=dict)
    stray: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> pl.DataFrame:
        return self.frames[name]


def read(database: Database) -> Tables:
    """Return the tables of all processes, with `process` and `thread` in place of global ids."""
    frames = {name: _located(_read(database, name)) for name in FORMS}
    sound = frames | {name: _sound(frames[name]) for name in _TIMED}
    # The rows that are of a process; where there is but one, all rows are of it.
    known = pl.concat([frame["process"].unique() for frame in sound.values()]).drop_nulls()
    if known.n_unique() > 1:
        owned = {name: frame.drop_nulls("process") for name, frame in sound.items()}
    else:
        sole = int(known[0]) if len(known) else 0
        owned = {
            name: f.with_columns(pl.col("process").fill_null(sole)) for name, f in sound.items()
        }
    return Tables(owned, _lost(frames, sound), _lost(sound, owned))


def by_process(tables: Tables) -> dict[int, Tables]:
    """Return the tables of each process that has rows, by its global number."""
    parts = {name: _parted(frame) for name, frame in tables.frames.items()}
    numbers = sorted({number for part in parts.values() for number in part})
    return {
        number: Tables({n: p.get(number, tables[n].clear()) for n, p in parts.items()})
        for number in numbers
    }


def not_shown(database: Database) -> dict[str, int]:
    """Return the number of rows of each table that no span is made of."""
    others = sorted(n for n in database.columns if n not in FORMS and not n.startswith(_ABOUT))
    counts = {name: database.count(name) for name in others}
    return {name: count for name, count in counts.items() if count}


def _read(database: Database, name: str) -> pl.DataFrame:
    schema: dict[str, Any] = {c: pl.String if c in _TEXT else pl.Int64 for c in FORMS[name]}
    return database.read(name, schema)


def _located(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `process`, and `thread` where the table tells threads."""
    thread = "globalTid" in frame.columns
    number = pl.col("globalTid" if thread else "globalPid")
    located = [(number // PROCESS * PROCESS).alias("process")]
    return frame.with_columns(located + ([(number % PROCESS).alias("thread")] if thread else []))


def _sound(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that have times and, on a device, the device's number."""
    start, end = pl.col("start"), pl.col("end")
    untimed = (start == 0) & (end == 0)  # the driver had no memory for them
    sound = frame.filter((start >= -_LONGEST) & (start <= end) & (end <= _LONGEST) & ~untimed)
    return sound.drop_nulls("deviceId") if "deviceId" in frame.columns else sound


def _lost(before: Mapping[str, pl.DataFrame], after: Mapping[str, pl.DataFrame]) -> dict[str, int]:
    counts = {name: frame.height - after[name].height for name, frame in before.items()}
    return {name: count for name, count in counts.items() if count}


def _parted(frame: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Return the rows of each process."""
    if frame["process"].n_unique() < 2:  # no copy of a file's rows where one process made all
        return {int(number): frame for number in frame["process"].unique()}
    parts = frame.partition_by("process", as_dict=True, maintain_order=True)
    return {int(key[0]): part for key, part in parts.items()}
