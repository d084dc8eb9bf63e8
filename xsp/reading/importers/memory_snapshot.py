"""Reads what `torch.cuda.memory._dump_snapshot` wrote: who holds memory when most is held.

The file is a pickle. It is read as data: a name of a class or function in it is an error, so
that nothing in the file can run. Each line of the program that allocated is a region, from its
first to its last allocation; what was allocated before the history began is alive throughout.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

from xsp.allocator import UNKNOWN, MemoryHistory
from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.provider import concat_rows, span_rows
from xsp.reading.importers.reading import content
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.source import Source
from xsp.text import counted
from xsp.warning import TraceWarning

_TOOL = "PyTorch's memory snapshot"
_PROTOCOLS = tuple(bytes([0x80, version]) for version in range(2, 6))
_BEGINNING = 256  # bytes in which the keys of a snapshot stand
_ALLOCATED = "allocations"  # the operator in each line
_SINCE_2001 = 10**18  # ns
# What Python's unpickler raises of damaged bytes.
_DAMAGED = (
    pickle.UnpicklingError, EOFError, LookupError, AttributeError, TypeError, ValueError,
    OverflowError, MemoryError,
)  # fmt: skip


class MemorySnapshot:
    """Reads the state and the history of PyTorch's CUDA allocator."""

    name = "memory-snapshot"
    tool = "torch.cuda.memory._dump_snapshot"

    def recognizes(self, source: Source) -> bool:
        """Tell whether this is a pickle that begins with the keys of a snapshot."""
        head = source.head[:_BEGINNING]
        return head.startswith(_PROTOCOLS) and (b"segments" in head or b"device_traces" in head)

    def read(self, source: Source) -> Contents:
        """Return a recording in which each line that allocated has its memory.

        Raises:
            TraceFormatError: The file is damaged, holds anything but data, or no allocation.
        """
        whole, cut = content(source)
        if cut:
            raise TraceFormatError(f"{source.path} ends in the middle. Copy it again.")
        found = _data(whole, source)
        try:
            recording = _recording(MemoryHistory(found))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise TraceFormatError(
                f"{source.path} is no snapshot of PyTorch's allocator ({type(error).__name__}: "
                f"{error}). Write it with {self.tool}."
            ) from error
        if not recording.rows.height:
            raise TraceFormatError(
                f"{source.path} holds no allocation. Before the program allocates, call "
                "torch.cuda.memory._record_memory_history()."
            )
        return (recording,)


class _OnlyData(pickle.Unpickler):
    """Reads a pickle of dictionaries, lists, tuples, texts and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse what a pickle asks to be looked up, by which alone it can run anything."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _data(whole: bytes, source: Source) -> Any:
    try:
        return _OnlyData(io.BytesIO(whole)).load()
    except _DAMAGED as error:
        raise TraceFormatError(
            f"{source.path} is damaged, or holds more than data, which xsp does not load "
            f"({error}). Write it again."
        ) from error


def _recording(memory: MemoryHistory) -> Recording:
    """Return a region for each line, with its memory."""
    at = memory.peak()
    alive = memory.owners(at)
    times: dict[str, list[int]] = {line: [] for line in alive}
    allocated = Counter[str]()
    for change in memory.changes:
        if change.line is not None:
            times.setdefault(change.line, []).append(change.time_ns)
            allocated[change.line] += change.size
    begin = memory.changes[0].time_ns if memory.changes else 0
    lines = list(times)
    reaching = memory.changes[at - 1].line if at else None
    shared = {
        "start_ns": [min(times[line], default=begin) for line in lines],
        "end_ns": [max(times[line], default=begin) for line in lines],
        "thread": list(range(1, len(lines) + 1)),
    }
    numbers = {
        "attr.allocated_bytes": [allocated[line] for line in lines],
        "attr.freed_bytes": [0] * len(lines),
        "attr.alive_at_peak_bytes": [alive[line] for line in lines],
        "attr.reaches_peak": [line == reaching for line in lines],
    }
    regions = span_rows({"kind": Kind.REGION.value, "name": lines, **shared})
    ops = span_rows({"kind": Kind.OP.value, "name": [_ALLOCATED] * len(lines), **shared, **numbers})
    rows = concat_rows([regions, ops])
    return Recording(
        tool=_TOOL,
        rows=rows,
        name="memory snapshot",
        warnings=tuple(_warnings(memory, alive)),
        unix_ns=0 if begin > _SINCE_2001 else None,
        peak_bytes=alive.total(),
    )


def _warnings(memory: MemoryHistory, alive: Counter[str]) -> Iterator[TraceWarning]:
    if not memory.changes:
        yield TraceWarning(
            "no-history",
            "the snapshot has no history: shown is what was held when it was written. Call "
            "torch.cuda.memory._record_memory_history() before the program allocates.",
        )
    if memory.failures:
        yield TraceWarning(
            "out-of-memory",
            f"{counted(memory.failures, 'allocation')} failed because memory was full. See "
            "`xsp analyze FILE memory-peak`.",
        )
    if unknown := alive[UNKNOWN]:
        yield TraceWarning(
            "unknown-lines",
            f"{unknown:,} bytes at the peak have no line. Record stacks: "
            "torch.cuda.memory._record_memory_history(stacks='python').",
        )
