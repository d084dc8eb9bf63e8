from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

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


def test_what_lies_inside_compiled_code_is_said(x: torch.Tensor) -> None:
    torch._dynamo.reset()
    model = torch.compile(Block(), backend="eager")
    records = recorded(lambda: model(x))
    assert records.problems == (
        "inside compiled code: 3 modules of Block were not called one by one",
    )
    found = layer_rows(records)
    assert found["name"].to_list()[:2] == ["OptimizedModule", "_orig_mod"]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_is_one_layer(x: torch.Tensor) -> None:
    model = torch.jit.script(Block())
    records = recorded(lambda: model(x), detail=True)
    found = layer_rows(records)
    assert found["name"].to_list() == ["Block"]
    assert found["attr.output_shapes"].to_list() == [[[2, 4]]]
    assert "inside compiled code: 3 modules of Block" in records.problems[0]


def test_an_exported_module_is_one_layer_and_exporting_is_not_disturbed(x: torch.Tensor) -> None:
    exported: list[Any] = []
    recorded(lambda: exported.append(torch.export.export(Block(), (x,))))
    plain = torch.export.export(Block(), (x,))
    assert [n.name for n in exported[0].graph.nodes] == [n.name for n in plain.graph.nodes]
    module = plain.module()
    found = layer_rows(recorded(lambda: module(x)))
    assert found["name"].to_list()[0] == "GraphModule"
