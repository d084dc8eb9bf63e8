"""Nsight Systems' files that are damaged, empty or another program's."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from nsight import Export, global_id, recordings

import xsp
from xsp.errors import TraceFormatError
from xsp.importers import Source
from xsp.reading.importers.nsys import NsightSystems


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


def recognized(path: Path) -> bool:
    return NsightSystems().recognizes(Source(path))


@pytest.mark.parametrize(
    "tables",
    [
        (),
        ("moz_places",),
        ("StringIds",),
        ("rocpd_api", "rocpd_op", "rocpd_string"),
        ("StringTable", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"),  # nvprof's
    ],
)
def test_sqlite_file_of_another_program_is_not_recognized(
    tmp_path: Path, tables: tuple[str, ...]
) -> None:
    path = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")  # so that there is a file without tables
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (id, value)")
    assert not recognized(path)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"{}", b"\x1f\x8b\x08\x00"])
def test_other_files_are_not_recognized(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    assert not recognized(path)


def test_damaged_pages_are_an_error_that_names_the_file(export: Export) -> None:
    for number in range(2000):
        export.call("cudaLaunchKernel", number, number + 1, number)
    path = export.write()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : -4096] = b"\xff" * (len(content) // 2 - 4096)
    path.write_bytes(content)
    assert recognized(path)
    with pytest.raises(TraceFormatError, match=r"report\.sqlite is damaged.*export .* again"):
        recordings(path)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.99])
def test_file_that_was_cut_short_is_an_error(export: Export, kept: float) -> None:
    for number in range(2000):
        export.call("cudaLaunchKernel", number, number + 1, number)
    path = export.write()
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(TraceFormatError, match="damaged"):
        recordings(path)


def test_file_that_needs_more_memory_than_there_is_is_refused(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        export.call("cudaFree", number, number + 1, number)
    path = export.write()
    for available, refused in ((14_999, True), (15_000, False)):
        memory = SimpleNamespace(available=available)
        monkeypatch.setattr("psutil.virtual_memory", lambda memory=memory: memory)
        expected = pytest.raises(TraceFormatError, match="10 events") if refused else nullcontext()
        with expected:
            recordings(path)


def test_export_without_spans_is_an_error_that_says_what_to_record(export: Export) -> None:
    path = export.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2025.1").write()
    assert recognized(path)
    with pytest.raises(TraceFormatError, match=r"no calls, ranges or kernels: .*--trace"):
        recordings(path)


@pytest.mark.parametrize(
    ("start", "end"), [(40, 30), (None, 30), (30, None), (0, 0), ("soon", 30), (30, 2**62)]
)
def test_rows_with_damaged_times_are_left_out_and_counted(
    export: Export, start: int | None, end: int | None
) -> None:
    export.call("cudaLaunchKernel", 10, 20, 1).kernel("gemm", 30, 40, 1)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, globalPid=global_id(4242))
    recording = export.read()
    assert recording.rows["name"].to_list() == ["cudaLaunchKernel", "gemm"]
    (warning,) = recording.warnings
    assert warning.code == "damaged"
    assert warning.message.startswith("1 row of CUPTI_ACTIVITY_KIND_KERNEL ")


def test_names_that_the_file_lacks_are_counted(export: Export) -> None:
    export.call("cudaFree", 10, 20, 1, nameId=77).nvtx("forward", 1, 90)
    export.kernel("gemm", 30, 40, 1, shortName=78, demangledName=None)
    export.kernel("gemm", 50, 60, 1, shortName=79)
    recording = export.read()
    assert recording.rows["name"].to_list() == [
        "forward",
        "unnamed",
        "unnamed",
        "void gemm<int>(int*)",
    ]
    (warning,) = recording.warnings
    assert (warning.code, warning.message) == ("unnamed", "the file lacks the names of 2 spans")


def test_nulls_wherever_they_may_be(export: Export) -> None:
    nothing = {"globalPid": None, "contextId": None, "streamId": None, "correlationId": None}
    export.kernel("gemm", 30, 40, 0, **nothing, gridX=None, registersPerThread=None)
    export.call("cudaFree", 10, 20, 0, globalTid=None, correlationId=None)
    export.activity("MEMCPY", 50, 60, 0, **nothing)
    export.nvtx("forward", 1, 90, domainId=None, eventType=None)
    recording = export.read()
    assert recording.rows.select("kind", "name", "correlation_id", "stream").rows() == [
        ("launch", "cudaFree", None, None),
        ("kernel", "gemm", None, None),
        ("memcpy", "memcpy unknown", None, None),
    ]
    assert xsp.read(export.path).spans.height == 4


@pytest.mark.parametrize("name", ['"; DROP TABLE x; --', "a\nb", "\x1b[31mred", "é" * 10_000, ""])
def test_hostile_names_stay_names(export: Export, name: str) -> None:
    export.nvtx(name, 1, 90).kernel(name, 30, 40, 0)
    path = export.write()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE "a ""b"" c" (x)')
        connection.execute('INSERT INTO "a ""b"" c" VALUES (1)')
    (recording,) = recordings(path)
    assert recording.rows["name"].to_list() == [name, name]
    assert '1 row of a "b" c' in recording.warnings[0].message
    xsp.read(path).tree()


def test_a_packed_file_whose_checksum_is_wrong_is_an_error_that_names_the_file(
    export: Export,
) -> None:
    path = export.call("cudaFree", 10, 20, 1).write()
    packed = bytearray(gzip.compress(path.read_bytes()))
    packed[-8] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(TraceFormatError, match=path.name):
        xsp.read(path)
