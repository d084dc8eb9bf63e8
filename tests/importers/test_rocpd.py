"""rocpd databases made by the schema of rocprofv3, small and by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from placed import astray, checked_trace, children, codes

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source
from xsp.reading.importers.rocpd import Rocpd
from xsp.reading.importers.rpd import RocmProfileData

TABLES = {
    "string": "id string",
    "info_node": "id hostname",
    "info_process": "id nid pid command",
    "info_thread": "id tid",
    "info_agent": "id type type_index name product_name",
    "info_kernel_symbol": "id display_name kernel_name group_segment_size arch_vgpr_count "
    "accum_vgpr_count",
    "event": "id category_id stack_id extdata",
    "region": "id tid start end name_id event_id",
    "kernel_dispatch": "id agent_id kernel_id stream_id start end group_segment_size "
    "workgroup_size_x workgroup_size_y workgroup_size_z grid_size_x grid_size_y grid_size_z "
    "event_id",
    "memory_copy": "id start end name_id dst_agent_id src_agent_id size stream_id event_id",
    "sample": "id timestamp",
}
CPU, GPU = 1, 2


class Database:
    """A database that is put together row by row, of one process or of several."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def process(self, guid: str, pid: int = 70, shift: int = 0) -> None:
        """Add a process that launches a kernel in a marked range, and copies the result."""
        rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        texts = ["HIP_RUNTIME_API", "hipLaunchKernel", "MARKER_CORE_RANGE_API", "roctxRangePush",
                 "KERNEL_DISPATCH", "MEMORY_COPY", "MEMORY_COPY_DEVICE_TO_HOST", "RCCL_API",
                 "ncclAllReduce", "OMPT", "hipMemcpyAsync"]  # fmt: skip
        number = {text: at for at, text in enumerate(texts, 1)}
        rows["string"] = [(at, text) for text, at in number.items()]
        rows["info_node"] = [(1, "node7")]
        rows["info_process"] = [(1, 1, pid, "/usr/bin/python3 train.py --steps 5")]
        rows["info_thread"] = [(1, 71)]
        rows["info_agent"] = [(CPU, "CPU", 0, "EPYC", ""), (GPU, "GPU", 3, "gfx942", "MI300X")]
        rows["info_kernel_symbol"] = [(1, "void gemm<float>(int)", "_Z4gemm", 256, 32, 4)]
        events = [("MARKER_CORE_RANGE_API", 1, '{"message": "aten::mm, seq = 4"}'),
                  ("HIP_RUNTIME_API", 2, "{}"), ("KERNEL_DISPATCH", 2, "{}"),
                  ("HIP_RUNTIME_API", 3, "{}"), ("MEMORY_COPY", 3, "{}"),
                  ("RCCL_API", 4, "{}"), ("OMPT", 5, "{}")]  # fmt: skip
        rows["event"] = [
            (at, number[c], tie, extra) for at, (c, tie, extra) in enumerate(events, 1)
        ]
        regions = [(0, 50, "roctxRangePush", 1), (10, 15, "hipLaunchKernel", 2),
                   (60, 70, "hipMemcpyAsync", 4), (80, 85, "ncclAllReduce", 6),
                   (90, 95, "ncclAllReduce", 7), (99, 90, "hipLaunchKernel", 2)]  # fmt: skip
        rows["region"] = [
            (at, 1, start + shift, end + shift, number[name], event)
            for at, (start, end, name, event) in enumerate(regions, 1)
        ]
        times = (20 + shift, 40 + shift)
        rows["kernel_dispatch"] = [(1, GPU, 1, 5, *times, 320, 64, 1, 1, 129, 2, 1, 3)]
        way = number["MEMORY_COPY_DEVICE_TO_HOST"]
        rows["memory_copy"] = [(1, 72 + shift, 78 + shift, way, CPU, GPU, 4096, 5, 5)]
        rows["sample"] = [(1, 5), (2, 6)]
        with closing(sqlite3.connect(self.path)) as file, file:
            for name, columns in TABLES.items():
                names = ", ".join(f'"{column}"' for column in columns.split())
                file.execute(f'CREATE TABLE "rocpd_{name}_{guid}" ({names})')
                marks = ", ".join("?" * len(columns.split()))
                insert = f'INSERT INTO "rocpd_{name}_{guid}" VALUES ({marks})'
                file.executemany(insert, rows[name])


def read(path: Path) -> list[Recording]:
    """Import a database."""
    source = Source(path)
    assert Rocpd().recognizes(source)
    assert not RocmProfileData().recognizes(source)
    found = Rocpd().read(source)
    assert all(isinstance(each, Recording) for each in found)
    return [each for each in found if isinstance(each, Recording)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "results.db")


def test_kernels_and_copies_lie_with_the_calls_that_asked_for_them(database: Database) -> None:
    database.process("0000c0de")
    (found,) = read(database.path)
    trace = checked_trace(found)
    assert astray(trace) == 0
    assert children(trace, "aten::mm") == ["hipLaunchKernel", "gemm"]
    kernel = found.rows.filter(found.rows["name"] == "gemm").to_dicts()[0]
    assert (kernel["device"], kernel["stream"]) == (3, 5)
    assert kernel["attr.grid"] == [3, 2, 1]
    assert kernel["attr.block"] == [64, 1, 1]
    assert kernel["attr.registers"] == 36
    assert (kernel["attr.static_shared_bytes"], kernel["attr.dynamic_shared_bytes"]) == (256, 64)
    copy = found.rows.filter(found.rows["kind"] == "memcpy").to_dicts()[0]
    assert (copy["name"], copy["attr.transfer_bytes"], copy["device"]) == ("memcpy DtoH", 4096, 3)


def test_the_file_says_what_ran_where(database: Database) -> None:
    database.process("0000c0de")
    (found,) = read(database.path)
    assert (found.name, found.host) == ("train.py", "node7")
    assert found.environment["devices"] == ["MI300X"]


def test_what_is_not_shown_is_counted(database: Database) -> None:
    database.process("0000c0de")
    said = codes(read(database.path)[0])
    assert said["damaged"] == "damaged and left out: 1 regions"
    assert "2 samples" in said["not-understood"]
    assert "1 regions of OMPT" in said["not-understood"]


def test_each_process_is_a_recording(database: Database) -> None:
    database.process("0000c0de", pid=70)
    database.process("0001c0de", pid=71, shift=1000)
    found = read(database.path)
    assert [each.rows["start_ns"].min() for each in found] == [0, 1000]


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE rocpd_info_node_1 (id)")
    with pytest.raises(TraceFormatError, match="of a version that xsp does not know"):
        Rocpd().read(Source(path))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE rocpd_kernel_dispatch_1 (id)")
    with pytest.raises(TraceFormatError, match="damaged rocpd database: no such table"):
        Rocpd().read(Source(path))
