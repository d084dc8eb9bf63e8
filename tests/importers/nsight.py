"""Small files as Nsight Systems exports them, in its schemas of 2023 and of 2025."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from xsp.importers import Recording, Source
from xsp.reading.importers.nsys import NsightSystems

PID, OTHER_PID = 4242, 4243
_PLACE = "start end deviceId contextId streamId correlationId globalPid"
_KERNEL = (
    f"{_PLACE} demangledName shortName mangledName registersPerThread gridX gridY gridZ "
    "blockX blockY blockZ staticSharedMemory dynamicSharedMemory"
)
_COPY = f"{_PLACE} bytes copyKind srcKind dstKind"
# As Nsight writes them, less columns that say nothing of spans.
OLD = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId returnValue",
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": _COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_PLACE} value bytes memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_PLACE} syncType",
    "NVTX_EVENTS": "start end eventType rangeId text globalTid endGlobalTid textId domainId",
    "OSRT_API": "start end globalTid nameId returnValue nestingLevel",
    "CUDNN_EVENTS": "start end globalTid nameId",
    "TARGET_INFO_GPU": "id name",
    "PROCESSES": "globalPid pid name",
}
NEW = OLD | {
    "CUPTI_ACTIVITY_KIND_RUNTIME": OLD["CUPTI_ACTIVITY_KIND_RUNTIME"] + " eventClass callchainId",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_KERNEL} greenContextId graphNodeId graphId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_COPY} greenContextId graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_PLACE} graphId graphExecId",
    "CUDA_GRAPH_NODE_EVENTS": "start end globalTid nameId graphNodeId originalGraphNodeId",
    "MPI_COLLECTIVES_EVENTS": "start end globalTid textId commHandle size",
    "MPI_RANKS": "globalTid rank",
    "PROFILER_OVERHEAD": "start end globalTid nameId overheadType",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid",
    "DIAGNOSTIC_EVENT": "timestamp severity text globalPid",
    "META_DATA_EXPORT": "name value",
    "META_DATA_CAPTURE": "name value",
    "TARGET_INFO_SYSTEM_ENV": "name value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "ENUM_CUDA_MEM_KIND": "id name label",
    "ENUM_CUDA_MEMCPY_OPER": "id name label",
    "ENUM_CUPTI_SYNC_TYPE": "id name label",
    "ENUM_NSYS_EVENT_TYPE": "id name label",
}


def global_id(pid: int, thread: int = 0) -> int:
    """Return Nsight's number of a thread, or of a process."""
    return (1 << 48) + (pid << 24) + thread


class Export:
    """An export that is being written. Tables are made when they get their first row."""

    def __init__(self, path: Path, schema: dict[str, str] = NEW) -> None:
        self.path, self._schema = path, schema
        self._strings: dict[str, int] = {}
        self._rows: list[tuple[str, dict[str, Any]]] = []
        self.add("StringIds", id=0, value="[Unknown]")

    def add(self, table: str, **values: Any) -> Export:
        """Add a row; columns that the schema lacks are left out, others are null."""
        self._rows.append((table, values))
        return self

    def string(self, text: str) -> int:
        """Return the id of a string."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def call(self, name: str, start: int, end: int, correlation_id: int, **more: Any) -> Export:
        """Add a call of the CUDA runtime."""
        row = {"globalTid": global_id(PID, 1), "nameId": self.string(name), "eventClass": 0}
        row |= {"start": start, "end": end, "correlationId": correlation_id, **more}
        return self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **row)

    def kernel(self, name: str, start: int, end: int, correlation_id: int, **more: Any) -> Export:
        """Add a kernel on device 0."""
        names = {"demangledName": self.string(f"void {name}<int>(int*)")}
        row = names | {"shortName": self.string(name), **_activity(start, end, correlation_id)}
        row |= {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 64, "blockY": 1, "blockZ": 1}
        row |= {"registersPerThread": 32, "staticSharedMemory": 16, "dynamicSharedMemory": 0}
        return self.add("CUPTI_ACTIVITY_KIND_KERNEL", **row | more)

    def activity(
        self, table: str, start: int, end: int, correlation_id: int, **more: Any
    ) -> Export:
        """Add something else that device 0 did."""
        name = f"CUPTI_ACTIVITY_KIND_{table}"
        return self.add(name, **_activity(start, end, correlation_id) | more)

    def nvtx(self, text: str, start: int, end: int | None, **more: Any) -> Export:
        """Add a range that was pushed and popped."""
        row = {"globalTid": global_id(PID, 1), "text": text, "eventType": 59, "domainId": 0}
        return self.add("NVTX_EVENTS", **row | {"start": start, "end": end, **more})

    def domain(self, number: int, name: str) -> Export:
        """Name a domain."""
        return self.nvtx(name, 0, None, eventType=75, domainId=number)

    def write(self) -> Path:
        """Write the file."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for text, number in self._strings.items():
                self._rows.append(("StringIds", {"id": number, "value": text}))
            for table, values in self._rows:
                columns = self._schema[table].split()
                listed = ", ".join(f'"{column}"' for column in columns)
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({listed})")
                connection.execute(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
                    [values.get(column) for column in columns],
                )
        return self.path

    def read(self) -> Recording:
        """Write the file, and return what was recorded of its only process."""
        (recording,) = recordings(self.write())
        return recording


def recordings(path: Path) -> list[Recording]:
    """Import the recording of each process."""
    found = NsightSystems().read(Source(path))
    return [each for each in found if isinstance(each, Recording)]


def _activity(start: int, end: int, correlation_id: int) -> dict[str, Any]:
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": global_id(PID)}
    return {"start": start, "end": end, "correlationId": correlation_id, **place}
