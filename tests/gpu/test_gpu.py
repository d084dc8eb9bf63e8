"""What only a GPU can show. scripts/gpu runs this, and what else needs one.

None of it has run on a GPU yet: what a test expects is what CUPTI's manual says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest
import scenes
import torch
from torch.profiler import ProfilerActivity, profile

import xsp
from xsp.measurement.recording import record
from xsp.session.settings import settings_of
from xsp.target import isolation as isolate
from xsp.target.spec import Spec
from xsp.testing import replay
from xsp.trace.coverage import attribution
from xsp.trace.document import Trace
from xsp_levels.native.stderr_filter import vendor_silenced

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs an NVIDIA GPU and PyTorch for CUDA: run scripts/gpu on a machine with both",
    ),
]

LOST = {"dropped", "no-launch", "idle-launches", "orphans", "provider-failed", "level-left-out"}
EAGER = (scenes.convolutions, scenes.attention, scenes.two_streams)


def measured(scene: Callable[[], Any], runs: int = 5) -> Trace:
    for _ in range(3):
        scene()
    return xsp.measure(scene, levels=4, runs=runs, progress=False)


def codes(trace: Trace) -> set[str]:
    return {problem.code for problem in trace.problems}


def kernels(trace: Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("kind") == "kernel")


def parents(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    above = trace.spans.select(parent_id="span_id", above="kind", above_name="name")
    return spans.join(above, on="parent_id", how="left")


@contextmanager
def torch_profiler() -> Iterator[Any]:
    with vendor_silenced(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield profiler


def kernels_of(profiler: Any) -> dict[str, list[float]]:
    """Return the durations of every kernel that torch.profiler saw, in ns, by full name."""
    found = defaultdict(list)
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            found[event.name()].append(float(event.duration_ns()))
    return found


@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.__name__)
def test_nothing_is_lost(scene: Callable[[], Any]) -> None:
    trace = measured(scene)
    assert kernels(trace).height
    assert codes(trace).isdisjoint(LOST), trace.problems
    trace.check()


@pytest.mark.parametrize("scene", EAGER, ids=lambda scene: scene.__name__)
def test_kernels_of_eager_models_lie_under_layers_and_operators(
    scene: Callable[[], Any],
) -> None:
    found = attribution(measured(scene).spans)
    assert found is not None
    assert found.layer is not None
    assert found.operator is not None
    assert found.layer >= 0.99
    assert found.operator >= 0.99


def test_kernels_of_the_backward_pass_lie_under_its_operators() -> None:
    trace = measured(scenes.training)
    found = attribution(trace.spans)
    assert found is not None
    assert found.operator is not None
    assert found.operator >= 0.99
    backward = trace.spans.filter(pl.col("name") == "backward")
    assert backward["device_ns"].sum() > 0


def test_devices_are_busy_no_longer_than_the_evaluation_lasts() -> None:
    root = measured(scenes.attention).spans.row(0, named=True)
    assert 0 < root["device_ns"] <= 1.02 * root["latency_ns"]


def test_cublas_calls_hold_their_launches() -> None:
    trace = measured(scenes.attention)
    launches = parents(trace, trace.spans.filter(pl.col("kind") == "launch"))
    assert launches.filter(pl.col("above") == "call").height
    assert trace.spans.filter(pl.col("kind") == "call")["name"].str.contains("cublas").any()


def test_kernels_of_a_graph_lie_under_what_captured_them() -> None:
    scenes.forget()
    trace = xsp.measure(scenes.graphed, levels=4, runs=5, progress=False)
    replayed = trace.spans.filter(trace.spans["attributes"].struct.field("replayed"))
    assert {"pipeline", "layer", "op"} <= set(replayed["kind"])
    assert "graph-unseen" not in codes(trace)
    found = attribution(trace.spans)
    assert found is not None
    assert found.layer is not None
    assert found.layer >= 0.99


def test_kernels_of_a_graph_that_nobody_saw_captured_lie_under_its_launch() -> None:
    trace = measured(scenes.graphed)
    names = parents(trace, kernels(trace))["above_name"].unique().to_list()
    assert names
    assert all("GraphLaunch" in name for name in names)
    assert "graph-unseen" in codes(trace)


def test_graphs_of_cuda_graph_trees_show_their_operators() -> None:
    """`reduce-overhead` captures in its second or third call, while xsp warms up."""
    scenes.forget()
    trace = xsp.measure(scenes.reduced, levels=4, runs=5, progress=False)
    assert trace.spans["name"].str.contains("GraphLaunch").any()
    assert "graph-unseen" not in codes(trace)
    found = attribution(trace.spans)
    assert found is not None
    assert found.operator is not None
    assert found.operator >= 0.9


def test_generated_kernels_say_what_they_were_generated_for() -> None:
    found = kernels(measured(scenes.compiled)).unnest("attributes")
    generated = found.filter(pl.col("name").str.starts_with("triton_"))
    assert generated.height
    assert generated["source_ops"].str.contains("aten.").any()


def test_kernel_latencies_are_those_of_torch_profiler() -> None:
    ours = kernels(measured(scenes.convolutions, runs=30)).unnest("attributes")
    with torch_profiler() as profiler:
        for _ in range(30):
            scenes.convolutions()
        torch.cuda.synchronize()
    theirs = kernels_of(profiler)
    means = ours.group_by("full_name").agg(pl.col("latency_ns").median()).rows()
    differences = [
        abs(latency / median(theirs[name]) - 1) for name, latency in means if name in theirs
    ]
    assert len(differences) >= len(means) / 2
    assert median(differences) <= 0.01


KEEPS_CUPTI = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15)


@pytest.mark.skipif(
    KEEPS_CUPTI, reason="needs PyTorch 2.15: before, its profiler keeps CUPTI once it has run"
)
def test_another_profiler_may_come_before_and_after() -> None:
    with torch_profiler() as before:
        scenes.attention()
        torch.cuda.synchronize()
    between = measured(scenes.attention)
    with torch_profiler() as after:
        scenes.attention()
        torch.cuda.synchronize()
    again = measured(scenes.attention)
    assert len(kernels_of(before)) == len(kernels_of(after))
    assert kernels(between).height == kernels(again).height > 0


def test_another_profiler_at_the_same_time_costs_the_kernel_level_only() -> None:
    """PyTorch's does not subscribe since 2.15, but that it has kernels recorded is seen."""
    with torch_profiler():
        trace = measured(scenes.attention)
    assert kernels(trace).is_empty()
    assert trace.spans.filter(pl.col("kind") == "layer").height
    assert any("CUPTI" in problem.message for problem in trace.problems)


@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.__name__)
def test_a_recording_makes_the_same_tree(scene: Callable[[], Any], tmp_path: Path) -> None:
    scene()
    recording = record(scene, settings=settings_of(4, runs=3), progress=False)
    here, there = recording.trace(), replay(recording.save(tmp_path / "scene.xsprec"))
    columns = ("path", "kind", "name", "latency_ns", "device_ns")
    assert there.spans.select(columns).equals(here.spans.select(columns))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_kernels_are_all_there() -> None:
    trace = xsp.measure(scenes.many, levels=("model", "kernel"), runs=20, progress=False)
    assert kernels(trace).height >= scenes.KERNELS
    assert codes(trace).isdisjoint(LOST)


@pytest.mark.slow
def test_in_a_serialised_run_layers_wait_for_their_kernels() -> None:
    spec = Spec(f"{scenes.__file__}:convolutions")
    trace = isolate.measure_isolated(spec, settings_of(4, runs=3, budget=60.0), serialised=True)
    assert codes(trace).isdisjoint({"serialised-failed", "no-launch", "ambiguous"}), trace.problems
    layers = trace.spans.filter(pl.col("kind") == "layer").unnest("attributes")
    assert layers.height
    assert layers["serialised_ns"].null_count() == 0
    assert (layers["serialised_ns"] > 0.9 * layers["device_ns"]).all()
