from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp_levels.framework.torch.module.layer import LayerRecorder
from xsp_levels.framework.torch.module.row import layer_rows


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.second(self.act(self.first(x)))) + x


@pytest.fixture
def without_monitor_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a progress bar inside of torch.compile from starting a thread for good."""
    if importlib.util.find_spec("tqdm") is not None:
        monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.ones(2, 4)


def recorded(call: Callable[[], Any], **how: bool) -> Any:
    recorder = LayerRecorder()
    recorder.start(SystemClock(), **how)
    try:
        call()
    finally:
        records = recorder.stop()
    return records


@pytest.mark.usefixtures("without_monitor_thread")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("broken", [False, True])
def test_compilation_is_not_disturbed(backend: str, broken: bool, x: torch.Tensor) -> None:
    class Breaking(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            if broken:
                torch._dynamo.graph_break()
            return self.second(x)

    def counts(observed: bool) -> dict[str, dict[str, int]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = torch.compile(Breaking(), backend=backend)
        for how in ({}, {"outermost": True}, {"detail": True}, {}):
            if observed:
                recorded(lambda: model(x), **how)
            else:
                model(x)
        model(x)
        counters = torch._dynamo.utils.counters
        # A tracer, such as that of coverage, makes Dynamo look at frames it would leave alone.
        names = ("stats", "graph_break") if sys.gettrace() else ("stats", "graph_break", "frames")
        return {name: dict(counters[name]) for name in names}

    assert counts(observed=True) == counts(observed=False)
    torch._dynamo.reset()


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def traced() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def calls(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def of_compiling(trace: xsp.Trace) -> list[str]:
    return [each.message for each in trace.warnings if each.message.startswith("torch.compile: ")]


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_measured_and_told_to_have_no_layers_inside(
    in_place: bool, x: torch.Tensor
) -> None:
    plain = Block().eval()
    expected = plain(x)
    model: Any = plain
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(plain, backend="eager", fullgraph=True)
    model(x)
    graphs = traced()
    trace = xsp.measure(model, x, levels=2, runs=5, budget=2)
    trace.check()
    assert of_compiling(trace) == [
        "torch.compile: compiled code calls no modules, so the tree lacks the layers inside; times "
        "are right. Measure the model without torch.compile to see them."
    ]
    layers = trace.spans.filter(kind="layer")["name"].to_list()
    assert layers == (["Block"] if in_place else ["OptimizedModule", "_orig_mod"])
    assert "aten::addmm" in trace.spans.filter(kind="op")["name"].to_list()
    assert torch.equal(model(x), expected)
    assert traced() == graphs


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("within", [False, True])
def test_a_compiled_model_in_a_block_is_counted_and_told_to_have_no_layers_inside(
    within: bool, x: torch.Tensor
) -> None:
    plain = Block().eval()
    expected, results = plain(x), []
    model: Any = torch.compile(plain, backend="eager", fullgraph=True)
    if not within:
        model(x)
    graphs = traced()
    with xsp.profile(levels=2) as prof:
        for _ in range(30):
            results.append(model(x))
            plain(x)
    assert calls(prof) == {"Block 2×4": 30, "Block (2) 2×4": 30}
    assert len(of_compiling(prof.trace)) == 1
    assert all(torch.equal(result, expected) for result in results)
    assert traced() == graphs + within


class Fusible(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.act = nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.project(self.norm(x))) + x


@pytest.mark.slow
def test_kernels_that_pytorch_is_set_to_mark_are_operators_with_what_was_fused_into_them(
    compiler: Callable[[Any], Any],
) -> None:
    plain, x = Fusible().eval(), torch.randn(4, 64)
    with torch._inductor.config.patch("cpp.enable_kernel_profile", True):
        model = compiler(plain)
        model(x)
        trace = xsp.measure(model, x, levels=2, runs=5, budget=2)
    assert torch.allclose(model(x), plain(x), atol=1e-5)
    trace.check()
    spans = trace.spans.unnest("attributes")
    kernels = spans.filter(spans["name"].str.contains("cpp_fused"))
    assert kernels["source_ops"].to_list() == ["aten.native_layer_norm", "aten.add, aten.gelu"]
    product = spans.filter(name="aten::addmm")
    assert product["parameters_of"].to_list() == [["_orig_mod.project"]]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_is_one_layer(x: torch.Tensor) -> None:
    model = torch.jit.script(Block())
    records = recorded(lambda: model(x), detail=True)
    found = layer_rows(records)
    assert found["name"].to_list() == ["Block"]
    assert found["attr.output_shapes"].to_list() == [[[2, 4]]]
    assert "the tree lacks 3 modules of Block" in records.warnings[0]


def test_an_exported_module_is_one_layer_and_exporting_is_not_disturbed(x: torch.Tensor) -> None:
    exported: list[Any] = []
    recorded(lambda: exported.append(torch.export.export(Block(), (x,))))
    plain = torch.export.export(Block(), (x,))
    assert [n.name for n in exported[0].graph.nodes] == [n.name for n in plain.graph.nodes]
    module = plain.module()
    found = layer_rows(recorded(lambda: module(x)))
    assert found["name"].to_list()[0] == "GraphModule"
