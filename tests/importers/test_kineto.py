from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from chrome import (
    MAIN,
    OTHER,
    PID,
    codes,
    event,
    kernel,
    launch,
    mark,
    module,
    op,
    read,
    recording,
    row,
    trace,
    tree,
    written,
)

import xsp
from xsp.importers import Recording, Source
from xsp.reading.importers.kineto import Kineto


def test_operators_lie_in_modules_and_kernels_lie_in_the_operators_that_launched_them(
    tmp_path: Path,
) -> None:
    events = [
        module("Net_0", 0, 100),
        module("Linear_3", 10, 50),
        op("aten::addmm", 20, 30),
        launch(5, 25),
        kernel(5, 60, 20),
        op("aten::relu", 70, 5),
    ]
    assert tree(recording(tmp_path, events)) == [
        "Net",
        "Net/Linear",
        "Net/Linear/aten::addmm",
        "Net/Linear/aten::addmm/cudaLaunchKernel",
        "Net/Linear/aten::addmm/gemm",
        "Net/aten::relu",
    ]


def test_modules_of_one_class_are_numbered_within_the_module_around_them(tmp_path: Path) -> None:
    events = [
        module("Net_0", 0, 100),
        *(module(f"Block_{n}", 10 + 40 * n, 30) for n in (0, 1)),
        *(module(f"Linear_{n}", 11 + 40 * (n // 2) + 10 * (n % 2), 5) for n in (0, 1, 2, 3)),
    ]
    layers = recording(tmp_path, events).rows
    assert layers["name"].to_list() == [
        *("Net", "Block_0", "Linear_0", "Linear_1", "Block_1", "Linear_0", "Linear_1")
    ]
    assert layers["attr.module_class"].to_list()[:3] == ["Net", "Block", "Linear"]
    assert layers["attr.module_path"].to_list() == [
        *("", "Block_0", "Block_0.Linear_0", "Block_0.Linear_1"),
        *("Block_1", "Block_1.Linear_0", "Block_1.Linear_1"),
    ]


def test_shapes_and_types_are_those_of_tensors_also_of_those_in_lists(tmp_path: Path) -> None:
    dims = [[2, 3], [], [[4], [5]], []]
    types = ["c10::BFloat16", "Scalar", "TensorList", "long int"]
    found = recording(
        tmp_path, [op("aten::cat", 0, 9, **{"Input Dims": dims, "Input type": types})]
    )
    cat = row(found, "aten::cat")
    assert cat["input_shapes"] == [[2, 3], [4], [5], []]
    assert cat["input_dtypes"] == ["bfloat16", None, None, "int64"]


@pytest.mark.parametrize("lines", [True, False], ids=["lines", "sequence alone"])
def test_backward_operators_lie_in_the_layers_of_their_forward(tmp_path: Path, lines: bool) -> None:
    flow = {"pid": PID, "cat": "fwdbwd", "name": "fwdbwd", "id": 1}
    backward = {"Sequence number": 4, "Fwd thread id": 1}
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        module("Net_0", 0, 60),
        module("Linear_0", 10, 30),
        op("aten::addmm", 20, 10, **{"Sequence number": 4, "Fwd thread id": 0}),
        op(engine, 100, 20, tid=OTHER, **backward),
        op("AddmmBackward0", 105, 10, tid=OTHER, **backward),
        op("aten::mm", 107, 5, tid=OTHER),
    ]
    if lines:
        events += [
            {**flow, "ph": "s", "ts": 20, "tid": MAIN},
            {**flow, "ph": "f", "ts": 105, "tid": OTHER},
        ]
    found = recording(tmp_path, events)
    assert tree(found)[-1] == f"Net#2/Linear/{engine}/AddmmBackward0/aten::mm"
    phases = dict(found.rows.select("name", "attr.phase").rows())
    assert phases["aten::mm"] == "backward"
    assert phases["aten::addmm"] is None


def test_marked_steps_are_evaluations(tmp_path: Path) -> None:
    events = [
        event
        for number in (4, 5, 6)
        for event in (
            mark(f"ProfilerStep#{number}", 100 * number, 90),
            op("aten::mm", 100 * number + 10, 20),
            launch(number, 100 * number + 12),
            kernel(number, 100 * number + 50, 30 + number),
        )
    ]
    found = recording(tmp_path, events)
    assert found.roots.select("name", "start_ns", "end_ns").rows() == [
        (f"ProfilerStep#{number}", 100_000 * number, 100_000 * number + 90_000)
        for number in (4, 5, 6)
    ]
    spans = trace(found).spans
    assert spans.filter(pl.col("name") == "gemm")["latency_ns"].to_list() == [35_000.0]
    assert spans["runs"].to_list() == [3] * 4


def test_outermost_calls_of_the_model_are_evaluations_where_no_steps_are_marked(
    tmp_path: Path,
) -> None:
    events = [
        each
        for at in (0, 100, 200)
        for each in (module("Net_0", at, 50), module("Linear_0", at + 1, 9))
    ]
    found = recording(tmp_path, events)
    assert found.roots.select("name", "start_ns", "end_ns").rows() == [
        ("Net", at * 1000, at * 1000 + 50_000) for at in (0, 100, 200)
    ]


def test_a_kernel_tells_its_launch_its_size_and_its_resources(tmp_path: Path) -> None:
    name = "void at::native::copy_kernel<4, float>(int, float*)"
    resources = {"registers per thread": 32, "shared memory": 512, "context": 1}
    size = {"grid": [64, 2, 1], "block": [128, 1, 1]}
    occupancy = {"est. achieved occupancy %": 50}
    device = {"id": 0, "name": "NVIDIA X", "numSms": 2, "maxThreadsPerMultiprocessor": 2048}
    found = recording(
        tmp_path,
        [launch(5, 0), kernel(5, 9, 3, name, **resources, **size, **occupancy)],
        deviceProperties=[device],
    )
    copy = row(found, "copy_kernel")
    assert copy["full_name"] == name
    assert (copy["device"], copy["stream"], copy["correlation_id"]) == (0, 7, 5)
    assert (copy["grid"], copy["block"]) == ([64, 2, 1], [128, 1, 1])
    assert (copy["registers"], copy["shared_bytes"], copy["context"]) == (32, 512, 1)
    assert copy["launched_by"] == "cudaLaunchKernel"
    assert copy["occupancy_pct"] == 50.0
    assert found.environment["devices"] == ["NVIDIA X"]


def test_copies_and_sets_tell_their_size_and_where_they_go(tmp_path: Path) -> None:
    place = {"device": 0, "stream": 7}
    events = [
        event(
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            0,
            9,
            args={**place, "correlation": 1, "bytes": 64},
        ),
        event("gpu_memset", "Memset (Device)", 10, 2, args={**place, "correlation": 2, "bytes": 8}),
    ]
    found = recording(tmp_path, events)
    copy, cleared = row(found, "memcpy HtoD"), row(found, "memset")
    assert (copy["direction"], copy["source"], copy["destination"], copy["transfer_bytes"]) == (
        *("HtoD", "pinned", "device"),
        64,
    )
    assert (cleared["kind"], cleared["destination"], cleared["transfer_bytes"]) == (
        *("memset", "device"),
        8,
    )


def test_waits_of_devices_are_synchronizations(tmp_path: Path) -> None:
    names = ("Stream Wait Event", "Stream Sync", "Event Sync", "Context Sync")
    events = [
        event("cuda_sync", name, at, 1, args={"device": 0, "stream": -1, "correlation": at})
        for at, name in enumerate(names)
    ]
    found = recording(tmp_path, events).rows
    assert found["kind"].unique().to_list() == ["sync"]
    assert found["name"].to_list() == [
        *("synchronize stream wait event", "synchronize stream"),
        *("synchronize event", "synchronize context"),
    ]
    assert found["stream"].null_count() == 4


def test_collectives_have_their_group_and_size(tmp_path: Path) -> None:
    said = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": "1024",
        "Group size": 8,
        "dtype": "BFloat16",
        "Process Group Name": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }
    found = recording(
        tmp_path, [launch(1, 0), kernel(1, 9, 5, "ncclDevKernel", **said), op("aten::mm", 20, 1)]
    )
    nccl = row(found, "ncclDevKernel")
    assert nccl["collective"] == "allreduce"
    assert (nccl["collective_group"], nccl["group_size"]) == ("default_pg", 8)
    assert (nccl["in_elements"], nccl["out_elements"]) == (1024, 1024)
    assert nccl["element_type"] == "BFloat16"
    assert nccl["group_ranks"] == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert row(found, "aten::mm")["collective"] is None


def memory(at: int, size: int, tid: int = MAIN, **args: int) -> dict[str, object]:
    """Return an allocation, or with a negative size a release."""
    args = {"Bytes": size, "Device Id": 0, "Device Type": 1, **args}
    found = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": at}
    return {**found, "pid": PID, "tid": tid, "args": args}


def test_memory_is_summed_up_in_the_operators_around_it(tmp_path: Path) -> None:
    changes = [memory(12, 100), memory(15, 20), memory(30, -100), memory(11, 7, OTHER)]
    found = recording(tmp_path, [op("outer", 0, 50), op("inner", 10, 10), *changes, memory(99, 5)])
    outer, inner = row(found, "outer"), row(found, "inner")
    assert (outer["allocated_bytes"], outer["freed_bytes"]) == (120, 100)
    assert (inner["allocated_bytes"], inner["freed_bytes"]) == (120, 0)
    assert (outer["peak_bytes"], inner["peak_bytes"]) == (127, 127)  # with the other thread's 7


def test_the_peak_and_what_is_alive_are_those_of_the_addresses(tmp_path: Path) -> None:
    # Two operators each; the first keeps one of two tensors, which Python releases after both.
    events = [
        mark("ProfilerStep#0", 0, 100),
        module("First_0", 10, 10),
        op("keep", 10, 10),
        memory(12, 64, Addr=1),
        memory(14, 32, Addr=2),
        memory(30, -32, Addr=2),
        module("Second_0", 40, 10),
        op("work", 40, 10),
        memory(42, 48, Addr=2),
        memory(60, -48, Addr=2),
        memory(70, -64, Addr=1),
        memory(80, -500, Addr=9),  # of before the recording
    ]
    found = recording(tmp_path, events)
    keep, work = row(found, "keep"), row(found, "work")
    assert found.roots["attr.peak_bytes"].to_list() == [112]
    assert (keep["alive_at_peak_bytes"], work["alive_at_peak_bytes"]) == (64, 48)
    assert (keep["reaches_peak"], work["reaches_peak"]) == (False, True)
    peak = xsp.analyses.memory_peak(trace(found))
    assert peak.select("operator", "alive_bytes", "recorded").rows() == [
        ("keep", 64, True),
        ("work", 48, True),
    ]
    assert peak["peak_bytes"].unique().to_list() == [112]


def test_overheads_are_those_of_the_call_that_they_lie_in_or_are_told_as_a_sum(
    tmp_path: Path,
) -> None:
    def overhead(name: str, at: int, duration: int) -> dict[str, object]:
        return event("overhead", name, at, duration, pid=-1, tid=0)

    events = [
        launch(1, 0, 100),
        overhead("Lazy Function Loading", 10, 40),
        overhead("Command Buffer Full", 60, 5),
        overhead("Instrumentation", 70, 5),
        overhead("Activity Buffer Request", 200, 1500),
    ]
    found = recording(tmp_path, events)
    call = row(found, "cudaLaunchKernel")
    assert call["module_loading_ns"] == 40_000
    assert (call["queue_full_ns"], call["cupti_overhead_ns"]) == (5_000, 5_000)
    assert "Activity Buffer Request 1.50 ms" in codes(found)["overhead"]


def test_categories_that_are_not_understood_are_counted_by_name(tmp_path: Path) -> None:
    odd = [event("of_tomorrow", "gemm", at, 1) for at in (1, 2)]
    counter = {"ph": "C", "cat": "hardware_counters", "name": "sm", "ts": 1, "args": {"": 3}}
    found = recording(tmp_path, [op("aten::mm", 0, 5), *odd, counter])
    assert "2 of_tomorrow, 1 hardware_counters" in codes(found)["not-understood"]


def test_rank_versions_and_host_are_those_of_the_file(tmp_path: Path) -> None:
    metadata = {
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "cuda_runtime_version": 12040,
        "hip_runtime_version": 60443483,
    }
    path = written(tmp_path / "node7_42.1700000000000.pt.trace.json", [op("a", 0, 1)], **metadata)
    found = read(path)
    assert (found.rank, found.host, found.tool) == (3, "node7", "torch.profiler")
    assert found.environment["versions"] == {"cuda runtime": "12.4", "hip runtime": "6.4.43483"}
    assert (found.environment["world_size"], found.environment["backend"]) == (8, "nccl")


def test_each_process_is_a_recording_with_what_it_launched(tmp_path: Path) -> None:
    events = [
        each
        for pid in (10, 20)
        for each in (
            event("cpu_op", f"op of {pid}", 0, 50, pid=pid, tid=pid),
            event("cuda_runtime", "launch", 10, 5, pid=pid, tid=pid, args={"correlation": pid}),
            kernel(pid, 60 + pid, 5, f"kernel_{pid}"),
        )
    ]
    path = written(tmp_path / "trace.json", events)
    found = Kineto().read(Source(path))
    names = [sorted(one.rows["name"]) for one in found if isinstance(one, Recording)]
    assert names == [[f"kernel_{pid}", "launch", f"op of {pid}"] for pid in (10, 20)]


_ANOTHER = '[{"cat": "Session", "ph": "X", "name": "model_loading_uri", "ts": 1, "dur": 2}]'


@pytest.mark.parametrize(
    "content", ["[1, 2]", _ANOTHER, '{"spans": []}', "plain text", "", "[", "\x00\x01"]
)
def test_other_files_are_not_recognized(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert not Kineto().recognizes(Source(path))


def test_a_collective_that_lasts_after_its_call_encloses_nothing_that_follows(
    tmp_path: Path,
) -> None:
    events = [
        op("c10d::alltoall_base_", 0, 900),
        mark("hccl:all_to_all", 870, 50_000),
        module("Net_0", 1_000, 40_000),
    ]
    assert tree(recording(tmp_path, events)) == [
        "c10d::alltoall_base_",
        "c10d::alltoall_base_/hccl:all_to_all",
        "Net",
    ]
