from __future__ import annotations

import json
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

from xsp.importers import Recording, Source
from xsp.importers.kineto import Kineto


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


def test_a_module_keeps_its_path_where_it_is_called_again_outside_of_its_parent(
    tmp_path: Path,
) -> None:
    events = [
        module("Net_0", 0, 100),
        module("Block_7", 10, 20),
        module("Block_7", 200, 20, tid=OTHER),
    ]
    again = recording(tmp_path, events).rows.filter(pl.col("thread") == OTHER)
    assert again["attr.module_path"].to_list() == ["Block"]


def test_shapes_and_types_are_those_of_tensors_also_of_those_in_lists(tmp_path: Path) -> None:
    dims = [[2, 3], [], [[4], [5]], []]
    types = ["c10::BFloat16", "Scalar", "TensorList", "long int"]
    found = recording(
        tmp_path, [op("aten::cat", 0, 9, **{"Input Dims": dims, "Input type": types})]
    )
    cat = row(found, "aten::cat")
    assert cat["input_shapes"] == [[2, 3], [4], [5], []]
    assert cat["input_dtypes"] == ["bfloat16", None, None, "int64"]


def test_a_range_is_a_layer_where_no_modules_were_recorded_but_those_of_libraries_are_not(
    tmp_path: Path,
) -> None:
    events = [mark("attention", 0, 50), mark("nccl:all_reduce", 5, 5), op("aten::mm", 10, 5)]
    kinds = dict(recording(tmp_path, events).rows.select("name", "kind").rows())
    assert kinds == {"attention": "layer", "nccl:all_reduce": "op", "aten::mm": "op"}


def test_a_range_is_an_operator_beside_modules_as_in_measurements_of_xsp(tmp_path: Path) -> None:
    events = [mark("attention", 0, 50), module("Net_0", 10, 5)]
    kinds = dict(recording(tmp_path, events).rows.select("name", "kind").rows())
    assert kinds == {"attention": "op", "Net": "layer"}


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


def test_lines_tell_the_forward_thread_where_two_threads_count_alike(tmp_path: Path) -> None:
    flow = {"pid": PID, "cat": "fwdbwd", "name": "fwdbwd", "id": 1}
    events = [
        *(
            op("aten::mul", at, 5, tid=tid, **{"Sequence number": 4, "Fwd thread id": 0})
            for tid, at in ((MAIN, 10), (OTHER, 20))
        ),
        op("MulBackward0", 50, 5, tid=12, **{"Sequence number": 4, "Fwd thread id": 3}),
        {**flow, "ph": "s", "ts": 20, "tid": OTHER},
        {**flow, "ph": "f", "ts": 50, "tid": 12},
    ]
    assert row(recording(tmp_path, events), "MulBackward0")["forward_thread"] == OTHER


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


def test_of_steps_that_overlap_the_later_is_left_out(tmp_path: Path) -> None:
    events = [mark("ProfilerStep#1", 0, 50), mark("ProfilerStep#2", 40, 50), op("aten::mm", 1, 2)]
    assert recording(tmp_path, events).roots["name"].to_list() == ["ProfilerStep#1"]


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


def test_a_training_step_lasts_until_the_next_call_of_the_model(tmp_path: Path) -> None:
    backward = {"Sequence number": 1, "Fwd thread id": 1}
    events = [
        each
        for at in (0, 100)
        for each in (
            module("Net_0", at, 30),
            module("Loss_0", at + 40, 5),
            op("MulBackward0", at + 60, 20, tid=OTHER, **backward),
        )
    ]
    found = recording(tmp_path, events)
    assert found.roots.select("start_ns", "end_ns").rows() == [(0, 100_000), (100_000, 180_000)]


def test_one_call_of_the_model_is_no_step(tmp_path: Path) -> None:
    events = [op("aten::to", 0, 5), module("Net_0", 10, 50), op("aten::argmax", 70, 5)]
    found = recording(tmp_path, events)
    assert not found.roots.height
    assert tree(found) == ["aten::to", "Net", "aten::argmax"]


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


def test_occupancy_that_the_grid_limits_is_not_known(tmp_path: Path) -> None:
    device = {"id": 0, "name": "X", "numSms": 100, "maxThreadsPerMultiprocessor": 2048}
    small = {"grid": [1, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 0}
    found = recording(tmp_path, [kernel(5, 9, 3, **small)], deviceProperties=[device])
    assert "attr.occupancy_pct" not in found.rows.columns


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


def test_waits_of_devices_are_synchronisations(tmp_path: Path) -> None:
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


def test_calls_of_the_driver_and_of_hip_are_launches_by_the_names_that_programs_write(
    tmp_path: Path,
) -> None:
    events = [
        launch(1, 0, name="cuLaunchKernelEx", category="cuda_driver"),
        launch(2, 10, name="hipGetDevicePropertiesR0600"),
        launch(3, 20, name="cudaMemcpyAsync_ptsz_v7000", category="Runtime"),
    ]
    found = recording(tmp_path, events).rows
    assert found["name"].to_list() == [
        *("cuLaunchKernelEx", "hipGetDeviceProperties", "cudaMemcpyAsync")
    ]
    assert found["kind"].unique().to_list() == ["launch"]


def test_a_call_of_the_driver_in_a_call_of_the_runtime_with_its_id_is_left_out(
    tmp_path: Path,
) -> None:
    inner = launch(1, 2, 3, name="cuLaunchKernel", category="cuda_driver")
    assert tree(recording(tmp_path, [launch(1, 0, 9), inner, kernel(1, 20, 5)])) == [
        "cudaLaunchKernel",
        "gemm",
    ]


def test_the_launch_of_a_graph_owns_what_it_ran(tmp_path: Path) -> None:
    events = [
        op("replay", 0, 50),
        launch(1, 5, 20, name="hipGraphLaunch"),
        *(kernel(1, 30 + 10 * n, 5, f"node{n}") for n in range(3)),
    ]
    assert tree(recording(tmp_path, events))[1:] == [
        "replay/hipGraphLaunch",
        *(f"replay/hipGraphLaunch/node{n}" for n in range(3)),
    ]


def test_nodes_of_graphs_have_their_numbers(tmp_path: Path) -> None:
    graph = {"graph id": 3, "graph node id": 17}
    found = recording(
        tmp_path,
        [launch(1, 0, name="cudaGraphLaunch"), kernel(1, 9, 5, **graph), kernel(2, 20, 1, "own")],
    )
    assert (row(found, "gemm")["graph"], row(found, "gemm")["graph_node"]) == (3, 17)
    assert row(found, "own")["graph_node"] is None


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


def test_memory_is_summed_up_in_the_operators_around_it(tmp_path: Path) -> None:
    def change(at: int, size: int, tid: int = MAIN) -> dict[str, object]:
        args = {"Bytes": size, "Device Id": 0, "Device Type": 1}
        found = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": at}
        return {**found, "pid": PID, "tid": tid, "args": args}

    events = [
        op("outer", 0, 50),
        op("inner", 10, 10),
        *(change(12, 100), change(15, 20), change(30, -100), change(11, 7, OTHER), change(99, 5)),
    ]
    found = recording(tmp_path, events)
    outer, inner = row(found, "outer"), row(found, "inner")
    assert (outer["allocated_bytes"], outer["freed_bytes"]) == (120, 100)
    assert (inner["allocated_bytes"], inner["freed_bytes"]) == (120, 0)


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


def test_python_functions_are_left_out_and_counted_unless_they_are_asked_for(
    tmp_path: Path,
) -> None:
    events = [event("python_function", "train.py(3): step", 0, 50), op("aten::mm", 10, 5)]
    path = written(tmp_path / "trace.json", events)
    assert tree(read(path)) == ["aten::mm"]
    assert codes(read(path))["left-out"] == "not shown: 1 call of Python functions"
    asked = read(path, python=True)
    assert tree(asked) == ["train.py(3): step", "train.py(3): step/aten::mm"]
    assert "left-out" not in codes(asked)


def test_ranges_drawn_on_the_device_are_left_out(tmp_path: Path) -> None:
    mirror = event("gpu_user_annotation", "forward", 0, 50, pid=0, tid=7)
    found = recording(tmp_path, [op("aten::mm", 0, 5), mirror])
    assert found.rows["name"].to_list() == ["aten::mm"]
    assert codes(found)["left-out"] == "not shown: 1 range of the host, repeated on a device"


def test_categories_that_are_not_understood_are_counted_by_name(tmp_path: Path) -> None:
    odd = [event("of_tomorrow", "gemm", at, 1) for at in (1, 2)]
    counter = {"ph": "C", "cat": "hardware_counters", "name": "sm", "ts": 1, "args": {"": 3}}
    found = recording(tmp_path, [op("aten::mm", 0, 5), *odd, counter])
    assert "2 of_tomorrow, 1 hardware_counters" in codes(found)["not-understood"]


def test_names_of_categories_of_2021_are_understood(tmp_path: Path) -> None:
    events = [
        event("Operator", "ProfilerStep#5", 0, 90, tid="10"),
        event("Operator", "aten::mm", 10, 20, tid="10"),
        event("Runtime", "cudaLaunchKernel", 12, 2, tid="10", args={"correlation": 3}),
        event("Kernel", "gemm", 40, 5, pid=0, tid="stream 7", args={"correlation": 3}),
        event("Memset", "Memset (Device)", 50, 1, pid=0, tid="stream 7", args={"device": 0}),
    ]
    found = recording(tmp_path, events)
    assert found.roots["name"].to_list() == ["ProfilerStep#5"]
    assert tree(found) == ["aten::mm", "aten::mm/cudaLaunchKernel", "aten::mm/gemm", "memset"]
    assert (row(found, "gemm")["stream"], row(found, "gemm")["device"]) == (7, 0)


def test_times_are_exact_to_the_nanosecond_however_large(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", [op("aten::mm", 0, 0)])
    exact = path.read_text().replace('"ts": 0', '"ts": 1712867402348256.789')
    path.write_text(exact.replace('"dur": 0', '"dur": 0.123'))
    mm = row(read(path), "aten::mm")
    assert (mm["start_ns"], mm["end_ns"]) == (1712867402348256789, 1712867402348256912)


@pytest.mark.parametrize(
    ("start", "metadata", "expected"),
    [
        (5, {"baseTimeNanoseconds": 1_750_000_000_000_000_000}, 1_750_000_000_000_000_000),
        (1_712_867_402_348_256, {}, 0),
        (5, {}, None),
    ],
    ids=["base", "since 1970", "unknown"],
)
def test_wall_clock_time_is_known_where_the_file_tells_it(
    tmp_path: Path, start: int, metadata: dict[str, int], expected: int | None
) -> None:
    assert recording(tmp_path, [op("aten::mm", start, 1)], **metadata).unix_ns == expected


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


def test_ends_cut_to_microseconds_do_not_break_the_nesting(tmp_path: Path) -> None:
    events = [
        op("outer", 100, 24, **{"External id": 1}),
        op("inner", 101, 24, **{"External id": 2}),  # seems to end 1 µs after the outer one
        op("first", 200, 10, **{"External id": 3}),
        op("second", 200, 11, **{"External id": 4}),  # begins with the first one, and is longer
    ]
    assert tree(recording(tmp_path, events)) == ["outer", "outer/inner", "first", "first/second"]


def test_operators_that_really_overlap_are_left_as_they_are(tmp_path: Path) -> None:
    found = recording(tmp_path, [op("one", 0, 50.001), op("two", 25, 50)])
    assert tree(found) == ["one", "two"]
    assert found.rows["end_ns"].to_list() == [50_001, 75_000]


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


def test_work_whose_call_is_not_recorded_is_kept(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 5), launch(1, 1, 2), kernel(1, 6, 3), kernel(99, 10, 3, "lost")]
    assert tree(recording(tmp_path, events))[-1] == "lost"


def test_a_file_of_the_device_alone_is_read(tmp_path: Path) -> None:
    assert tree(recording(tmp_path, [kernel(1, 0, 5), kernel(2, 6, 5, "relu")])) == ["gemm", "relu"]


def test_a_list_of_events_alone_is_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([op("aten::mm", 0, 5)]))
    assert Kineto().recognises(Source(path))
    assert tree(read(path)) == ["aten::mm"]


def test_metadata_may_stand_behind_the_events(tmp_path: Path) -> None:
    content = {
        "traceEvents": [op("aten::mm", 0, 5)],
        "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
        "baseTimeNanoseconds": 7,
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    found = read(path)
    assert (found.unix_ns, found.environment["devices"]) == (7, ["A", "B"])
    assert not found.problems


def test_packed_files_are_read_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", [op("aten::mm", 0, 5)])
    assert Kineto().recognises(Source(path))
    assert tree(read(path)) == ["aten::mm"]


_ANOTHER = '[{"cat": "Session", "ph": "X", "name": "model_loading_uri", "ts": 1, "dur": 2}]'


@pytest.mark.parametrize(
    "content", ["[1, 2]", _ANOTHER, '{"spans": []}', "plain text", "", "[", "\x00\x01"]
)
def test_other_files_are_not_recognised(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert not Kineto().recognises(Source(path))


def test_spans_of_a_process_that_runs_nothing_are_those_of_the_process_that_does(
    tmp_path: Path,
) -> None:
    function = event("python_function", "threading.py(1): run", 0, 90, pid=0, tid=0)
    path = written(tmp_path / "trace.json", [function, op("aten::mm", 0, 5)])
    assert sorted(read(path, python=True).rows["name"]) == ["aten::mm", "threading.py(1): run"]


def test_spans_of_no_process_among_several_are_counted(tmp_path: Path) -> None:
    events = [
        *(event("cpu_op", f"op{pid}", 0, 50, pid=pid, tid=pid) for pid in (1, 2)),
        event("user_annotation", "lost", 0, 9, pid=3, tid=3),
    ]
    first, second = Kineto().read(Source(written(tmp_path / "trace.json", events)))
    assert [problem.code for problem in first.problems] == ["left-out"]
    assert "1 span of processes without operators" in first.problems[0].message
    assert not second.problems


def test_a_mark_of_utf_8_before_the_content_is_no_part_of_it(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", [op("aten::mm", 0, 5)], baseTimeNanoseconds=3)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Kineto().recognises(Source(path))
    assert read(path).unix_ns == 3


@pytest.mark.parametrize("name", ["Memcpy DtoH (Device -> Pageable)", "D2M", "CopyDeviceToHost"])
def test_the_direction_of_a_copy_is_told_by_its_name(tmp_path: Path, name: str) -> None:
    found = recording(tmp_path, [event("gpu_memcpy", name, 0, 5, args={"device": 0})])
    assert found.rows["name"].to_list() == ["memcpy DtoH"]


def test_lines_between_events_are_no_events(tmp_path: Path) -> None:
    lines = [
        {"ph": phase, "cat": category, "name": "launch", "id": 1, "pid": PID, "tid": MAIN, "ts": 1}
        for category in ("ac2g", "async", "async_cpu_to_gpu")
        for phase in "sf"
    ]
    assert not codes(recording(tmp_path, [op("aten::mm", 0, 5), *lines]))


def test_a_call_lies_in_the_operator_that_is_open_where_it_begins_if_half_of_it_does(
    tmp_path: Path,
) -> None:
    events = [
        op("first", 0, 50.001),
        launch(1, 45, 8),  # by its clock: most of it is in the operator
        kernel(1, 80, 5, "of_first"),
        op("second", 100, 50),
        launch(2, 145, 12),  # a wait that began by mistake of the clock before the end
    ]
    assert tree(recording(tmp_path, events)) == [
        *("first", "first/cudaLaunchKernel", "first/of_first", "second", "cudaLaunchKernel")
    ]


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


def test_a_collective_after_a_call_that_rounding_lengthens_stays_whole(tmp_path: Path) -> None:
    events = [op("aten::ones", 0, 10.06), mark("nccl:all_reduce", 10, 50), op("aten::mm", 20, 5)]
    assert "nccl:all_reduce/aten::mm" in tree(recording(tmp_path, events))


def test_modules_called_again_by_the_backward_pass_are_no_steps(tmp_path: Path) -> None:
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [module("Net_0", 0, 10), op(engine, 20, 50), module("Net_0", 30, 10)]
    assert not recording(tmp_path, events).roots.height


def test_a_wait_for_all_streams_is_on_none(tmp_path: Path) -> None:
    waits = [
        event("cuda_sync", "Context Sync", 10, 5, pid=0, args={"device": 0, "stream": stream})
        for stream in (7, 4294967295)
    ]
    found = recording(tmp_path, [op("aten::mm", 0, 50), *waits])
    assert found.rows.filter(pl.col("kind") == "sync")["stream"].to_list() == [7, None]
