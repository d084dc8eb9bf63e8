"""Nsight Systems' files: rows of calls, of what devices did, and facts about the recording."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from nsight import NEW, OLD, OTHER_PID, PID, Export, global_id, recordings

import xsp
from xsp.importers import Recording


@pytest.fixture(params=[OLD, NEW], ids=["2023", "2025"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite", request.param)


@pytest.fixture
def recent(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


def warnings(recording: Recording) -> dict[str, str]:
    return {warning.code: warning.message for warning in recording.warnings}


def rows(recording: Recording, *columns: str, kind: str | None = None) -> list[tuple[object, ...]]:
    found = recording.rows if kind is None else recording.rows.filter(pl.col("kind") == kind)
    return found.select(columns).rows()


def test_launches_have_the_names_that_programs_write(export: Export) -> None:
    export.call("cudaLaunchKernel_ptsz_v7000", 10, 20, 1)
    export.call("cudaStreamGetCaptureInfo_v2_v11030", 30, 40, 2)
    export.call("cuMemcpyHtoDAsync_v2", 50, 60, 3, eventClass=1)
    names = ["cudaLaunchKernel", "cudaStreamGetCaptureInfo", "cuMemcpyHtoDAsync"]
    found = rows(export.read(), "kind", "name", "start_ns", "end_ns", "thread", "correlation_id")
    assert found == [
        ("launch", name, start, start + 10, 1, number)
        for number, (name, start) in enumerate(zip(names, (10, 30, 50), strict=True), start=1)
    ]


def test_kernel_has_its_names_resources_and_launch(export: Export) -> None:
    export.call("cudaLaunchKernel_v7000", 10, 20, 1).kernel("gemm", 30, 70, 1)
    (kernel,) = export.read().rows.filter(pl.col("kind") == "kernel").to_dicts()
    told = {
        name.removeprefix("attr."): value for name, value in kernel.items() if value is not None
    }
    assert told == {
        "kind": "kernel",
        "name": "gemm",
        "start_ns": 30,
        "end_ns": 70,
        "device": 0,
        "stream": 7,
        "correlation_id": 1,
        "provenance": "recorded",
        "context": 1,
        "full_name": "void gemm<int>(int*)",
        "grid": [4, 2, 1],
        "block": [64, 1, 1],
        "registers": 32,
        "static_shared_bytes": 16,
        "dynamic_shared_bytes": 0,
        "launched_by": "cudaLaunchKernel",
    }


def test_graph_launches_own_what_ran_node_by_node(recent: Export) -> None:
    recent.call("cudaGraphLaunch_v10000", 10, 20, 1)
    recent.kernel("gemm", 30, 40, 1, graphNodeId=11, graphId=2)
    recent.activity("MEMCPY", 50, 60, 1, bytes=4, copyKind=8, graphNodeId=12)
    recent.activity("GRAPH_TRACE", 30, 60, 1, graphId=2)  # the same time once more
    spans = xsp.read(recent.write()).spans
    names = dict(spans.select("span_id", "name").iter_rows())
    nodes = spans.filter(pl.col("device").is_not_null())
    assert [names[parent] for parent in nodes["parent_id"]] == ["cudaGraphLaunch"] * 2
    assert nodes["name"].to_list() == ["gemm", "memcpy DtoD"]


def test_nodes_know_the_call_that_captured_them(recent: Export) -> None:
    recent.call("cudaStreamBeginCapture_v10000", 1, 5, 1)
    recent.call("cudaLaunchKernel_v7000", 10, 20, 2).call("cudaGraphLaunch_v10000", 60, 70, 9)
    place = {"globalTid": global_id(PID, 1)}
    recent.add("CUDA_GRAPH_NODE_EVENTS", start=15, graphNodeId=4, **place)
    for start, original in ((30, None), (31, 4)):  # copied, as it is instantiated
        node = {"graphNodeId": 8, "originalGraphNodeId": original, **place}
        recent.add("CUDA_GRAPH_NODE_EVENTS", start=start, **node)
    recent.add("CUDA_GRAPH_NODE_EVENTS", start=32, graphNodeId=9, originalGraphNodeId=8, **place)
    recent.kernel("gemm", 80, 90, 9, graphNodeId=9)
    recording = recent.read()
    created = rows(recording, "name", "attr.created_nodes", kind="launch")
    assert created == [
        ("cudaStreamBeginCapture", None),
        ("cudaLaunchKernel", [4]),
        ("cudaGraphLaunch", None),
    ]
    assert rows(recording, "attr.graph_node", "attr.captured_node", kind="kernel") == [(9, 4)]


def test_each_process_is_a_recording(recent: Export) -> None:
    own = {"globalTid": global_id(OTHER_PID, 9)}
    recent.call("cudaLaunchKernel", 10, 20, 1).kernel("gemm", 30, 40, 1)
    recent.call("cudaLaunchKernel", 50, 60, 1, **own)
    recent.kernel("relu", 70, 80, 1, globalPid=global_id(OTHER_PID), deviceId=1)
    for rank, pid in enumerate((PID, OTHER_PID)):
        recent.add("PROCESSES", globalPid=global_id(pid), pid=pid, name="/usr/bin/python3.12")
        recent.add("MPI_RANKS", globalTid=global_id(pid, 5), rank=rank)
        recent.add("TARGET_INFO_CUDA_DEVICE", gpuId=rank, cudaId=rank, pid=pid)
        recent.add("TARGET_INFO_GPU", id=rank, name=f"H100 number {rank}")
    first, second = recordings(recent.write())
    assert (first.name, first.rank) == (f"python3.12 {PID}", 0)
    assert (second.name, second.rank) == (f"python3.12 {OTHER_PID}", 1)
    assert second.environment["devices"] == ["H100 number 1"]
    assert rows(second, "name", "thread", "device") == [
        ("cudaLaunchKernel", 9, None),
        ("relu", None, 1),
    ]


def test_facts_about_the_recording(recent: Export) -> None:
    facts = {"Hostname": "node7", "CudaDriverVersion": "12040", "NvDriverVersion": "550.54"}
    for name, value in facts.items():
        recent.add("TARGET_INFO_SYSTEM_ENV", name=name, value=value)
    recent.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2025.3.1.90")
    command = {"COMMAND": "/usr/bin/python", "ARGUMENT_0": "a/train.py", "ARGUMENT_1": "--key=s"}
    for name, value in command.items():
        recent.add("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=value)
    for value in ('SECRET="x"', 'RANK="3"'):
        recent.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=value)
    recent.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1754324972242076786)
    recent.add("TARGET_INFO_GPU", id=0, name="Tesla T4")
    recording = recent.call("cudaFree_v3020", 10, 20, 1).read()
    assert (recording.tool, recording.name) == ("Nsight Systems 2025.3.1.90", "train.py")
    assert (recording.host, recording.rank) == ("node7", 3)
    assert recording.unix_ns == 1754324972242076786
    assert recording.environment == {
        "host": "node7",
        "pid": PID,
        "devices": ["Tesla T4"],
        "versions": {"cuda": "12.4", "nvidia_driver": "550.54"},
    }


def test_what_no_span_is_made_of_is_counted_by_name(recent: Export) -> None:
    recent.call("cudaFree_v3020", 10, 20, 1)
    for start in (1, 2):
        recent.add("SCHED_EVENTS", start=start, cpu=0, globalTid=global_id(PID, 1))
    recent.add("DIAGNOSTIC_EVENT", severity=1, text="Profiling has started.")
    recent.add(
        "DIAGNOSTIC_EVENT", severity=2, text="Not all CUDA events might have been collected."
    )
    for start, end in ((10, 30), (20, 40), (22, 25), (50, 60)):
        recent.add("PROFILER_OVERHEAD", start=start, end=end, globalTid=global_id(PID, 1))
    found = warnings(recent.read())
    assert found["not-understood"] == "xsp does not show 2 rows of SCHED_EVENTS"
    assert found["tool-warning"].endswith(": Not all CUDA events might have been collected")
    assert "took 40.0 ns" in found["overhead"]
