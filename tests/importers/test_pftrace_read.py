"""Perfetto's own format, as torch.profiler, rocprofv3, wprof and its own library write it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import chrome
import polars as pl
import pytest
from chrome import codes, launch, mark, module, op, tree
from packets import GPU, MAIN, PID, File, of_chrome, read, starts

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source
from xsp.reading.importers.perfetto import Perfetto

# Beginnings of XPlane files, whose planes have the tag of a packet: with an id, and without.
PLANES = (b"\n\x09\x08\x01\x12\x05/host", b"\n\x0b\x12\x05/host\x1a\x02\x08\x01")


def rows(found: Recording) -> list[tuple[Any, ...]]:
    """Return kind, name, start and end of all rows, in the order of time."""
    columns = ("kind", "name", "start_ns", "end_ns")
    return found.rows.select(*columns).sort("start_ns", "end_ns", "name").rows()


def events() -> list[dict[str, Any]]:
    """Return a step of training as torch.profiler records it, in its JSON."""
    return [
        mark("ProfilerStep#1", 0, 100),
        module("Net_0", 5, 50),
        module("Linear_0", 10, 30),
        op("aten::linear", 12, 20, **{"External id": 1, "Input Dims": [[4, 3], [], [2, 3]],
                                      "Input type": ["float"] * 3, "Sequence number": 7,
                                      "Fwd thread id": 0}),
        launch(41, 15, 3),
        chrome.kernel(41, 40, 20, "void gemm<float>(int)", grid=[8, 1, 1], block=[128, 1, 1]),
        launch(42, 20, 2, name="cudaMemcpyAsync"),
        chrome.event("gpu_memcpy", "Memcpy", 70, 5, pid=0, tid=7,
                     args={"device": 0, "stream": 7, "correlation": 42, "bytes": 4096}),
        op("autograd::engine::evaluate_function: AddmmBackward0", 60, 30, tid=chrome.OTHER,
           **{"Sequence number": 7, "Fwd thread id": 1}),
        mark("ProfilerStep#2", 100, 50),
        op("aten::add", 110, 10),
    ]  # fmt: skip


def test_torch_profiler_is_read_as_its_json_is(tmp_path: Path) -> None:
    found = read(of_chrome(events()).write(tmp_path))
    like = chrome.recording(tmp_path, events())
    assert found.tool == "torch.profiler"
    assert rows(found) == rows(like)
    assert found.roots.select("name", "start_ns", "end_ns").equals(
        like.roots.select("name", "start_ns", "end_ns")
    )
    for name in ("Linear", "aten::linear", "gemm"):
        told, expected = chrome.row(found, name), chrome.row(like, name)
        assert {k: v for k, v in told.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }
    assert tree(found) == tree(like)


def test_rules_of_the_validator_are_checked(tmp_path: Path) -> None:
    early = [op("aten::mm", 0, 50), launch(1, 10), chrome.kernel(1, 5, 20)]
    found = read(of_chrome(early).write(tmp_path))
    assert "kernels that begin before their launch: 1" in codes(found)["rules-broken"]


@pytest.mark.parametrize("interned", [False, True])
def test_rocprofv3(tmp_path: Path, interned: bool) -> None:
    file = File(interned=interned)
    file.track(GPU, name='STREAM [" 3 "] ', parent=PID)
    file.slice("hipLaunchKernel", 100, 130, category="hip_api", args={"corr_id": 5, "tid": 77})
    file.slice("aten::mm, seq = 4", 90, 200, category="marker_api", args={"tid": 77})
    file.slice("my phase", 80, 300, category="marker_api", args={"tid": 77})
    file.slice("ncclAllReduce", 220, 240, category="rccl_api", args={"tid": 77})
    args = {"corr_id": 5, "agent": "GPU-1", "stream_ID": 3, "VGPR_Count": 64}
    file.slice("gemm(float*)", 140, 180, GPU, category="kernel_dispatch", args=args)
    args = {"corr_id": 6, "dst_agent": "GPU-1", "stream_ID": 3, "copy_bytes": 8}
    file.slice("MEMORY_COPY_HOST_TO_DEVICE", 190, 195, GPU, category="memory_copy", args=args)
    found = read(file.write(tmp_path))
    assert found.tool == "rocprofv3"
    assert rows(found) == [
        ("region", "my phase", 80, 300),
        ("op", "aten::mm", 90, 200),
        ("launch", "hipLaunchKernel", 100, 130),
        ("kernel", "gemm", 140, 180),
        ("memcpy", "memcpy HtoD", 190, 195),
        ("call", "ncclAllReduce", 220, 240),
    ]
    gemm, copy = chrome.row(found, "gemm"), chrome.row(found, "memcpy HtoD")
    assert [gemm[key] for key in ("device", "stream", "correlation_id", "registers")] == [
        1,
        3,
        5,
        64,
    ]
    assert copy["transfer_bytes"] == 8
    assert set(found.rows["thread"].drop_nulls()) == {77}
    assert tree(found)[-1] == "my phase/ncclAllReduce"


def test_wprof_ties_kernels_to_calls_by_flows(tmp_path: Path) -> None:
    file = File()
    file.track(20, name="CUDA", parent=MAIN)
    file.track(GPU, name="Stream #7 (python 10)")
    file.slice("aten::mm", 90, 200, category="PYTORCH")
    call = file.slice("cudaLaunchKernel", 100, 110, 20, category="CUDA_API")
    args = {"device_id": 2, "stream_id": 7, "grid_x": 4, "grid_y": 2, "grid_z": 1}
    kernel = file.slice("gemm", 120, 150, GPU, category="CUDA_KERNEL", args=args)
    older = file.slice("relu", 160, 170, GPU, category="CUDA_KERNEL", args=args)
    for event in (call, kernel):
        event.flow_ids.append(PID << 32 | 9)
    older.terminating_flow_ids_old.append(PID << 32 | 10)
    file.slice("running", 0, 50, category="ONCPU")
    found = read(file.write(tmp_path))
    assert found.tool == "wprof"
    own = chrome.row(found, "gemm")
    assert (own["device"], own["stream"], own["grid"]) == (2, 7, [4, 2, 1])
    assert own["correlation_id"] == chrome.row(found, "cudaLaunchKernel")["correlation_id"]
    assert chrome.row(found, "relu")["correlation_id"] not in (None, own["correlation_id"])
    assert "1 oncpu" in codes(found)["not-understood"]
    assert "aten::mm/gemm" in tree(found)


def test_the_numbers_of_stages_tie_kernels_to_launches(tmp_path: Path) -> None:
    file = File()
    file.stages()
    starts(file.slice("cudaGraphLaunch", 10, 20, category="cuda_runtime"), 5, 6)
    file.slice("aten::mm", 0, 30, category="cpu_op")
    for number, start in ((5, 40), (6, 60), (7, 80)):
        told = {"shared_mem_static": 512, "shared_mem_dynamic": 16, "registers_per_thread": 32}
        file.stage(number, start, start + 10, name=f"k{number}", args=told, queue=17, gpu=1)
    file.stage(8, 40, 70, stage=4, name="forward")
    found = read(file.write(tmp_path))
    kernel = chrome.row(found, "k5")
    assert [kernel[key] for key in ("registers", "shared_bytes", "device", "stream")] == [
        32,
        528,
        1,
        20,
    ]
    ids = found.rows.filter(pl.col("kind") == "kernel").sort("start_ns")["correlation_id"].to_list()
    assert ids[0] == ids[1] == chrome.row(found, "cudaGraphLaunch")["correlation_id"]
    assert ids[2] is None
    assert "1 range of the host, repeated on a device" in codes(found)["left-out"]


def test_memory_of_instants(tmp_path: Path) -> None:
    file = File()
    file.slice("aten::empty", 0, 100, category="cpu_op")
    for at, size in ((10, 640), (50, -640)):
        args = {"Bytes": size, "Addr": 4096, "Device Type": 0, "Device Id": -1}
        file.event(3, at, name="[memory]", args=args)
    found = read(file.write(tmp_path))
    assert found.peak_bytes == 640
    assert chrome.row(found, "aten::empty")["allocated_bytes"] == 640


def test_slices_of_any_program_are_regions(tmp_path: Path) -> None:
    file = File()
    file.track(30, name="requests", parent=PID)
    file.slice("request", 0, 100, 30, category="http")
    file.slice("parse", 10, 20, 30)
    found = read(file.write(tmp_path))
    assert rows(found) == [("region", "request", 0, 100), ("region", "parse", 10, 20)]
    assert tree(found) == ["request", "request/parse"]


def test_processes_are_recordings_of_their_own(tmp_path: Path) -> None:
    file = File()
    file.track(20, pid=20, process="other")
    file.track(21, pid=20, tid=21, thread="main")
    file.slice("aten::mm", 0, 10, category="cpu_op")
    file.slice("aten::add", 5, 15, 21, category="cpu_op")
    found = Perfetto().read(Source(file.write(tmp_path)))
    told = [(each.name, rows(each)) for each in found if isinstance(each, Recording)]
    assert told == [("process 10", [("op", "aten::mm", 0, 10)]),
                    ("process 20", [("op", "aten::add", 5, 15)])]  # fmt: skip


def test_clocks_of_a_writer(tmp_path: Path) -> None:
    """Perfetto's library writes differences of times, in its own unit, from a snapshot on."""
    file = File()
    snapshot = file.packet(writer=2, sequence_flags=1, timestamp=5_000, timestamp_clock_id=6)
    for clock, at, unit in ((6, 5_000, 0), (64, 5, 1000), (1, 10**18, 0)):
        told = snapshot.clock_snapshot.clocks.add(clock_id=clock, timestamp=at)
        if unit:
            told.unit_multiplier_ns, told.is_incremental = unit, True
    defaults = snapshot.trace_packet_defaults
    defaults.timestamp_clock_id, defaults.track_event_defaults.track_uuid = 64, MAIN
    for kind, passed, name in ((1, 1, "outer"), (1, 2, "inner"), (2, 3, ""), (2, 4, "")):
        event = file.packet(writer=2, timestamp=passed, sequence_flags=2).track_event
        event.type, event.name = kind, name
    found = read(file.write(tmp_path))
    assert rows(found) == [("region", "outer", 6_000, 15_000), ("region", "inner", 8_000, 11_000)]
    assert found.unix_ns == 10**18 - 5_000


def test_numbers_of_texts_mean_something_until_they_are_cleared(tmp_path: Path) -> None:
    file = File()
    for at, name in ((0, "first"), (100, "second")):
        data = file.packet(sequence_flags=1).interned_data
        data.event_names.add(iid=3, name=name)
        data.event_categories.add(iid=1, name="cpu_op")
        event = file.event(1, at)
        event.name_iid = 3
        event.category_iids.append(1)
        file.event(2, at + 10)
    lost = file.event(1, 200)
    lost.name_iid = 77
    file.event(2, 210)
    found = read(file.write(tmp_path))
    assert [name for _, name, *_ in rows(found)] == ["first", "second", ""]
    assert "1 names that the file does not hold" in codes(found)["damaged"]


def test_older_slices_tell_their_duration(tmp_path: Path) -> None:
    file = File()
    event = file.packet(timestamp=7_000, sequence_flags=2).track_event
    event.track_uuid, event.name = MAIN, "old"
    event.legacy_event.phase, event.legacy_event.duration_us = ord("X"), 3
    assert rows(read(file.write(tmp_path))) == [("region", "old", 7_000, 10_000)]


def test_begins_before_their_ends_at_one_time(tmp_path: Path) -> None:
    """Where one slice ends and the next begins at once, all begins may stand before all ends."""
    file = File()
    for at, name in ((0, "first"), (10, "second"), (20, "third")):
        file.event(1, at, name=name)
    for at in (10, 20, 30):
        file.event(2, at)
    assert [row[1:] for row in rows(read(file.write(tmp_path)))] == [
        ("first", 0, 10), ("second", 10, 20), ("third", 20, 30)
    ]  # fmt: skip


def test_slices_without_an_end_last_as_long_as_the_recording(tmp_path: Path) -> None:
    file = File()
    file.event(2, 5)
    file.event(1, 10, name="outer")
    file.slice("inner", 20, 30)
    found = read(file.write(tmp_path))
    assert rows(found) == [("region", "outer", 10, 30), ("region", "inner", 20, 30)]
    assert "1 slice had not ended" in codes(found)["unended"]
    assert "1 ends of slices without a begin" in codes(found)["damaged"]


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    file = File()
    file.slice("work", 0, 10)
    file.packet().ftrace_events.cpu = 1
    file.event(4, 5, counter=1).counter_value = 3
    file.event(3, 5, name="mark")
    file.event(0, 5)
    file.packet().android_log.events.add(tid=1)
    said = codes(read(file.write(tmp_path)))["not-understood"]
    for what in (
        "1 bundles of the kernel's events (ftrace)",
        "1 values of counters",
        "1 instant",
        "1 events without a type",
        "1 packets with the field 39",
    ):
        assert what in said


def test_packed_packets_and_files(tmp_path: Path) -> None:
    file = File()
    file.slice("work", 0, 10)
    plain = read(file.write(tmp_path))
    packed = File()
    packed.packet().compressed_packets = zlib.compress(file.bytes())
    assert rows(read(packed.write(tmp_path))) == rows(plain)
    (tmp_path / "x.gz").write_bytes(gzip.compress(file.bytes()))
    assert Perfetto().recognizes(Source(tmp_path / "x.gz"))
    assert rows(read(tmp_path / "x.gz")) == rows(plain)
    packed.packet().zstd_compressed_packets = b"\x28\xb5\x2f\xfd"
    with pytest.raises(TraceFormatError, match="traceconv decompress_packets"):
        read(packed.write(tmp_path))


def test_nothing_to_read(tmp_path: Path) -> None:
    file = File()
    file.packet().ftrace_events.cpu = 1
    with pytest.raises(TraceFormatError, match=r"holds no slices of a program.*ftrace"):
        read(file.write(tmp_path))


def test_files_of_other_formats_are_not_recognized(tmp_path: Path) -> None:
    for content in (b'{"traceEvents": []}', b"\x0a", b"SQLite format 3\0", *PLANES):
        (tmp_path / "x").write_bytes(content)
        assert not Perfetto().recognizes(Source(tmp_path / "x"))


def test_any_beginning_of_a_file_is_read_or_refused(tmp_path: Path) -> None:
    content = of_chrome(events()).bytes()
    read_whole = rows(read(of_chrome(events()).write(tmp_path)))
    path = tmp_path / "cut.pftrace"
    for size in range(0, len(content), 197):
        path.write_bytes(content[:size])
        try:
            found = rows(read(path))
        except TraceFormatError:
            continue
        assert {name for _, name, *_ in found} <= {name for _, name, *_ in read_whole}


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    content = bytearray(of_chrome(events()).bytes())
    path = tmp_path / "damaged.pftrace"
    for at in range(0, len(content), 151):
        for bits in (0xFF, 0x07, 0x80):
            damaged = content.copy()
            damaged[at] ^= bits
            path.write_bytes(damaged)
            try:
                for found in Perfetto().read(Source(path)):
                    assert isinstance(found, Recording)
                    if at % 3 == 0:
                        chrome.trace(found)
            except TraceFormatError:
                continue
