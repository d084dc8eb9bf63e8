"""NVTX events of Nsight Systems' files: what becomes of ranges, and which of them are steps."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from nsight import NEW, OLD, PID, Export, global_id

import xsp
from xsp.importers import Recording


@pytest.fixture(params=[OLD, NEW], ids=["2023", "2025"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite", request.param)


def not_shown(recording: Recording) -> str:
    (message,) = [each.message for each in recording.problems if each.code == "not-understood"]
    return message


def table(recording: Recording, *columns: str) -> list[tuple[object, ...]]:
    return recording.rows.select(columns).rows()


def test_ranges_of_the_user_are_pipeline_spans_that_name_their_domain(export: Export) -> None:
    export.domain(3, "loader").nvtx("forward", 10, 90).nvtx("decode", 20, 30, domainId=3)
    export.nvtx(None, 40, 50, textId=export.string("registered"), domainId=4)  # type: ignore[arg-type]
    found = table(export.read(), "kind", "name", "start_ns", "end_ns", "thread", "attr.nvtx_domain")
    assert found == [
        ("pipeline", "forward", 10, 90, 1, None),
        ("pipeline", "decode", 20, 30, 1, "loader"),
        ("pipeline", "registered", 40, 50, 1, "domain 4"),
    ]


@pytest.mark.parametrize("domain", ["NCCL", "CCCL", "cuBLAS", "cublasLt", "cuDNN", "libcudf"])
def test_ranges_in_the_domain_of_a_library_are_its_calls(export: Export, domain: str) -> None:
    export.domain(1, domain).nvtx("ncclAllReduce", 10, 20, domainId=1)
    found = table(export.read(), "kind", "name", "attr.library", "attr.nvtx_domain")
    assert found == [("call", "ncclAllReduce", domain, domain)]


def test_domain_whose_name_only_begins_as_a_library_is_the_users(export: Export) -> None:
    export.domain(1, "cubicles").nvtx("forward", 10, 20, domainId=1)
    assert table(export.read(), "kind") == [("pipeline",)]


@pytest.mark.parametrize(
    ("text", "name", "sequence", "shapes"),
    [
        ("aten::conv2d, seq = 12, op_id = 3", "aten::conv2d", 12, None),
        ("conv2d, seq = 0", "conv2d", 0, None),
        ("aten::relu, op_id = 7", "aten::relu", None, None),
        (
            "aten::mm, seq = 4, op_id = 9, sizes = [[2, 3], []], input_op_ids = [(1, 0)]",
            *("aten::mm", 4, [[2, 3], []]),
        ),
        ("aten::cat, seq = 4, op_id = 9, sizes = [[[2], [3]]]", "aten::cat", 4, None),
    ],
)
def test_ranges_of_emit_nvtx_are_operators(
    export: Export, text: str, name: str, sequence: int | None, shapes: list[list[int]] | None
) -> None:
    found = table(export.nvtx(text, 10, 20).read(), "kind", "name", "sequence", "attr.input_shapes")
    assert found == [("op", name, sequence, shapes)]


def test_functions_that_the_user_recorded_within_emit_nvtx_are_pipeline_spans(
    export: Export,
) -> None:
    assert table(export.nvtx("my step, op_id = 7", 10, 20).read(), "kind", "name") == [
        ("pipeline", "my step")
    ]


def test_backward_operators_find_the_layer_of_their_forward(export: Export) -> None:
    backward = {"globalTid": global_id(PID, 2)}
    export.nvtx("{'Module': 'model.fc', 'Inputs': [[2, 3]]}", 10, 40)
    export.nvtx("aten::addmm, seq = 5, op_id = 1", 20, 30)
    export.nvtx("AddmmBackward0, seq = 5, op_id = 2", 60, 80, **backward)
    recording = export.read()
    assert table(recording, "kind", "name", "thread", "forward_thread") == [
        ("layer", "fc", 1, None),
        ("op", "aten::addmm", 1, None),
        ("op", "AddmmBackward0", 2, 1),
    ]
    spans = xsp.read(export.path).spans
    names = dict(spans.select("span_id", "name").iter_rows())
    (parent,) = spans.filter(pl.col("name") == "AddmmBackward0")["parent_id"]
    assert names[parent] == "fc"


def test_backward_operator_whose_forward_may_be_on_several_threads_has_none(export: Export) -> None:
    for thread in (1, 2):
        export.nvtx("aten::mm, seq = 5", 20, 30, globalTid=global_id(PID, thread))
    export.nvtx("MmBackward0, seq = 5", 60, 80, globalTid=global_id(PID, 3))
    assert export.read().rows["forward_thread"].to_list() == [None, None, None]


@pytest.mark.parametrize(
    ("text", "domain", "name", "path"),
    [
        ("{'Module': 'model.layers.0', 'Inputs': []}", "", "0", "model.layers.0"),
        ("nn.Module: Linear_0", "", "Linear_0", None),
        ("conv1 + relu", "TensorRT", "conv1 + relu", None),
    ],
)
def test_ranges_that_say_they_are_modules_are_layers(
    export: Export, text: str, domain: str, name: str, path: str | None
) -> None:
    found = export.domain(1, domain).nvtx(text, 10, 20, domainId=1).read()
    assert table(found, "kind", "name", "attr.module_path") == [("layer", name, path)]


def test_start_end_range_is_shown_unless_it_ends_on_another_thread(export: Export) -> None:
    here, there = (global_id(PID, thread) for thread in (1, 2))
    export.nvtx("copy", 10, 20, eventType=60, endGlobalTid=here)
    export.nvtx("request", 10, 50, eventType=60, endGlobalTid=there)
    export.nvtx("whole", 60, 90, eventType=60)
    recording = export.read()
    assert table(recording, "name") == [("copy",), ("whole",)]
    assert not_shown(recording).endswith(": ranges that end on another thread (1)")


def test_events_that_are_no_ranges_are_counted_by_name(export: Export) -> None:
    export.nvtx("forward", 10, 20).nvtx("open", 30, None).nvtx("damaged", 50, 40)
    for start in (1, 2):
        export.nvtx("epoch", start, None, eventType=34)
    export.nvtx("Holding GIL", 5, 15).nvtx("queue", 1, None, eventType=33)
    export.nvtx("new", 5, 15, eventType=999)
    recording = export.read()
    assert table(recording, "name") == [("forward",)]
    assert not_shown(recording).partition(": ")[2].split(", ") == [
        "NvtxMark (2)",
        "Nvtx event 999 (1)",
        "ranges that had no end yet (1)",
        "damaged ranges (1)",
        "ranges of Python's lock (1)",
    ]


def test_numbers_of_events_are_read_from_the_file(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.add("ENUM_NSYS_EVENT_TYPE", id=7, name="NvtxPushPopRange")
    export.nvtx("forward", 10, 20, eventType=7)
    assert table(export.read(), "name") == [("forward",)]


def in_steps(export: Export, names: list[str]) -> Export:
    """Add steps of 100 ns, with a launch in each."""
    for number, name in enumerate(names):
        export.nvtx(name, 100 * number, 100 * number + 90)
        export.nvtx("forward", 100 * number + 10, 100 * number + 30)
        export.call("cudaLaunchKernel", 100 * number + 20, 100 * number + 25, number + 1)
        export.kernel("gemm", 100 * number + 40, 100 * number + 60 + number, number + 1)
    return export


@pytest.mark.parametrize(
    "names",
    [["step 8", "step 9", "step 10"], ["ProfilerStep#1", "ProfilerStep#2"], ["train", "train"]],
)
def test_repeated_outermost_ranges_are_evaluations(export: Export, names: list[str]) -> None:
    recording = in_steps(export, names).read()
    assert recording.roots["name"].to_list() == names
    assert "pipeline" in recording.rows["kind"]
    assert not set(names) & set(recording.rows["name"])
    kernels = xsp.read(export.path).spans.filter(pl.col("kind") == "kernel")
    assert kernels["runs"].to_list() == [len(names)]


def test_what_comes_once_beside_the_steps_is_none(export: Export) -> None:
    names = ["load", "step 1", "step 2", "save"]
    assert in_steps(export, names).read().roots["name"].to_list() == ["step 1", "step 2"]
    assert "outside" in [each["code"] for each in xsp.read(export.path).metadata["problems"]]


@pytest.mark.parametrize(
    "names", [["forward", "backward", "forward", "backward"], ["step 1"], ["load", "train"]]
)
def test_ranges_that_may_be_something_else_are_no_evaluations(
    export: Export, names: list[str]
) -> None:
    assert in_steps(export, names).read().roots.is_empty()


def test_ranges_around_few_of_the_launches_are_no_evaluations(export: Export) -> None:
    in_steps(export, ["warm-up 1", "warm-up 2"])
    for number in range(3, 9):
        export.call("cudaLaunchKernel", 1000 * number, 1000 * number + 5, number)
    assert export.read().roots.is_empty()


def test_ranges_of_a_thread_that_launches_less_are_no_evaluations(export: Export) -> None:
    loader = {"globalTid": global_id(PID, 2)}
    for start in (0, 50):
        export.nvtx("load", start, start + 40, **loader).call("cudaMalloc", start, start + 9, 0)
    assert export.read().roots.is_empty()
