from __future__ import annotations

import pkgutil
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind, Level
from xsp.provider.contract import Provider, Records, Request
from xsp.provider.packing import pack, unpack
from xsp.provider.row import ROW_SCHEMA
from xsp.provider.watching import Watcher
from xsp.record.program import Lottery
from xsp.record.program import Records as Recorded
from xsp_levels.framework.torch.profiler import kineto as torch_kineto
from xsp_levels.framework.torch.profiler.event import PlainEvents
from xsp_levels.framework.torch.provider import Torch

REGION = frozenset({Kind.REGION})
LAYER = REGION | {Kind.LAYER}
OP = LAYER | {Kind.OP}


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    return Net()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(1, 1, 8, 8)


def visit(
    call: Callable[[], Any], kinds: frozenset[Kind], **how: Any
) -> tuple[Records, pl.DataFrame]:
    provider = Torch()
    provider.start(SystemClock(), Request(kinds, **how))
    try:
        call()
    finally:
        records = provider.stop()
    return records, provider.spans(records)


def train(net: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_it_is_a_provider_and_a_watcher() -> None:
    provider = Torch()
    assert isinstance(provider, Provider)
    assert isinstance(provider, Watcher)
    assert (provider.name, provider.level) == ("torch", Level.FRAMEWORK)
    assert provider.unavailable() is None


def test_importing_it_and_asking_for_a_call_does_not_import_torch() -> None:
    code = (
        "import sys; from xsp_levels.framework.torch.provider import Torch; p = Torch();"
        "assert p.unavailable() is None; assert p.model_call(len, (), {}) is None;"
        "p.synchronize(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_torch_is_missing_it_says_what_to_install() -> None:
    code = (
        "import sys, importlib.machinery as m;"
        "from xsp_levels.framework.torch.provider import Torch;"
        "find = m.PathFinder.find_spec;"
        "m.PathFinder.find_spec = classmethod("
        "lambda c, n, *a: None if n == 'torch' else find(n, *a));"
        "assert 'pip install' in Torch().unavailable()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (frozenset(), set()),
        (REGION, {"region"}),
        (LAYER, {"region", "layer"}),
        (OP, {"region", "layer", "op"}),
        (frozenset({Kind.OP}), {"op"}),
    ],
)
def test_it_records_what_is_asked_for(
    kinds: frozenset[Kind], expected: set[str], net: nn.Module, x: torch.Tensor
) -> None:
    records, rows = visit(lambda: net(x), kinds)
    assert set(rows["kind"]) == expected
    assert list(rows.columns)[: len(ROW_SCHEMA)] == list(ROW_SCHEMA)
    assert (records.dropped, records.warnings) == (0, ())


def test_predict_is_the_interval_of_the_root_layer(net: nn.Module, x: torch.Tensor) -> None:
    _, rows = visit(lambda: net(x), LAYER)
    predict, root = rows.row(0, named=True), rows.row(1, named=True)
    assert (predict["name"], root["name"]) == ("predict", "Net")
    assert predict["start_ns"] == root["start_ns"]
    assert predict["end_ns"] == root["end_ns"]


def test_training_has_forward_backward_and_step_in_order(net: nn.Module, x: torch.Tensor) -> None:
    step = train(net, x)
    for kinds in (REGION, LAYER, OP):
        _, rows = visit(step, kinds)
        spans = rows.filter(kind="region").sort("start_ns")
        assert spans["name"].to_list() == ["forward", "backward", "optimizer step", "zero_grad"]
        assert (spans["end_ns"][:-1] <= spans["start_ns"][1:]).all()


def test_a_backward_pass_that_raises_is_kept_with_its_error(net: nn.Module) -> None:
    provider = Torch()
    provider.start(SystemClock(), Request(REGION))
    with pytest.raises(RuntimeError):
        torch.ones(1).backward()
    rows = provider.spans(provider.stop())
    assert rows["name"].to_list() == ["backward"]
    assert rows["attr.error"].to_list() == ["RuntimeError"]


def test_detail_has_shapes_and_memory_of_layers(net: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        net(x)
        _, rows = visit(lambda: net(x), OP, detail=True)
    conv = rows.filter(kind="layer", name="conv").row(0, named=True)
    assert conv["attr.input_shapes"] == [[1, 1, 8, 8]]
    assert conv["attr.output_shapes"] == [[1, 2, 6, 6]]
    assert conv["attr.allocated_bytes"] >= 4 * 2 * 6 * 6
    assert conv["attr.parameter_bytes"] == 4 * (2 * 9 + 2)


def test_one_provider_can_be_armed_again_and_again(net: nn.Module, x: torch.Tensor) -> None:
    provider = Torch()
    heights = []
    for kinds in (LAYER, OP, REGION, LAYER):
        provider.start(SystemClock(), Request(kinds))
        net(x)
        heights.append(provider.spans(provider.stop()).filter(kind="layer").height)
    assert heights == [3, 3, 0, 3]


def test_nothing_stays_behind_when_arming_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no")

    backward = torch.autograd.backward
    monkeypatch.setattr("xsp_levels.framework.torch.provider.LayerRecorder.start", fail)
    with pytest.raises(OSError, match="no"):
        Torch().start(SystemClock(), Request(OP))
    assert torch.autograd.backward is backward
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize(
    "name",
    [
        "torch.profiler.operator.OperatorRecorder.start",
        "torch.program.step.StepRecorder.start",
        "torch.module.layer.LayerRecorder.start",
    ],
)
def test_nothing_stays_behind_when_arming_is_interrupted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"xsp_levels.framework.{name}"
    start = pkgutil.resolve_name(path)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        start(*args, **kwargs)
        raise KeyboardInterrupt

    backward, code = torch.autograd.backward, nn.Module.__call__.__code__
    monkeypatch.setattr(path, interrupted)
    with pytest.raises(KeyboardInterrupt):
        Torch().start(SystemClock(), Request(OP))
    assert torch.autograd.backward is backward
    assert nn.Module.__call__.__code__ is code
    assert torch_kineto._running == []


def test_the_pipeline_pass_leaves_pytorchs_code_inside_of_calls(
    net: nn.Module, x: torch.Tensor
) -> None:
    inside: list[Any] = []
    net.head.register_forward_hook(lambda *_: inside.append(nn.Module.__call__.__code__))
    original = nn.Module.__call__.__code__
    _, rows = visit(lambda: net(x), REGION)
    assert rows["name"].to_list() == ["predict"]
    assert inside == [original]


class Results:
    """Kineto's results, of which it can be told whether they are there still."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)


@pytest.mark.parametrize("detail", [False, True])
def test_kinetos_results_do_not_outlive_the_recording(
    net: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, *, detail: bool
) -> None:
    usual, made = torch_kineto.KinetoRecording.end, []

    def end(recording: Any) -> Any:
        results = Results(usual(recording))
        made.extend([weakref.ref(results), weakref.ref(recording)])
        return results

    monkeypatch.setattr(torch_kineto.KinetoRecording, "end", end)
    records, rows = visit(train(net, x), OP, detail=detail)
    assert [each() for each in made] == [None, None]
    assert Torch().spans(records).equals(rows)
    assert "aten::linear" in rows["name"].to_list()


@pytest.mark.parametrize("detail", [False, True])
def test_records_are_kept_as_bytes_and_make_the_same_rows(
    net: nn.Module, x: torch.Tensor, *, detail: bool
) -> None:
    kept, rows = visit(train(net, x), OP, detail=detail)
    content = pack(Torch(), kept)
    unpacked = unpack(Torch(), content)
    assert isinstance(unpacked.data.operators.handle, PlainEvents)
    assert Torch().spans(unpacked).equals(rows)
    assert pack(Torch(), unpacked) == content  # what was unpacked can be packed again


def test_a_window_with_shapes_that_another_thread_ended_leaves_no_profiler_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xsp.record.program.recorder._DETAIL_NS", 10_000_000)
    monkeypatch.setattr(Lottery, "draw", lambda *_: Recorded.DETAIL)
    model = torch.nn.Linear(4, 4).eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False, progress=False) as prof:
        model(torch.ones(2, 4))
        recorder = prof._recorder
        assert recorder is not None
        for _ in range(3_000):  # until the thread that samples lines has ended it
            if recorder.windows[-1].end_ns is not None:
                break
            time.sleep(0.01)
    assert recorder.windows[-1].end_ns is not None
    assert not torch.autograd._profiler_enabled()
