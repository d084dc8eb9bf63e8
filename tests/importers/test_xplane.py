"""XPlane files, written here message by message, and real files of TensorFlow and JAX."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed import astray, checked_trace, children, codes, launched, real_file, sums_by_name
from xplane_file import Plane, field

from xsp.importers import Recording, Source
from xsp.reading.importers.xplane import XPlane

PINNED = "kind_src:pinned kind_dst:device"
REGION, END = "ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion"
DATA = Path(__file__).parents[1] / "data" / "tensorflow"
TENSORFLOW, JAX = "xplane/nvidia-tf-2workers.xplane.pb", "xplane/mi300-jax-conv.xplane.pb"


def written(folder: Path, *parts: Plane | bytes) -> Source:
    """Write a file of planes, or of bytes, and return it."""
    path = folder / "host.xplane.pb"
    path.write_bytes(b"".join(p.bytes() if isinstance(p, Plane) else p for p in parts))
    return Source(path)


def read(folder: Path, *parts: Plane | bytes) -> Recording:
    """Import a file of planes."""
    source = written(folder, *parts)
    assert XPlane().recognizes(source)
    (recording,) = XPlane().read(source)
    assert isinstance(recording, Recording)
    return recording


def training() -> tuple[Plane, Plane]:
    """Return host and GPU of a step of TensorFlow: an operator launches a kernel."""
    host = Plane("/host:CPU")
    thread = host.line(42, "python")
    host.event(thread, "train", 0, 100, step_num=7)
    host.event(thread, "FunctionRun", 5, 90)
    host.event(thread, "model/dense/MatMul:MatMul", 10, 50)
    host.event(thread, "cuLaunchKernel_v2", 20, 25, correlation_id=3)
    gpu = Plane("/device:GPU:1", core_count=80, memory_size=16 * 10**9)
    stream = gpu.line(7, "Stream #7(Kernel)")
    details = "regs:38 static_shared:64 dynamic_shared:8 grid:160,2,1 block:1024,1,1 occ_pct:50"
    gpu.event(
        stream, "void gemm<float>(int)", 60, 80, correlation_id=3, kernel_details=details,
        tf_op="model/dense/MatMul:MatMul", context_id="$$5",
    )  # fmt: skip
    return host, gpu


def of(recording: Recording, name: str) -> dict[str, Any]:
    """Return the row of a name."""
    (row,) = recording.rows.filter(pl.col("name") == name).to_dicts()
    return row


def test_operators_launches_and_kernels_lie_as_they_ran(tmp_path: Path) -> None:
    trace = checked_trace(read(tmp_path, *training()))
    assert children(trace, "FunctionRun") == ["model"]
    assert children(trace, "model") == ["dense"]
    assert children(trace, "dense") == ["MatMul"]
    assert children(trace, "MatMul") == ["cuLaunchKernel", "gemm"]
    assert astray(trace) == 0


def test_nesting_survives_the_rounding_to_nanoseconds(tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    thread = host.line(1, "python")
    host.event(thread, "outer", 0.000_9, 0.002_1)
    host.event(thread, "inner", 0.001_6, 0.002_1)
    rows = read(tmp_path, host).rows.sort("start_ns")
    assert rows.select("start_ns", "end_ns").rows() == [(1000, 1002), (1001, 1002)]


Tree = tuple[Any, ...]  # of the children of a range
TREES = st.recursive(st.just(()), lambda child: st.lists(child, max_size=3).map(tuple))


def laid(tree: Tree, name: str, begin: int) -> list[tuple[str, int, int]]:
    """Return name, start and end of a range and of those in it; the names are their paths."""
    inner, at = [], begin + 1
    for number, child in enumerate(tree):
        part = laid(child, f"{name}.{number}", at)
        inner += part
        at = part[0][2] + 1
    return [(name, begin, at), *inner]


@given(tree=TREES, random=st.randoms(use_true_random=False))
def test_any_nesting_of_ranges_is_found_again(tree: Tree, random: Random) -> None:
    ranges = laid(tree, "root", 0)
    random.shuffle(ranges)
    host = Plane("/host:CPU")
    thread = host.line(1, "python")
    for name, start, end in ranges:
        host.event(thread, name, start, end)
    with TemporaryDirectory() as folder:
        spans = checked_trace(read(Path(folder), host)).spans
    names = dict(spans.select("span_id", "name").iter_rows())
    above = {name: names.get(parent) for name, parent in spans.select("name", "parent_id").rows()}
    assert {name: above[name] for name, _, _ in ranges if name != "root"} == {
        name: name.rpartition(".")[0] for name, _, _ in ranges if name != "root"
    }


def test_kernels_have_the_attributes_of_their_details(tmp_path: Path) -> None:
    kernel = of(read(tmp_path, *training()), "gemm")
    assert kernel["device"] == 1
    assert kernel["stream"] == 7
    assert {key: kernel[key] for key in kernel if key.startswith("attr.") and kernel[key]} == {
        "attr.full_name": "void gemm<float>(int)",
        "attr.grid": [160, 2, 1],
        "attr.block": [1024, 1, 1],
        "attr.registers": 38,
        "attr.static_shared_bytes": 64,
        "attr.dynamic_shared_bytes": 8,
        "attr.occupancy_pct": 50.0,
        "attr.framework_op": "model/dense/MatMul:MatMul",
        "attr.context": 5,
    }


@pytest.mark.parametrize(
    ("name", "stats", "kind", "shown"),
    [
        ("MemcpyH2D", {"memcpy_details": f"{PINNED} size:6"}, "memcpy", "HtoD"),
        ("MemcpyP2P", {}, "memcpy", "PtoP"),
        ("MemcpyOther", {"memcpy_details": "size:6"}, "memcpy", "unknown"),
        ("Memset", {"memset_details": "kind:device size:6"}, "memset", None),
    ],
)  # fmt: skip
def test_copies_and_sets_are_told_apart(
    tmp_path: Path, name: str, stats: dict[str, str], kind: str, shown: str | None
) -> None:
    gpu = Plane("/device:GPU:0")
    gpu.event(gpu.line(1, "Stream #1(MemcpyH2D)"), name, 0, 1, **stats)
    (row,) = read(tmp_path, gpu).rows.to_dicts()
    assert row["kind"] == kind
    assert row.get("attr.direction") == shown
    assert row["attr.transfer_bytes"] == (6 if stats else None)
    if PINNED in str(stats):
        assert (row["attr.source"], row["attr.destination"]) == ("pinned", "device")


def pooled() -> Plane:
    """Return a host whose thread 1 asks thread 2 for an operator, and waits in the step."""
    host = Plane("/host:CPU")
    asking, pool = host.line(1, "python"), host.line(2, "tf_XLAPjRtCpuClient/2")
    host.event(asking, "train", 0, 100, step_num=0)
    host.event(asking, "Session", 1, 95)
    host.event(asking, "PjitFunction(f)", 10, 20)
    host.event(asking, "ThreadpoolListener::Record", 15, 15, _pt=15, _p=8)
    host.event(pool, REGION, 30, 30, _ct=15, _c=8)
    host.event(pool, "dot.3", 35, 60, hlo_op="dot.3", hlo_module="jit_f")
    host.event(pool, "Await", 40, 50)
    host.event(pool, "end: dot.3", 60, 61)
    host.event(pool, END, 62, 62)
    host.event(pool, "idle", 70, 80)
    return host


def test_work_of_a_pool_lies_in_what_asked_for_it_and_lasts_as_long(tmp_path: Path) -> None:
    trace = checked_trace(read(tmp_path, pooled()))
    assert children(trace, "Session") == ["PjitFunction(f)", "dot.3"]
    assert children(trace, "dot.3") == ["Await"]


def tpu() -> Plane:
    """Return a TPU that ran two steps: a loop with an operator in it, and an operator."""
    plane = Plane("/device:TPU:2", device_type_string="TPU v4")
    steps, modules, ops = (
        plane.line(n, s) for n, s in enumerate(("Steps", "XLA Modules", "XLA Ops"))
    )
    for number in range(2):
        at = 100 * number
        plane.event(steps, str(number), at, at + 90)
        plane.event(modules, "jit_f(1)", at, at + 90)
        plane.event(ops, "%while.1 = f32[] while()", at, at + 50)
        plane.event(ops, "%dot.2 = f32[] dot()", at + 10, at + 40)
        plane.event(ops, "%add.3 = f32[] add()", at + 50, at + 80)
    for entry in plane.message.event_metadata:
        if entry.value.name.startswith(b"%"):
            entry.value.display_name = entry.value.name[1:].split(b" ")[0]
    return plane


def test_a_graph_holds_what_its_launch_ran(tmp_path: Path) -> None:
    host, gpu = training()
    host.event(host.message.lines[0], "cuGraphLaunch", 30, 35, correlation_id=8)
    for number in range(3):
        gpu.event(gpu.message.lines[0], f"k{number}", 81 + number, 82 + number, correlation_id=8)
    gpu.event(gpu.message.lines[0], "k3", 90, 91, correlation_id=8, cuda_graph_id=5)
    recording = read(tmp_path, host, gpu)
    assert of(recording, "k3")["attr.graph"] == 5
    trace = checked_trace(recording)
    assert children(trace, "cuGraphLaunch") == ["k0", "k1", "k2", "k3"]


def test_scopes_of_gradients_are_layers_of_the_backward_pass(tmp_path: Path) -> None:
    host, gpu = training()
    thread = host.message.lines[0]
    host.event(thread, "gradient_tape/model/dense/MatMul/MatMul_1:MatMul", 60, 80)
    layers = read(tmp_path, host, gpu).rows.filter(pl.col("kind") == "layer").sort("start_ns")
    assert layers.select("name", "attr.phase").rows() == [
        ("model", "forward"),
        ("dense", "forward"),
        ("model", "backward"),
        ("dense", "backward"),
    ]


def test_calls_of_a_jitted_function_are_steps(tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    thread = host.line(42, "python")
    for at in (0, 100, 200):
        host.event(thread, "PjitFunction(predict)", at, at + 40)
        host.event(thread, "PjitFunction(predict)", at + 1, at + 39)
    host.event(thread, "PjitFunction(once)", 290, 299)
    steps = read(tmp_path, host).roots
    spans = steps.select(pl.col("start_ns") // 1000, pl.col("end_ns") // 1000).rows()
    assert spans == [(1, 101), (101, 201), (201, 300)]


def test_a_tpu_is_a_device_whose_operators_are_kernels(tmp_path: Path) -> None:
    recording = read(tmp_path, tpu())
    assert recording.rows["kind"].unique().to_list() == ["kernel"]
    assert recording.rows["device"].unique().to_list() == [2]
    assert recording.rows["attr.hlo_module"].unique().to_list() == ["jit_f(1)"]


def test_an_operator_that_holds_others_has_its_self_time(tmp_path: Path) -> None:
    recording = read(tmp_path, tpu())
    first = recording.rows.filter(pl.col("start_ns") < 100_000).sort("start_ns")
    times = first.select("name", pl.col("start_ns") // 1000, pl.col("end_ns") // 1000).rows()
    assert times == [("while.1", 1, 11), ("dot.2", 11, 41), ("while.1", 41, 51), ("add.3", 51, 81)]
    assert codes(recording)["self-time-alone"].endswith("twice: 2 %while.1")


def test_an_operator_without_length_takes_no_time_from_others(tmp_path: Path) -> None:
    plane = Plane("/device:TPU:0", device_type_string="TPU v4")
    ops = plane.line(0, "XLA Ops")
    for at in (0, 150):
        plane.event(ops, "%copy-done.4", at, at + 100)
        plane.event(ops, "%bitcast", at + 100, at + 100)
        plane.event(ops, "%fusion.1", at + 100, at + 150)
    recording = read(tmp_path, plane)
    assert recording.rows.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() == 300_000
    assert sorted(recording.rows["name"].unique()) == ["%bitcast", "%copy-done.4", "%fusion.1"]
    assert "self-time-alone" not in codes(recording)


def test_the_file_says_where_and_when_it_was_recorded(tmp_path: Path) -> None:
    facts = (
        Plane("/host:metadata", jax_version="0.9", jaxlib_version="0.9.1"),
        Plane("Task Environment", profile_start_time=1_700_000_000_000_000_000),
    )
    recording = read(tmp_path, *training(), *facts, field(4, b"node3"))
    assert recording.tool == "JAX's profiler 0.9"
    assert recording.host == "node3"
    assert recording.environment == {
        "devices": ["GPU 1 (80 cores, 16 GB)"],
        "versions": {"jax": "0.9", "jaxlib": "0.9.1"},
        "host": "node3",
    }
    assert recording.unix_ns == 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x0a",
        b"\x0a\x05\x12\x03abc",  # a plane with another name
        field(1, b"\x12\x09/elsewhere"[:11]),
        b'{"traceEvents": []}',
        b"SQLite format 3\0",
        b"\xff" * 64,
        field(2, b"/host:CPU"),
    ],
)
def test_other_files_are_not_recognized(tmp_path: Path, content: bytes) -> None:
    assert not XPlane().recognizes(written(tmp_path, content))


def test_of_a_file_that_is_cut_short_whole_planes_are_read(tmp_path: Path) -> None:
    host, gpu = (each.bytes() for each in training())
    recording = read(tmp_path, host, gpu[:-30])
    assert set(recording.rows["kind"]) == {"call", "layer", "op", "launch"}
    assert "1 whole plane" in codes(recording)["cut-short"]


def test_gzip_that_is_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    host, gpu = training()
    for number in range(3000):  # so that the second plane is not in the last block alone
        gpu.event(gpu.message.lines[0], f"k{number}", number, number + 1)
    packed = gzip.compress(host.bytes() + gpu.bytes())
    path = tmp_path / "a.pb.gz"
    path.write_bytes(packed[: len(packed) // 2])
    (recording,) = XPlane().read(Source(path))
    assert isinstance(recording, Recording)
    assert "cut-short" in codes(recording)


def test_damaged_events_are_counted_and_left_out(tmp_path: Path) -> None:
    host, gpu = training()
    line = host.message.lines[0]
    host.event(line, "backwards", 50, 40)
    line.events.add(metadata_id=999, offset_ps=1, duration_ps=1)  # a name that is not there
    far = host.line(5, "far", at_ns=(1 << 63) - 1)
    host.event(far, "never", 0, 1)
    recording = read(tmp_path, host, gpu)
    assert "3 events" in codes(recording)["damaged"]
    assert not {"backwards", "never"} & set(recording.rows["name"])


def test_names_that_are_no_text_and_hostile_numbers_are_read(tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    made = host.event(host.line(-1, "x"), "a", 0, 1)
    host.message.event_metadata[0].value.name = b"\xff\xfe\x1b[2J\n"
    made.stats.add(metadata_id=77, uint64_value=(1 << 64) - 1)
    host.event(host.message.lines[0], "b", 2, 3).stats.add(metadata_id=1)
    entry = host.message.stat_metadata.add(key=1)
    entry.value.name = b"correlation_id"
    host.message.lines[0].events.add(metadata_id=2, offset_ps=9, duration_ps=9000).stats.add(
        metadata_id=1, uint64_value=(1 << 64) - 1
    )
    recording = read(tmp_path, host)
    assert recording.rows.height == 3
    assert -1 in recording.rows["correlation_id"].to_list()


def wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message: slow, and obvious."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        elif tag & 7 == 2:
            size = number()
            at += size
            yield tag >> 3, data[at - size : at]
        else:
            size = 8 if tag & 7 == 1 else 4
            at += size
            yield tag >> 3, data[at - size : at]


def message(data: bytes) -> dict[int, list[Any]]:
    """Return the values of each field of a message."""
    found = defaultdict(list)
    for number, value in wire(data):
        found[number].append(value)
    return found


def slow_sums(content: bytes) -> dict[str, tuple[int, int]]:
    """Return count and summed ns of what ran on streams, by name."""
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for plane in map(message, message(content)[1]):
        if not plane[2] or not plane[2][0].startswith(b"/device:GPU"):
            continue
        metadata = {
            entry[1][0]: message(entry[2][0])[2][0].decode() for entry in map(message, plane[4])
        }
        for line in map(message, plane[3]):
            if line[2][0].startswith(b"Stream #"):
                for event in map(message, line[4]):
                    name = metadata[event[1][0]].removesuffix(".kd")
                    counts[name] += 1
                    sums[name] += event[3][0]
    return {name: (count, sums[name] // 1000) for name, count in counts.items()}


@pytest.mark.parametrize(("name", "count"), [(TENSORFLOW, 1330), (JAX, 235)])
def test_kernels_of_a_real_file_are_all_there(name: str, count: int) -> None:
    path = real_file(name)
    (recording,) = XPlane().read(Source(path))
    assert isinstance(recording, Recording)
    expected = slow_sums(path.read_bytes())
    found = sums_by_name(recording, "kernel")
    assert sum(number for number, _ in found.values()) == count
    assert found == {each: sums for each, sums in expected.items() if "Mem" not in each[:3]}


@pytest.mark.parametrize(("name", "work"), [(TENSORFLOW, 1556), (JAX, 235)])
def test_device_rows_of_a_real_file_lie_with_their_calls(name: str, work: int) -> None:
    (recording,) = XPlane().read(Source(real_file(name)))
    assert isinstance(recording, Recording)
    trace = checked_trace(recording, steps=False)
    assert astray(trace) == 0
    assert launched(trace) >= 0.99 * work


def under(trace: Any, kinds: Sequence[str]) -> float:
    """Return which part of the kernels' time lies in a span of these kinds."""
    spans = {row["span_id"]: row for row in trace.spans.iter_rows(named=True)}
    time = inside = 0.0
    for row in spans.values():
        if row["kind"] == "kernel":
            above = spans[row["parent_id"]]
            while above["kind"] not in kinds and above["parent_id"] is not None:
                above = spans[above["parent_id"]]
            time += row["latency_ns"]
            inside += row["latency_ns"] if above["kind"] in kinds else 0
    return inside / time


@pytest.mark.parametrize("name", [TENSORFLOW, JAX])
def test_kernels_of_a_real_file_lie_under_operators(name: str) -> None:
    (recording,) = XPlane().read(Source(real_file(name)))
    assert isinstance(recording, Recording)
    assert under(checked_trace(recording), ["op"]) > 0.95


def test_a_file_that_tensorflows_profiler_wrote_has_its_operators(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(gzip.decompress((DATA / "saved-model.xplane.pb.gz").read_bytes()))
    (recording,) = XPlane().read(Source(path))
    assert isinstance(recording, Recording)
    nodes = recording.rows.filter(pl.col("attr.framework") == "tensorflow")
    assert nodes["name"].to_list().count("_MklNativeFusedConv2D") == 4  # of two runs
    assert set(nodes.filter(name="Mean")["attr.scope"]) == {
        "StatefulPartitionedCall/net_1/pool_1/Mean"
    }
