"""JSON as rocprofv3 writes it, small and by hand, and a real file of a training."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from placed import astray, checked_trace, children, codes, real_file, sums_by_name

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source
from xsp.reading.importers.rocprofv3 import RocProf

CPU, GPU, OTHER_GPU = 100, 101, 102  # handles of agents
KINDS = ("NONE", "HIP_RUNTIME_API", "KERNEL_DISPATCH", "MEMORY_COPY", "MARKER", "RCCL_API")
OPERATIONS = {
    "HIP_RUNTIME_API": [
        "hipLaunchKernel",
        "hipGetDevicePropertiesR0600",
        "hipMemcpyAsync",
        "hipGraphLaunch",
    ],
    "MEMORY_COPY": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"],
    "MARKER": ["roctxMarkA", "roctxThreadRangeA", "roctxProfilerPause"],
    "RCCL_API": ["ncclAllReduce"],
}
REAL = "rocm/gfx950-rocprofv3.json.gz"


def timed(kind: str, operation: int, start: Any, end: Any, *, id: int, thread: int = 9) -> Any:
    """Return a record; `id` is its correlation id."""
    return {
        "size": 64,
        "kind": KINDS.index(kind),
        "operation": operation,
        "thread_id": thread,
        "correlation_id": {"internal": id, "external": 0},
        "start_timestamp": start,
        "end_timestamp": end,
    }


def dispatch(kernel: int, start: Any, end: Any, *, id: int, agent: int = GPU) -> Any:
    """Return the dispatch of a kernel of 600 threads in blocks of 256."""
    return timed("KERNEL_DISPATCH", 2, start, end, id=id) | {
        "dispatch_info": {
            "agent_id": {"handle": agent},
            "queue_id": {"handle": 3},
            "kernel_id": kernel,
            "dispatch_id": id,
            "group_segment_size": 96,
            "workgroup_size": {"x": 256, "y": 1, "z": 1},
            "grid_size": {"x": 600, "y": 2, "z": 1},
        },
        "stream_id": {"handle": 5},
    }


def process(**records: list[Any]) -> dict[str, Any]:
    """Return a process with these lists of records."""
    return {
        "metadata": {
            "pid": 9,
            "command": ["/usr/bin/python3", "-u", "/srv/train.py"],
            "node": {"hostname": "node3"},
        },
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "name": "EPYC"},
            {"id": {"handle": GPU}, "type": 2, "product_name": "MI300X", "gpu_index": 0},
            {"id": {"handle": OTHER_GPU}, "type": 2, "name": "gfx942", "gpu_index": 1},
        ],
        "counters": [{"id": {"handle": 70}, "name": "SQ_WAVES"}],
        "strings": {
            "buffer_records": [
                {"kind": kind, "operations": OPERATIONS.get(kind, [])} for kind in KINDS
            ],
            "marker_api": [
                {"key": 40, "value": "ProfilerStep#0"},
                {"key": 41, "value": "aten::mm, seq = 12"},
                {"key": 42, "value": "a mark"},
                {"key": 43, "value": "loading"},
            ],
        },
        "kernel_symbols": [
            {
                "size": 8,
                "kernel_id": 8,
                "kernel_name": "_Z4gemmIfEvi",
                "demangled_kernel_name": "void blas::gemm<float>(int)",
                "group_segment_size": 32,
                "arch_vgpr_count": 24,
                "accum_vgpr_count": 8,
            },
            {"size": 8, "kernel_id": 9, "demangled_kernel_name": "__amd_rocclr_copyBuffer.kd"},
        ],
        "callback_records": {"counter_collection": records.pop("counter_collection", [])},
        "buffer_records": records,
    }


def training() -> dict[str, Any]:
    """Return a process that launches a kernel and a copy in an operator, in a step."""
    copy = timed("MEMORY_COPY", 1, 70, 75, id=2) | {
        "src_agent_id": {"handle": CPU},
        "dst_agent_id": {"handle": OTHER_GPU},
        "bytes": 4096,
        "stream_id": {"handle": 6},
    }
    return process(
        hip_api=[
            timed("HIP_RUNTIME_API", 0, 20, 25, id=1),
            timed("HIP_RUNTIME_API", 2, 30, 35, id=2),
            timed("HIP_RUNTIME_API", 1, 60, 65, id=3),
        ],
        kernel_dispatch=[dispatch(8, 40, 60, id=1)],
        memory_copy=[copy],
        marker_api=[
            timed("MARKER", 1, 0, 100, id=40),
            timed("MARKER", 1, 10, 50, id=41),
            timed("MARKER", 0, 12, 12, id=42),
            timed("MARKER", 2, 13, 14, id=99),
        ],
    )


def written(folder: Path, *processes: Any) -> Source:
    """Write a file of processes, and return it."""
    path = folder / "results.json"
    text = json.dumps({"rocprofiler-sdk-tool": processes}, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    return Source(path)


def read(folder: Path, *processes: Any) -> Recording:
    """Import a file with one process."""
    source = written(folder, *processes)
    assert RocProf().recognizes(source)
    (recording,) = RocProf().read(source)
    assert isinstance(recording, Recording)
    return recording


def of(recording: Recording, name: str) -> dict[str, Any]:
    """Return the row of a name."""
    (row,) = recording.rows.filter(pl.col("name") == name).to_dicts()
    return row


def test_kernels_and_copies_lie_with_their_calls(tmp_path: Path) -> None:
    trace = checked_trace(read(tmp_path, training()))
    assert children(trace, "aten::mm") == [
        "hipLaunchKernel",
        "gemm",
        "hipMemcpyAsync",
        "memcpy HtoD",
    ]
    assert astray(trace) == 0


def test_a_graph_holds_what_its_launch_ran(tmp_path: Path) -> None:
    told = process(
        hip_api=[timed("HIP_RUNTIME_API", 3, 0, 5, id=1)],
        kernel_dispatch=[dispatch(8, 10, 20, id=1), dispatch(9, 20, 30, id=1)],
    )
    trace = checked_trace(read(tmp_path, told))
    assert children(trace, "hipGraphLaunch") == ["gemm", "__amd_rocclr_copyBuffer"]


def test_steps_of_pytorch_are_roots(tmp_path: Path) -> None:
    recording = read(tmp_path, training())
    assert recording.roots.select("name", "start_ns", "end_ns").rows() == [
        ("ProfilerStep#0", 0, 100)
    ]


def test_hardware_counters_are_attributes_summed_over_instances(tmp_path: Path) -> None:
    counted = {
        "dispatch_data": dispatch(8, 1, 2, id=6),
        "records": [{"counter_id": {"handle": 70}, "value": value} for value in (3.0, 4)]
        + [{"counter_id": {"handle": 71}, "value": 1}],
    }
    dispatches = [dispatch(8, 1, 2, id=6), dispatch(8, 3, 4, id=7)]
    recording = read(tmp_path, process(kernel_dispatch=dispatches, counter_collection=[counted]))
    assert recording.rows["attr.SQ_WAVES"].to_list() == [7.0, None]
    assert "1 values of counters without a name" in codes(recording)["not-understood"]


def test_what_is_not_read_is_counted_by_name(tmp_path: Path) -> None:
    told = training()
    told["buffer_records"]["scratch_memory"] = [{"size": 1}] * 3
    told["buffer_records"]["kfd_queue"] = [{"size": 1}]
    found = codes(read(tmp_path, told))
    assert "3 scratch_memory" in found["not-understood"]
    assert "1 kfd_queue" in found["not-understood"]
    assert "1 marker_api roctxProfilerPause" in found["not-understood"]
    assert "1 roctx" in found["marks-left-out"]


@pytest.mark.parametrize(
    ("start", "end"), [(50, 40), (None, 40), (1.5, 2), (-3, 2), (1, 1 << 63), (1 << 64, 1 << 65)]
)
def test_records_with_damaged_times_are_counted(tmp_path: Path, start: Any, end: Any) -> None:
    told = process(kernel_dispatch=[dispatch(8, 1, 2, id=1), dispatch(8, start, end, id=2)])
    recording = read(tmp_path, told)
    assert recording.rows.height == 1
    assert "1 kernel_dispatch" in codes(recording)["damaged"]


def test_calls_of_one_id_keep_what_each_launched(tmp_path: Path) -> None:
    told = process(
        marker_api=[timed("MARKER", 1, 0, 100, id=43), timed("MARKER", 1, 100, 200, id=41)],
        hip_api=[timed("HIP_RUNTIME_API", 0, at, at + 5, id=7) for at in (110, 10)],
        kernel_dispatch=[dispatch(8, 120, 130, id=7), dispatch(9, 20, 30, id=7)],
    )
    recording = read(tmp_path, told)
    assert "1 call share a correlation id" in codes(recording)["repeated-id"]
    trace = checked_trace(recording)
    assert children(trace, "loading") == ["hipLaunchKernel", "__amd_rocclr_copyBuffer"]
    assert children(trace, "aten::mm") == ["hipLaunchKernel", "gemm"]
    assert trace.spans["correlation_id"].drop_nulls().n_unique() == 2


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    source = written(tmp_path, training())
    source.path.write_bytes(source.path.read_bytes().replace(b"blas::gemm", b"\xff\xfe::gemm"))
    (recording,) = RocProf().read(Source(source.path))
    assert isinstance(recording, Recording)
    assert of(recording, "gemm")["attr.full_name"] == "void \ufffd\ufffd::gemm<float>(int)"


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_file_that_is_cut_short_whole_records_are_read(tmp_path: Path, packed: bool) -> None:
    many = [dispatch(8, number, number + 1, id=number) for number in range(500)]
    content = written(tmp_path, process(kernel_dispatch=many)).path.read_bytes()
    content = gzip.compress(content)[:-900] if packed else content[: -len(content) // 4]
    path = tmp_path / "cut.json"
    path.write_bytes(content)
    (recording,) = RocProf().read(Source(path))
    assert isinstance(recording, Recording)
    assert 100 < recording.rows.height < 500
    assert "cut-short" in codes(recording)


@pytest.mark.parametrize(
    "content", ['{"rocprofiler-sdk-tool":[{"metadata":{"pid', '{"rocprofiler-sdk-tool": NaN}']
)
def test_a_file_of_which_nothing_is_whole_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    assert RocProf().recognizes(Source(path))
    with pytest.raises(TraceFormatError, match="damaged JSON"):
        RocProf().read(Source(path))


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"traceEvents": []}', '[{"rocprofiler-sdk-tool": 1}]', '"rocprofiler-sdk-tool"'],
)
def test_other_files_are_not_recognized(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    assert not RocProf().recognizes(Source(path))


def slow_sums(path: Path) -> dict[str, tuple[int, int]]:
    """Return count and summed ns of the dispatches of a file, by name."""
    with gzip.open(path) as file:
        (told,) = json.load(file)["rocprofiler-sdk-tool"]
    names = {each["kernel_id"]: each["demangled_kernel_name"] for each in told["kernel_symbols"]}
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for each in told["buffer_records"]["kernel_dispatch"]:
        name = names[each["dispatch_info"]["kernel_id"]].removesuffix(".kd")
        count, time = sums[name]
        sums[name] = count + 1, time + each["end_timestamp"] - each["start_timestamp"]
    return dict(sums)


def test_dispatches_of_a_real_file_are_all_there() -> None:
    path = real_file(REAL)
    (recording,) = RocProf().read(Source(path))
    assert isinstance(recording, Recording)
    assert sums_by_name(recording, "kernel") == slow_sums(path)
    assert recording.rows.height == 43_915
    assert codes(recording) == {}
