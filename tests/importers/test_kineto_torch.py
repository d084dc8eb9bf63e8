"""What torch.profiler writes here, against what xsp measures of the same models.

The files lack the attribute by which a module is held (`conv1`), so that layers are compared by
their classes; and sizes of parameters, shapes that modules return, and times without overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from chrome import read, trace

import xsp
from xsp.trace import Trace

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn: Any = torch.nn
Span = tuple[int, str, str]


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.norm(self.conv(x)) + x)


RANGE = "features"


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        with torch.profiler.record_function(RANGE):
            features = self.blocks(self.stem(x)).mean((2, 3))
        return self.head(features)


def inference() -> Callable[[], None]:
    model, images = Net().eval(), torch.randn(2, 3, 8, 8)

    def call() -> None:
        with torch.no_grad():
            model(images)

    return call


def training() -> Callable[[], None]:
    model, images = Net().train(), torch.randn(2, 3, 8, 8)

    def call() -> None:
        model.zero_grad()
        model(images).sum().backward()

    return call


def transformer() -> Callable[[], None]:
    model, tokens = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(1, 4, 8)

    def call() -> None:
        model(tokens).sum().backward()

    return call


def recorded(call: Callable[[], None], path: Path, **options: Any) -> Path:
    """Return the file of one call that torch.profiler recorded, after one that it did not."""
    call()
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, **{"with_stack": True, **options}) as profile:
        call()
    profile.export_chrome_trace(str(path))
    return path


def tree(made: Trace) -> list[Span]:
    """Return layers and operators: depth among these, kind, and class or name.

    A range of `record_function` is an operator of a measurement, and a region of a recording.
    """
    spans = made.spans.with_row_index("row")
    spans = spans.drop("attributes").hstack(spans["attributes"].struct.unnest())
    marked = pl.when(pl.col("name") == RANGE).then(pl.lit("region"))
    kinds = spans.select(marked.otherwise(pl.col("kind").cast(pl.String))).to_series().to_list()
    ids = spans["span_id"].to_list()
    label = "module_class" if "module_class" in spans.columns else "name"
    labels = spans.select(pl.coalesce(label, "name")).to_series().to_list()
    depth = {None: 0}
    for kind, own, above in zip(kinds, ids, spans["parent_id"].to_list(), strict=True):
        depth[own] = depth[above] + (kind != "region")
    told = [(depth[own], kind, name) for own, kind, name in zip(ids, kinds, labels, strict=True)]
    return [each for each in told if each[1] != "region"]


@pytest.mark.parametrize("made", [inference, training, transformer])
def test_the_tree_is_that_of_a_measurement(
    tmp_path: Path, made: Callable[[], Callable[[], None]]
) -> None:
    call = made()
    found = tree(trace(read(recorded(call, tmp_path / "trace.json.gz"))))
    assert found == tree(xsp.measure(call, levels=2, runs=3))
    assert {"layer", "op"} == {kind for _, kind, _ in found}


def test_backward_lies_in_the_layers_of_its_forward(tmp_path: Path) -> None:
    spans = trace(read(recorded(training(), tmp_path / "trace.json"))).spans
    layers = spans.filter(pl.col("kind") == "layer").unnest("attributes")
    backward = layers.filter(pl.col("phase") == "backward")["module_path"].to_list()
    assert "Sequential.Block_1.Conv2d" in backward
    assert "Linear" in backward


def test_steps_of_a_schedule_are_evaluations(tmp_path: Path) -> None:
    call, path = inference(), tmp_path / "trace.json"
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
        with_stack=True,
    ) as profile:
        for _ in range(5):
            call()
            profile.step()
    found = read(path)
    assert found.roots.height == 3
    made = trace(found)
    cold = any(warning.code == "steps-left-out" for warning in made.warnings)  # the first, or none
    assert made.spans.filter(pl.col("name") == "aten::addmm")["runs"].to_list() == [3 - cold]


def test_calls_of_a_model_are_evaluations_without_a_schedule(tmp_path: Path) -> None:
    call = inference()

    def often() -> None:
        for _ in range(4):
            call()

    found = read(recorded(often, tmp_path / "trace.json"))
    assert found.roots["name"].to_list() == ["Net"] * 4
