"""Snapshots of PyTorch's CUDA allocator, as `torch.cuda.memory._dump_snapshot` pickles them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import xsp
from xsp.errors import TraceFormatError
from xsp.importers import Source, trace_of
from xsp.reading.importers.memory_snapshot import MemorySnapshot


def frames(line: int) -> list[dict[str, Any]]:
    """Return a stack: a function of PyTorch, below it the line of a program."""
    return [
        {"name": "linear", "filename": "/x/site-packages/torch/nn/functional.py", "line": 9},
        {"name": "forward", "filename": "/home/me/model.py", "line": line},
    ]


def entry(action: str, at: int, address: int, size: int, line: int = 0) -> dict[str, Any]:
    stack = frames(line) if line else []
    return {"action": action, "time_us": at, "addr": address, "size": size, "stream": 0,
            "frames": stack}  # fmt: skip


def snapshot(*entries: dict[str, Any], blocks: Any = ()) -> dict[str, Any]:
    held = [{"size": size, "state": "active_allocated", "address": address, "frames": frames(line)}
            for address, size, line in blocks]  # fmt: skip
    segment = {"device": 0, "address": 0, "total_size": 4096, "blocks": held}
    return {"segments": [segment], "device_traces": [list(entries)]}


def alive(tmp_path: Path, found: Any) -> dict[str, int]:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(found))
    assert MemorySnapshot().recognizes(Source(path))
    (recording,) = MemorySnapshot().read(Source(path))
    assert isinstance(recording, xsp.importers.Recording)
    table = xsp.analyses.memory_peak(trace_of(recording, "snapshot"))
    assert set(table["recorded"]) == {True}
    assert set(table["peak_bytes"]) == {recording.peak_bytes}
    return dict(table.select("part", "alive_bytes").iter_rows())


def test_the_peak_belongs_to_the_lines_whose_memory_is_alive_then(tmp_path: Path) -> None:
    found = snapshot(
        entry("alloc", 10, 100, 64, line=5),
        entry("alloc", 20, 200, 32, line=7),
        entry("segment_alloc", 20, 4096, 4096),
        entry("free_requested", 30, 100, 64),
        entry("free_completed", 31, 100, 64),
        entry("alloc", 40, 100, 80, line=9),
        entry("free_requested", 50, 200, 32),
        blocks=[(100, 80, 9), (500, 1000, 3)],
    )
    assert alive(tmp_path, found) == {
        "forward (model.py:3)": 1000,
        "forward (model.py:9)": 80,
        "forward (model.py:7)": 32,
    }


def test_without_a_history_what_is_held_counts(tmp_path: Path) -> None:
    assert alive(tmp_path, snapshot(blocks=[(1, 8, 3), (2, 8, 3)])) == {"forward (model.py:3)": 16}


def test_memory_of_before_that_the_history_frees(tmp_path: Path) -> None:
    found = snapshot(entry("alloc", 5, 300, 8, line=4), entry("free_requested", 10, 7, 256))
    assert alive(tmp_path, found) == {"before the history": 256, "forward (model.py:4)": 8}


class _Dangerous:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_nothing_in_a_snapshot_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [_Dangerous()], "device_traces": []}))
    with pytest.raises(TraceFormatError, match=r"more than data.*posix\.mkdir"):
        MemorySnapshot().read(Source(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"segments": 3}, "is no snapshot of PyTorch's allocator"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "is no snapshot"),
        ({"segments": [], "device_traces": []}, "holds no allocation"),
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path: Path, found: Any, said: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(found))
    with pytest.raises(TraceFormatError, match=said):
        MemorySnapshot().read(Source(path))


def test_a_snapshot_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    whole = pickle.dumps(snapshot(entry("alloc", 10, 100, 64, line=5)))
    for size in range(3, len(whole), 11):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceFormatError, match="is damaged"):
            MemorySnapshot().read(Source(path))


def test_failed_allocations_are_told(tmp_path: Path) -> None:
    failed = {"action": "oom", "time_us": 20, "device_free": 0, "size": 1 << 40, "frames": []}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(entry("alloc", 10, 100, 64, line=5), failed)))
    (recording,) = MemorySnapshot().read(Source(path))
    assert isinstance(recording, xsp.importers.Recording)
    assert [each.code for each in recording.warnings] == ["out-of-memory"]
    assert recording.rows.filter(pl.col("attr.reaches_peak")).height == 1
