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
    (message,) = [each.message for each in recording.warnings if each.code == "not-understood"]
    return message


def table(recording: Recording, *columns: str) -> list[tuple[object, ...]]:
    return recording.rows.select(columns).rows()


def test_ranges_of_the_user_are_pipeline_spans_that_name_their_domain(export: Export) -> None:
    export.domain(3, "loader").nvtx("forward", 10, 90).nvtx("decode", 20, 30, domainId=3)
    export.nvtx(None, 40, 50, textId=export.string("registered"), domainId=4)  # type: ignore[arg-type]
    found = table(export.read(), "kind", "name", "start_ns", "end_ns", "thread", "attr.nvtx_domain")
    assert found == [
        ("region", "forward", 10, 90, 1, None),
        ("region", "decode", 20, 30, 1, "loader"),
        ("region", "registered", 40, 50, 1, "domain 4"),
    ]


@pytest.mark.parametrize("domain", ["NCCL", "CCCL", "cuBLAS", "cublasLt", "cuDNN", "libcudf"])
def test_ranges_in_the_domain_of_a_library_are_its_calls(export: Export, domain: str) -> None:
    export.domain(1, domain).nvtx("ncclAllReduce", 10, 20, domainId=1)
    found = table(export.read(), "kind", "name", "attr.library", "attr.nvtx_domain")
    assert found == [("call", "ncclAllReduce", domain, domain)]


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
    assert "region" in recording.rows["kind"]
    assert not set(names) & set(recording.rows["name"])
    kernels = xsp.read(export.path).spans.filter(pl.col("kind") == "kernel")
    assert kernels["runs"].to_list() == [len(names)]


@pytest.mark.parametrize(
    "names", [["forward", "backward", "forward", "backward"], ["step 1"], ["load", "train"]]
)
def test_ranges_that_may_be_something_else_are_no_evaluations(
    export: Export, names: list[str]
) -> None:
    assert in_steps(export, names).read().roots.is_empty()
