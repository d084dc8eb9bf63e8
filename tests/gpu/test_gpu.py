"""Properties that only a GPU can show. scripts/gpu runs this, and what else needs one.

On an H200 with PyTorch 2.11 all passed, each in a process of its own, but four that missed launches
by the driver, which are recorded otherwise since. Those marked slow, and those that need a newer
PyTorch, have not run on a GPU yet.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest
import scenes
import torch
import tqdm
from torch.profiler import ProfilerActivity, profile

import xsp
from xsp.measuring.call.recording import record
from xsp.measuring.target import isolation as isolate
from xsp.measuring.target.spec import Spec
from xsp.record.session.settings import settings_of
from xsp.testing import replay
from xsp.trace.coverage import attribution
from xsp.trace.document import Trace
from xsp_levels.native.stderr_filter import vendor_silenced

tqdm.tqdm.monitor_interval = 0  # its thread would stay behind

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
    return {warning.code for warning in trace.warnings}


def kernels(trace: Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("kind") == "kernel")


def parents(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    above = trace.spans.select(parent_id="span_id", above="kind", above_name="name")
    return spans.join(above, on="parent_id", how="left")


@contextmanager
def torch_profiler() -> Iterator[Any]:
    with vendor_silenced(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield profiler


# Prints the durations of every kernel that torch.profiler sees, in ns, by full name.
PROFILER = """
import collections, json, sys, torch
sys.path.insert(0, "tests/gpu")
import scenes
from torch.profiler import ProfilerActivity, profile
for _ in range(3):
    scenes.convolutions()
with profile(activities=[ProfilerActivity.CUDA]) as profiler:
    for _ in range(30):
        scenes.convolutions()
    torch.cuda.synchronize()
found = collections.defaultdict(list)
for event in profiler.profiler.kineto_results.events():
    if event.device_type() == torch.autograd.DeviceType.CUDA:
        found[event.name()].append(event.duration_ns())
print(json.dumps(found))
"""


def kernels_of_torch_profiler() -> dict[str, list[float]]:
    """Return durations in ns by full name, seen in a process that torch.profiler has to itself."""
    said = subprocess.run([sys.executable, "-c", PROFILER], stdout=subprocess.PIPE, check=True)
    found: dict[str, list[float]] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.__name__)
def test_nothing_is_lost(scene: Callable[[], Any]) -> None:
    trace = measured(scene)
    assert kernels(trace).height
    assert codes(trace).isdisjoint(LOST), trace.warnings
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
    assert {"region", "layer", "op"} <= set(replayed["kind"])
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


def test_names_of_generated_kernels_list_the_operators() -> None:
    found = kernels(measured(scenes.compiled))
    assert found["name"].str.contains("^triton_.*fused").any()


def test_kernel_latencies_are_those_of_torch_profiler() -> None:
    ours = kernels(measured(scenes.convolutions, runs=30)).unnest("attributes")
    theirs = kernels_of_torch_profiler()
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
    with torch_profiler():
        scenes.attention()
        torch.cuda.synchronize()
    between = measured(scenes.attention)
    with torch_profiler() as after:
        scenes.attention()
        torch.cuda.synchronize()
    again = measured(scenes.attention)
    assert any(event.device_time_total for event in after.key_averages())
    assert kernels(between).height == kernels(again).height > 0


@pytest.mark.skipif(
    KEEPS_CUPTI, reason="needs PyTorch 2.15: before, its profiler keeps CUPTI once it has run"
)
def test_another_profiler_at_the_same_time_costs_the_kernel_level_only() -> None:
    """PyTorch's does not subscribe since 2.15, but that it has kernels recorded is seen."""
    with torch_profiler():
        trace = measured(scenes.attention)
    assert kernels(trace).is_empty()
    assert trace.spans.filter(pl.col("kind") == "layer").height
    assert any("CUPTI" in warning.message for warning in trace.warnings)


def test_a_training_loop_is_seen_whole_with_its_kernels_and_moves() -> None:
    model = torch.nn.Sequential(scenes.Attention(), torch.nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = [(torch.randn(8, 32, 256), torch.randint(10, (8, 32))) for _ in range(120)]
    with xsp.profile(levels=4, runs=4) as prof:
        for tokens, wanted in torch.utils.data.DataLoader(data, batch_size=None):
            logits = model(tokens.cuda())
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.cuda().flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    trace = prof.trace
    trace.check()
    assert codes(trace).isdisjoint(LOST), trace.warnings
    assert kernels(trace).height
    assert 0 < trace.spans["device_ns"][0] <= 1.02 * trace.spans["latency_ns"][0]
    tree = trace.tree(rows=200)
    for part in (
        "training iteration",
        "data loading",
        "backward",
        "optimizer step",
        "move to device",
    ):
        assert part in tree, tree


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
def test_in_a_synchronous_measurement_layers_wait_for_their_kernels() -> None:
    spec = Spec(f"{scenes.__file__}:convolutions")
    trace = isolate.measure_isolated(spec, settings_of(4, runs=3, budget=60.0), synchronous=True)
    assert codes(trace).isdisjoint({"synchronous-failed", "no-launch", "ambiguous"}), trace.warnings
    layers = trace.spans.filter(pl.col("kind") == "layer").unnest("attributes")
    assert layers.height
    assert layers["synchronous_ns"].null_count() == 0
    assert (layers["synchronous_ns"] > 0.9 * layers["device_ns"]).all()
