"""SQLite as rocmProfileData writes it, small and by hand, and a real file of PyTorch."""

from __future__ import annotations

import gzip
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psutil
import pytest
from placed import astray, checked_trace, children, codes, launched, real_file, sums_by_name

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source
from xsp.reading.importers.rpd import RocmProfileData

PID, THREAD = 1560, 1561
TABLES = {
    "rocpd_string": "id string",
    "rocpd_api": "id pid tid start end apiName_id args_id",
    "rocpd_op": "id gpuId queueId sequenceId completionSignal start end description_id opType_id",
    "rocpd_api_ops": "id api_id op_id",
    "rocpd_kernelapi": "api_ptr_id gridX gridY gridZ workgroupX workgroupY workgroupZ "
    "groupSegmentSize",
    "rocpd_copyapi": "api_ptr_id size kind",
    "ext_autogradapi": "api_ptr_id seq",
    "rocpd_monitor": "id deviceType monitorType value",
}
REAL = "rocm/pytorch.rpd.gz"


class Tracer:
    """A file that is put together row by row; calls and operations are numbered from 1."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._texts: dict[str, int] = {}

    def text(self, value: str) -> int:
        """Return the number of a text."""
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.rows["rocpd_string"].append((self._texts[value], value))
        return self._texts[value]

    def call(self, name: str, start: Any, end: Any, args: str = "", *, pid: int = PID) -> int:
        """Add a call, and return its number."""
        number = len(self.rows["rocpd_api"]) + 1
        texts = self.text(name), self.text(args)
        self.rows["rocpd_api"].append((number, pid, THREAD, start, end, *texts))
        return number

    def op(self, sort: str, start: Any, end: Any, name: str = "", *, call: int | None) -> int:
        """Add what a device did, and which call asked for it."""
        number = len(self.rows["rocpd_op"]) + 1
        texts = self.text(name), self.text(sort)
        self.rows["rocpd_op"].append((number, 2, 4, 0, "", start, end, *texts))
        if call is not None:
            self.rows["rocpd_api_ops"].append((number, call, number))
        return number

    def written(self, folder: Path, name: str = "trace.rpd") -> Source:
        """Write the file."""
        path = folder / name
        with closing(sqlite3.connect(path)) as file, file:
            for table, columns in TABLES.items():
                quoted = ", ".join(f'"{column}"' for column in columns.split())
                file.execute(f'CREATE TABLE "{table}" ({quoted})')
                marks = ", ".join("?" * len(columns.split()))
                file.executemany(f'INSERT INTO "{table}" VALUES ({marks})', self.rows[table])
        return Source(path)

    def read(self, folder: Path) -> Recording:
        """Import the file."""
        source = self.written(folder)
        assert RocmProfileData().recognizes(source)
        (recording,) = RocmProfileData().read(source)
        assert isinstance(recording, Recording)
        return recording


def program() -> Tracer:
    """Return a program with an operator that launches a kernel and a copy."""
    tracer = Tracer()
    tracer.call("UserMarker", 0, 100, "generate")
    tracer.call("UserMarker", 10, 50, "aten::mm")
    launch = tracer.call("hipLaunchKernel", 20, 25)
    tracer.op("KernelExecution", 40, 60, "void blas::gemm<float>(int)", call=launch)
    copy = tracer.call("hipMemcpyAsync_spt", 30, 35)
    tracer.op("CopyHostToDevice", 60, 70, call=copy)
    tracer.rows["rocpd_kernelapi"].append((launch, 3, 2, 1, 256, 1, 1, 64))
    tracer.rows["rocpd_copyapi"].append((copy, 4096, 1))
    return tracer


def of(recording: Recording, name: str) -> dict[str, Any]:
    """Return the row of a name."""
    (row,) = recording.rows.filter(pl.col("name") == name).to_dicts()
    return row


def test_kernels_and_copies_lie_with_their_calls(tmp_path: Path) -> None:
    trace = checked_trace(program().read(tmp_path))
    assert children(trace, "generate") == ["aten::mm"]
    assert children(trace, "aten::mm") == [
        "hipLaunchKernel",
        "gemm",
        "hipMemcpyAsync",
        "memcpy HtoD",
    ]
    assert astray(trace) == 0


def test_ranges_are_operators_or_the_users_own(tmp_path: Path) -> None:
    tracer = program()
    marked = tracer.call("UserMarker", 60, 70, "detach_")
    tracer.rows["ext_autogradapi"].append((marked, 288))
    tracer.call("UserMarker", 80, 90, "vllm._C::silu_and_mul, seq = 5")
    tracer.call("run_to_completion", 0, 100)
    recording = tracer.read(tmp_path)
    found = {row["name"]: (row["kind"], row["sequence"]) for row in recording.rows.to_dicts()}
    assert found["generate"] == found["run_to_completion"] == ("region", None)
    assert found["aten::mm"] == ("op", None)
    assert found["detach_"] == ("op", 288)
    assert found["vllm._C::silu_and_mul"] == ("op", 5)


def test_steps_of_pytorch_are_roots(tmp_path: Path) -> None:
    tracer = program()
    tracer.call("UserMarker", 0, 100, "ProfilerStep#4")
    assert tracer.read(tmp_path).roots["name"].to_list() == ["ProfilerStep#4"]


def test_a_graph_holds_what_its_launch_ran(tmp_path: Path) -> None:
    tracer = Tracer()
    tracer.call("UserMarker", 0, 50, "decode")
    graph = tracer.call("hipGraphLaunch", 10, 20, "graphExec = 0x2a | stream = 0x0")
    for number in range(3):
        tracer.op("Task", 30 + number, 31 + number, f"k{number}", call=graph)
    tracer.op("CopyDeviceToDevice", 40, 41, call=graph)
    recording = tracer.read(tmp_path)
    kernels = recording.rows.filter(pl.col("device").is_not_null())
    assert kernels["attr.graph"].to_list() == [42] * 4
    assert children(checked_trace(recording), "hipGraphLaunch") == ["k0", "k1", "k2", "memcpy DtoD"]


def test_what_is_not_understood_is_counted_by_name(tmp_path: Path) -> None:
    tracer = program()
    tracer.op("Barrier", 1, 2, call=None)
    tracer.rows["rocpd_monitor"] += [(1, "gpu", "sclk", "134"), (2, "gpu", "sclk", "247")]
    tracer.call("ApiTable::writeRows", 1, 2, "count=4096")
    found = codes(tracer.read(tmp_path))
    assert "1 operations Barrier" in found["not-understood"]
    assert "2 rows of rocpd_monitor" in found["not-understood"]
    assert "1 range" in found["own-left-out"]


@pytest.mark.parametrize(
    ("start", "end"),
    [(50, 40), (None, 40), (1, None), (float("nan"), 2), ("abc", 2), (1.5, 2), (b"\xff", 2)],
)
def test_rows_with_damaged_times_are_counted(tmp_path: Path, start: Any, end: Any) -> None:
    tracer = program()
    tracer.call("hipFree", start, end)
    tracer.op("KernelExecution", start, end, "k", call=1)
    recording = tracer.read(tmp_path)
    assert recording.rows.height == 6
    assert "1 calls" in codes(recording)["damaged"]
    assert "1 operations of devices" in codes(recording)["damaged"]


def test_tables_that_are_missing_take_only_their_attributes(tmp_path: Path) -> None:
    source = program().written(tmp_path)
    with closing(sqlite3.connect(source.path)) as file, file:
        for table in ("rocpd_kernelapi", "rocpd_copyapi", "ext_autogradapi", "rocpd_api_ops"):
            file.execute(f"DROP TABLE {table}")
    (recording,) = RocmProfileData().read(Source(source.path))
    assert isinstance(recording, Recording)
    kernel = of(recording, "gemm")
    assert (kernel["attr.grid"], kernel["correlation_id"]) == (None, None)


def test_a_file_larger_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = program().written(tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    with pytest.raises(TraceFormatError, match="too large for the memory"):
        RocmProfileData().read(source)


def test_hostile_texts_are_read(tmp_path: Path) -> None:
    tracer = program()
    tracer.call("UserMarker", 1, 2, "\x1b[2J\n'; DROP TABLE rocpd_api; --")
    tracer.rows["rocpd_string"].append((99, b"\xff\xfe"))
    tracer.rows["rocpd_api"].append((98, PID, THREAD, 3, 4, 99, 99))
    assert tracer.read(tmp_path).rows.height == 8


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    tracer = program()
    for number in range(3000):
        tracer.call("hipFree", number, number + 1)
    path = tracer.written(tmp_path).path
    path.write_bytes(path.read_bytes()[:70_000])
    assert RocmProfileData().recognizes(Source(path))
    with pytest.raises(TraceFormatError, match="damaged file of rocmProfileData"):
        RocmProfileData().read(Source(path))


def test_gzip_with_a_wrong_checksum_is_an_error(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(program().written(tmp_path).path.read_bytes()))
    packed[-8] ^= 0xFF
    path = tmp_path / "packed.rpd.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceFormatError, match="damaged"):
        RocmProfileData().read(Source(path))


@pytest.mark.parametrize("content", [b"", b"rocpd_api", b"SQLite format 3", b"{}"])
def test_other_files_are_not_recognized(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert not RocmProfileData().recognizes(Source(path))


def test_the_other_tool_of_that_name_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE rocpd_kernel_dispatch_0a1b (id)")
    with pytest.raises(TraceFormatError, match="--output-format json"):
        RocmProfileData().read(Source(path))


@pytest.fixture
def real(tmp_path: Path) -> Path:
    path = tmp_path / "real.rpd"
    with gzip.open(real_file(REAL)) as file:
        path.write_bytes(file.read())
    return path


def slow_sums(path: Path, sorts: str) -> dict[str, tuple[int, int]]:
    """Return count and summed ns of operations of some sorts, by name."""
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    with closing(sqlite3.connect(path)) as file:
        found = file.execute(
            "SELECT d.string, o.end - o.start FROM rocpd_op o "
            "JOIN rocpd_string d ON d.id = o.description_id "
            f"JOIN rocpd_string t ON t.id = o.opType_id WHERE t.string IN ({sorts})"
        )
        for name, time in found:
            sums[name] = sums[name][0] + 1, sums[name][1] + time
    return dict(sums)


def test_kernels_of_a_real_file_are_all_there(real: Path) -> None:
    (recording,) = RocmProfileData().read(Source(real))
    assert isinstance(recording, Recording)
    expected = slow_sums(real, "'KernelExecution', 'Task'")
    found = sums_by_name(recording, "kernel")
    assert sorted(found.values()) == sorted(expected.values())
    assert sum(count for count, _ in found.values()) == 1228 + 7720
    ((copies, time),) = slow_sums(
        real, "'CopyDeviceToHost', 'CopyHostToDevice', 'CopyDeviceToDevice'"
    ).values()
    assert sum(count for count, _ in sums_by_name(recording, "memcpy").values()) == copies
    assert sum(spent for _, spent in sums_by_name(recording, "memcpy").values()) == time


def test_device_rows_of_a_real_file_lie_with_their_calls(real: Path) -> None:
    (recording,) = RocmProfileData().read(Source(real))
    assert isinstance(recording, Recording)
    trace = checked_trace(recording)
    assert launched(trace) == 10_124
    assert astray(trace) == 0
    assert trace.spans.filter(pl.col("name") == "hipGraphLaunch").height == 20
