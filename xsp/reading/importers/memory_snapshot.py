"""Reads what `torch.cuda.memory._dump_snapshot` wrote: who holds memory when most is held.

The file is a pickle. It is read as data: a name of a class or function in it is an error, so
that nothing in the file can run. Each line of the program that allocated is a region, from its
first to its last allocation; what was allocated before the history began is alive throughout.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
_ALLOCATION, _RELEASE = "alloc", "free_requested"  # what the program does, not the allocator
_ALLOCATED = "allocations"  # the operator in each line
_UNKNOWN, _EARLIER = "unknown line", "before the history"
_LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/")
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
            recording = _recording(_Memory(found))
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


@dataclass(slots=True)
class _Change:
    """An allocation, or a release of what was allocated at an address."""

    time_ns: int
    key: tuple[int, int]  # device and address
    size: int
    line: str | None  # None: a release


class _Memory:
    """The memory of all devices."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        traces = enumerate(found.get("device_traces") or ())
        entries = [(device, entry) for device, trace in traces for entry in trace]
        self.changes = sorted(
            (
                _Change(
                    1000 * int(entry.get("time_us", 0)),
                    (device, int(entry["addr"])),
                    int(entry["size"]),
                    _line(entry) if entry["action"] == _ALLOCATION else None,
                )
                for device, entry in entries
                if entry["action"] in (_ALLOCATION, _RELEASE)
            ),
            key=lambda change: change.time_ns,
        )
        self.before = self._before(dict(_blocks(found)))
        self.failures = sum(entry["action"] == "oom" for _, entry in entries)

    def _before(self, blocks: Mapping[Any, tuple[int, str]]) -> dict[Any, tuple[int, str]]:
        """List the blocks held before the history: those that it frees, or never names."""
        known, found = set(), {}
        for change in self.changes:
            if change.line is not None:
                known.add(change.key)
            elif change.key not in known:
                found[change.key] = change.size, _EARLIER
                known.add(change.key)
        return found | {key: block for key, block in blocks.items() if key not in known}

    def alive(self, changes: int) -> dict[Any, tuple[int, str]]:
        """Return size and line of what is alive after so many changes."""
        alive = dict(self.before)
        for change in self.changes[:changes]:
            if change.line is None:
                alive.pop(change.key, None)
            else:
                alive[change.key] = change.size, change.line
        return alive

    def peak(self) -> int:
        """Return after how many changes most is held."""
        alive, held, most, at = dict(self.before), 0, 0, 0
        for number, change in enumerate(self.changes, 1):
            held -= alive.pop(change.key, (0, ""))[0]
            if change.line is not None:
                alive[change.key] = change.size, change.line
                held += change.size
            if held > most:
                most, at = held, number
        return at


def _recording(memory: _Memory) -> Recording:
    """Return a region for each line, with its memory."""
    at = memory.peak()
    alive = Counter[str]()
    for size, line in memory.alive(at).values():
        alive[line] += size
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


def _warnings(memory: _Memory, alive: Counter[str]) -> Iterator[TraceWarning]:
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
    if unknown := alive[_UNKNOWN]:
        yield TraceWarning(
            "unknown-lines",
            f"{unknown:,} bytes at the peak have no line. Record stacks: "
            "torch.cuda.memory._record_memory_history(stacks='python').",
        )


def _blocks(found: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], tuple[int, str]]]:
    """Yield what the program held when the snapshot was written."""
    for segment in found.get("segments") or ():
        address = int(segment["address"])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                key = int(segment.get("device", 0)), int(block.get("address", address))
                yield key, (int(block["size"]), _line(block))
            address += int(block["size"])


def _line(entry: Mapping[str, Any]) -> str:
    """Return the innermost line that allocated, outside of libraries if there is one."""
    frames = [each for each in entry.get("frames") or () if str(each["filename"]).endswith(".py")]
    own = [each for each in frames if not any(part in each["filename"] for part in _LIBRARIES)]
    for frame in (own or frames)[:1]:
        return f"{frame['name']} ({os.path.basename(frame['filename'])}:{frame['line']})"
    return _UNKNOWN
