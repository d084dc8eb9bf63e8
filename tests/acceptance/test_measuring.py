"""Promises of README.md and docs/trace.md about `xsp.measure`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from onnx_models import residual
from small import images, measured, network
from torch import nn

import xsp

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def trace() -> xsp.Trace:
    return measured()


def names(trace: xsp.Trace, kind: str) -> list[str]:
    return trace.spans.filter(kind=kind)["name"].to_list()


def test_the_tree_shows_layers_with_latency_share_and_overhead(trace: xsp.Trace) -> None:
    assert re.search(r"time +% +what", str(trace))
    shown = trace.tree(errors=True, overhead=True)
    assert "within this run" in shown.splitlines()[0]
    assert re.search(r"time +% +overhead +what", shown)
    every = trace.tree(rows=None, smallest=0.0, width=120)
    for row in ("0  Linear", "1  ReLU", "2  Linear", "aten::addmm"):
        assert re.search(rf"[├└]─ {row}\b", every), every


def test_operators_lie_in_the_layers_that_call_them(trace: xsp.Trace) -> None:
    paths = trace.spans.filter(kind="op")["path"].to_list()
    assert any(re.fullmatch(r"predict/Sequential/0/aten::linear", path) for path in paths)
    assert any(path.endswith("/1/aten::relu") for path in paths)
    trace.check()


def test_spans_are_a_frame_with_the_documented_columns(trace: xsp.Trace) -> None:
    page = (DOCS / "trace.md").read_text(encoding="utf-8")
    table = page[page.index("## Columns") : page.index("A parent may be of a deeper kind")]
    columns = re.findall(r"^\| `(\w+)` \| `(\w+)`", table, re.MULTILINE)
    assert [name for name, _ in columns] == trace.spans.columns
    for name, kind in columns:
        assert str(trace.spans.schema[name]).startswith(kind), name


def test_the_root_comes_first_and_parents_before_children(trace: xsp.Trace) -> None:
    spans = trace.spans
    assert spans["parent_id"][0] is None
    seen: set[int] = set()
    for own, parent in spans.select("span_id", "parent_id").rows():
        assert parent is None or parent in seen
        seen.add(own)
    assert trace.root.path == spans["path"][0]
    assert [child.path for child in trace.children(trace.root)] == ["predict/Sequential"]


def test_no_span_is_drawn_longer_than_the_model(trace: xsp.Trace) -> None:
    assert (trace.spans["latency_ns"] >= 0).all()
    drawn = trace.spans["end_ns"] - trace.spans["start_ns"]
    assert (drawn >= 0).all()
    assert (drawn <= drawn[0]).all()


@pytest.mark.parametrize(
    ("levels", "kinds"),
    [
        (1, {"region"}),
        ("model", {"region"}),
        (2, {"region", "layer", "op"}),
        (("model", "framework"), {"region", "layer", "op"}),
    ],
)
def test_levels_by_number_and_name(levels: Any, kinds: set[str]) -> None:
    assert set(measured(levels=levels, runs=2).spans["kind"]) == kinds


def test_an_unknown_level_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"did you mean model\?.*1 \(model\), 2 \(framework"):
        xsp.measure(print, levels="modell")


def test_library_calls_say_which_implementation_ran() -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3)).eval()
    with torch.inference_mode():
        trace = xsp.measure(model, torch.ones(4, 16, 32, 32), levels=3, runs=3)
    calls = trace.spans.filter(kind="call").unnest("attributes")
    convolution = calls.filter(pl.col("name").str.contains("convolution")).row(0, named=True)
    assert convolution["implementation"]
    assert convolution["flops"] > 0
    assert convolution["path"].startswith("predict/Sequential/0/aten::conv2d")


def test_any_callable_is_measured_with_its_own_spans() -> None:
    def classify(values: list[int]) -> int:
        with xsp.span("normalize"):
            scaled = [each * 2 for each in values]
        with xsp.span("add up"):
            return sum(scaled)

    trace = xsp.measure(classify, list(range(1000)), levels=1, runs=3)
    assert trace.name == "classify"
    assert trace.spans["name"].to_list() == ["classify", "normalize", "add up"]


def test_a_session_of_onnx_runtime_shows_its_nodes() -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(residual(), providers=["CPUExecutionProvider"])
    inputs = {"x": np.ones((1, 16, 8, 8), np.float32)}
    trace = xsp.measure(session.run, None, inputs, levels=2, runs=3)
    assert "Conv" in names(trace, "op")
    assert {"conv1", "conv2"} <= set(names(trace, "layer"))


def test_a_call_that_changes_its_arguments_is_told_and_setup_makes_them_anew() -> None:
    lengths: list[int] = []

    def append(cache: list[int]) -> None:
        lengths.append(len(cache))
        cache.append(1)

    trace = xsp.measure(append, [0], levels=1, runs=4)
    assert lengths == list(range(1, len(lengths) + 1))
    assert any("setup=" in warning.message for warning in trace.warnings)
    lengths.clear()
    trace = xsp.measure(append, setup=lambda: ([0],), levels=1, runs=4)
    assert set(lengths) == {1}
    assert not any("setup=" in warning.message for warning in trace.warnings)


def test_a_graph_that_is_freed_says_how_to_make_it_anew() -> None:
    loss = network()(images()).sum()
    with pytest.raises(RuntimeError, match="a second time") as raised:
        xsp.measure(lambda loss: loss.backward(), loss, levels=1, runs=4)
    assert "setup=" in raised.value.__notes__[0]


def test_a_function_that_trains_goes_on_training() -> None:
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = next(model.parameters()).detach().clone()

    def step() -> None:
        optimizer.zero_grad()
        model(images()).sum().backward()
        optimizer.step()

    xsp.measure(step, levels=2, runs=3)
    assert not torch.equal(next(model.parameters()), before)


def test_nothing_of_pytorch_stays_changed() -> None:
    call, code = nn.Module.__call__, nn.Module.__call__.__code__
    model = network()
    with torch.inference_mode():
        plain = model(images())
        measured(model)
        assert torch.equal(model(images()), plain)
    assert nn.Module.__call__ is call
    assert call.__code__ is code
    assert not model._forward_hooks
    assert not torch.autograd._profiler_enabled()


def test_an_exception_of_the_function_comes_through_as_it_is() -> None:
    error = KeyError("mine")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        xsp.measure(fail, levels=1)
    assert caught.value is error


def test_a_measurement_within_a_measurement_is_refused() -> None:
    def outer() -> None:
        xsp.measure(lambda: None, levels=1, runs=1)

    with pytest.raises(xsp.MeasurementError, match=r"runs in this process .*End it first"):
        xsp.measure(outer, levels=1, runs=1)


def test_a_coroutine_function_is_refused_in_words() -> None:
    async def predict() -> None:
        pass

    with pytest.raises(TypeError, match="coroutine"):
        xsp.measure(predict)


def test_a_trimmed_mean_has_an_interval_and_there_is_no_minimum() -> None:
    with pytest.raises(ValueError, match="there are trimmed, median, mean"):
        measured(levels=1, statistic="min")
    mean = measured(levels=1).root
    assert mean.latency_low_ns is not None
    assert mean.latency_high_ns is not None
    assert mean.latency_ns is not None
    assert mean.latency_low_ns <= mean.latency_ns <= mean.latency_high_ns


def test_progress_is_told_and_may_end_the_measurement() -> None:
    told: list[float] = []

    def progress(fraction: float) -> None:
        told.append(fraction)
        if len(told) == 40:
            raise xsp.StopMeasurement

    trace = xsp.measure(lambda: None, levels=1, progress=progress, budget=600)
    assert len(told) == 40
    assert all(0 <= fraction <= 1 for fraction in told)
    assert trace.root.runs > 0


def test_a_trace_cannot_be_changed(trace: xsp.Trace) -> None:
    with pytest.raises(AttributeError, match="read-only"):
        trace.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        trace.metadata["name"] = "other"  # type: ignore[index]
    before = trace.spans.height
    trace.spans.drop_in_place("name")
    assert trace.spans.height == before
    assert "name" in trace.spans.columns


def test_the_metadata_say_how_the_trace_came_to_be(trace: xsp.Trace) -> None:
    assert trace.metadata["xsp_version"] == xsp.__version__
    assert trace.metadata["levels"]["framework"] == "measured"
    assert [pass_["pass"] for pass_ in trace.metadata["passes"]][:2] == ["bare", "region"]
    assert trace.metadata["environment"]["python"]
    assert trace.metadata["plan"]["runs"] == 5


def test_a_notebook_shows_the_tree_as_html(trace: xsp.Trace) -> None:
    shown = trace._repr_html_()
    assert shown.lstrip().startswith("<")
    assert "Linear" in shown
    assert "<script src" not in shown


def test_pandas_has_the_same_spans(trace: xsp.Trace) -> None:
    pytest.importorskip("pandas", reason="needs pandas: pip install 'xsp[pandas]'")
    frame = trace.to_pandas()
    assert list(frame.columns) == trace.spans.columns
    assert frame["path"].tolist() == trace.spans["path"].to_list()


def test_a_span_costs_nothing_to_the_result_while_nothing_profiles() -> None:
    @xsp.span("work")
    def work(number: int) -> int:
        return 2 * number

    with xsp.span("outside", level="model"):
        assert work(4) == 8
