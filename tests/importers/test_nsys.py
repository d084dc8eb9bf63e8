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


def problems(recording: Recording) -> dict[str, str]:
    return {problem.code: problem.message for problem in recording.problems}


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


def test_kinds_of_memory_without_enumerations_are_numbered_as_nsight_does(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite", OLD)
    export.activity("MEMCPY", 10, 20, 1, bytes=64, copyKind=1, srcKind=1, dstKind=2)
    export.activity("MEMSET", 30, 40, 2, bytes=32, memKind=2)
    export.activity("SYNCHRONIZATION", 50, 60, 3, syncType=3, streamId=0xFFFFFFFF)
    recording = export.read()
    attributes = [f"attr.{name}" for name in ("direction", "source", "destination")]
    assert rows(recording, "name", "stream", "attr.transfer_bytes", *attributes) == [
        ("memcpy HtoD", 7, 64, "HtoD", "pinned", "device"),
        ("memset", 7, 32, None, None, "device"),
        ("synchronize stream", None, None, None, None, None),
    ]


def test_enumerations_are_read_from_the_file(recent: Export) -> None:
    recent.add("ENUM_CUDA_MEM_KIND", id=0, name="CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC")
    recent.add("ENUM_CUDA_MEMCPY_OPER", id=1, name="CUDA_MEMCPY_KIND_UVM_DTOH")
    recent.add("ENUM_CUPTI_SYNC_TYPE", id=9, name="CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_NEW_ONE")
    recent.activity("MEMCPY", 10, 20, 0, bytes=64, copyKind=1, srcKind=0, dstKind=17)
    recent.activity("SYNCHRONIZATION", 50, 60, 3, syncType=9)
    attributes = [f"attr.{name}" for name in ("direction", "source", "destination")]
    assert rows(recent.read(), "name", "correlation_id", *attributes) == [
        ("memcpy unified DtoH", None, "DtoH", "managed static", "unknown"),
        ("synchronize new one", 3, None, None, None),
    ]


def test_calls_of_the_system_and_of_traced_libraries(recent: Export) -> None:
    place = {"start": 10, "end": 90, "globalTid": global_id(PID, 3)}
    recent.add("OSRT_API", nameId=recent.string("poll"), **place)
    recent.add("CUDNN_EVENTS", nameId=recent.string("cudnnConvolutionForward"), **place)
    recent.add("MPI_COLLECTIVES_EVENTS", textId=recent.string("MPI_Allreduce"), **place)
    assert set(rows(recent.read(), "kind", "name", "thread", "attr.library")) == {
        ("syscall", "poll", 3, None),
        ("call", "cudnnConvolutionForward", 3, "cuDNN"),
        ("call", "MPI_Allreduce", 3, "MPI"),
    }


def test_driver_call_in_a_runtime_call_of_the_same_id_bears_none(export: Export) -> None:
    export.call("cudaLaunchKernel_v7000", 10, 40, 1).call("cuLaunchKernel", 20, 30, 1, eventClass=1)
    export.kernel("gemm", 50, 60, 1)
    recording = export.read()
    assert rows(recording, "name", "correlation_id", kind="launch") == [
        ("cudaLaunchKernel", 1),
        ("cuLaunchKernel", None),
    ]
    assert "repeated-id" not in problems(recording)


def test_calls_that_share_an_id_are_counted(export: Export) -> None:
    export.call("cudaLaunchKernel", 10, 20, 1).call("cudaLaunchKernel", 50, 60, 1)
    export.kernel("first", 30, 40, 1).kernel("second", 70, 80, 1)
    assert problems(export.read())["repeated-id"].startswith("1 call ")


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


def test_graph_that_was_recorded_as_one_lies_in_its_launch(recent: Export) -> None:
    recent.call("cudaGraphLaunch_v10000", 10, 20, 1).call("cudaGraphLaunch_v10000", 40, 50, 2)
    recent.activity("GRAPH_TRACE", 30, 60, 1, graphId=2, graphExecId=3)
    recent.activity("GRAPH_TRACE", 70, 90, 2, graphId=2, graphExecId=3)
    recording = recent.read()
    columns = ("kind", "name", "attr.graph", "attr.launched_by")
    assert rows(recording, *columns)[2:] == [("kernel", "CUDA graph 2", 2, "cudaGraphLaunch")] * 2
    assert problems(recording)["graphs-as-one"].startswith("2 launches ")
    spans = xsp.read(recent.path).spans
    parents = spans.filter(pl.col("kind") == "kernel")["parent_id"].to_list()
    assert parents == spans.filter(pl.col("kind") == "launch")["span_id"].to_list()


def test_graph_as_one_whose_launch_was_not_recorded_is_an_orphan(recent: Export) -> None:
    recent.call("cudaFree", 10, 20, 1).activity("GRAPH_TRACE", 30, 60, 0, graphId=2)
    trace = xsp.read(recent.write())
    assert {problem["code"] for problem in trace.metadata["problems"]} >= {
        "graphs-as-one",
        "no-launch",
    }


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


def test_what_a_graph_replays_lies_in_the_operator_that_captured_it(recent: Export) -> None:
    recent.nvtx("aten::mm, seq = 3, op_id = 1", 5, 25)
    recent.call("cudaLaunchKernel_v7000", 10, 20, 2).call("cudaGraphLaunch_v10000", 60, 70, 9)
    place = {"globalTid": global_id(PID, 1)}
    recent.add("CUDA_GRAPH_NODE_EVENTS", start=15, graphNodeId=4, **place)
    recent.add("CUDA_GRAPH_NODE_EVENTS", start=31, graphNodeId=8, originalGraphNodeId=4, **place)
    recent.kernel("gemm", 80, 90, 9, graphNodeId=8)
    spans = xsp.read(recent.write()).spans
    above = dict(spans.select("span_id", pl.struct("name", "parent_id")).iter_rows())
    (parent,) = spans.filter(pl.col("kind") == "kernel")["parent_id"]
    assert above[parent]["name"] == "aten::mm"
    assert above[above[parent]["parent_id"]]["name"] == "cudaGraphLaunch"


def test_thread_of_the_driver_that_only_waits_is_not_the_programs(recent: Export) -> None:
    waits = {"globalTid": global_id(PID, 8), "nameId": recent.string("poll")}
    recent.add("OSRT_API", start=0, end=90, **waits).call("cudaLaunchKernel", 10, 20, 1)
    spans = xsp.read(recent.write()).spans
    assert dict(spans.select("name", "thread").iter_rows())["process"] == 1


def test_call_that_was_captured_launched_nothing(recent: Export) -> None:
    recent.call("cudaLaunchKernel", 1, 2, 1).kernel("gemm", 5, 6, 1)
    recent.call("cudaStreamBeginCapture_v10000", 10, 20, 2)
    recent.call("cudaLaunchKernel", 30, 40, 3)
    recent.call("cudaLaunchKernel", 30, 40, 4, globalTid=global_id(PID, 2))  # captures nothing
    recent.call("cudaStreamEndCapture_v10000", 50, 60, 5).call("cudaLaunchKernel", 70, 80, 6)
    launches = rows(recent.read(), "start_ns", "correlation_id", kind="launch")
    assert [number for _, number in launches] == [1, None, None, 4, 5, 6]


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


def test_process_with_nothing_but_system_calls_is_left_out_and_counted(recent: Export) -> None:
    recent.call("cudaLaunchKernel", 10, 20, 1)
    shell = {"globalTid": global_id(OTHER_PID, OTHER_PID), "nameId": recent.string("wait4")}
    recent.add("OSRT_API", start=0, end=90, **shell)
    recent.add("PROCESSES", globalPid=global_id(OTHER_PID), pid=OTHER_PID, name="bash")
    recording = recent.read()
    assert rows(recording, "name") == [("cudaLaunchKernel",)]
    assert problems(recording)["idle-processes"].endswith(f": bash {OTHER_PID}")


def test_rows_of_no_process_are_those_of_the_only_one(export: Export) -> None:
    export.call("cudaLaunchKernel", 10, 20, 1).kernel("gemm", 30, 40, 1, globalPid=None)
    assert len(rows(export.read(), "name")) == 2


def test_rows_of_no_process_among_several_are_counted(recent: Export) -> None:
    recent.call("cudaLaunchKernel", 10, 20, 1)
    recent.call("cudaLaunchKernel", 10, 20, 1, globalTid=global_id(OTHER_PID, 1))
    recent.kernel("gemm", 30, 40, 1, globalPid=None)
    first, second = recordings(recent.write())
    assert "1 row of CUPTI_ACTIVITY_KIND_KERNEL" in problems(first)["no-process"]
    assert not second.problems  # what is missing of the file is said once


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


def test_file_without_facts_says_nothing_of_them(tmp_path: Path) -> None:
    recording = Export(tmp_path / "report.sqlite", OLD).call("cudaFree_v3020", 10, 20, 1).read()
    assert (recording.tool, recording.name) == ("Nsight Systems", "process")
    assert (recording.unix_ns, recording.rank, recording.host) == (None, None, "")
    assert recording.problems == ()


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
    found = problems(recent.read())
    assert found["not-understood"] == "no spans are made of 2 rows of SCHED_EVENTS"
    assert found["tool-warning"].endswith(": Not all CUDA events might have been collected")
    assert "took 40.0 ns" in found["overhead"]
