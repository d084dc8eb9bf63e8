"""Reads the history of PyTorch's CUDA allocator: who holds memory when most is held.

It is for the importer of the files that `torch.cuda.memory._dump_snapshot` writes, and for the
provider, which reads the history after a block.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xsp.text import counted

UNKNOWN, _EARLIER = "unknown line", "before the history"
_ALLOCATION, _RELEASE = "alloc", "free_requested"  # what the program does, not the allocator
_LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/")
_OWNERS = 3  # that the sentence names


@dataclass(slots=True)
class Change:
    """An allocation, or a release of what was allocated at an address."""

    time_ns: int
    key: tuple[int, int]  # device and address
    size: int
    line: str | None  # None: a release


class MemoryHistory:
    """The allocations and releases of all devices, by time.

    Args:
        found: What `torch.cuda.memory._snapshot` returns, or its file holds.

    Attributes:
        changes: Allocations and releases.
        before: Size in bytes and line of what was held before the history, by device and address.
        failures: How many allocations failed because memory was full.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        traces = enumerate(found.get("device_traces") or ())
        entries = [(device, entry) for device, trace in traces for entry in trace]
        self.changes = sorted(
            (
                Change(
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

    def owners(self, changes: int) -> Counter[str]:
        """Return how many bytes of each line are alive after so many changes."""
        owned = Counter[str]()
        for size, line in self.alive(changes).values():
            owned[line] += size
        return owned


def peak_sentence(found: Mapping[str, Any]) -> str | None:
    """Return a sentence about the peak of memory and its largest owners; None without any memory.

    >>> stack = [{"name": "forward", "filename": "model.py", "line": 5}]
    >>> entry = {"action": "alloc", "time_us": 1, "addr": 8, "size": 1 << 21, "frames": stack}
    >>> peak_sentence({"device_traces": [[entry]]})
    'GPU memory was 2.0 MiB at its peak: 2.0 MiB of forward (model.py:5)'
    """
    memory = MemoryHistory(found)
    owned = memory.owners(memory.peak())
    if not owned.total():
        return None
    largest = ", ".join(
        f"{_mib(size)} of {line}" for line, size in owned.most_common(_OWNERS) if size
    )
    sentence = f"GPU memory was {_mib(owned.total())} at its peak: {largest}"
    if memory.failures:
        full = counted(memory.failures, "allocation")
        sentence = f"{full} failed because GPU memory was full. {sentence}"
    return sentence


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


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
    return UNKNOWN
