"""The whole way, from CUPTI's buffers to a trace, on a CUPTI that is played."""

from __future__ import annotations

import _thread
import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cupti import ActivityKind, FakeCupti, record

import xsp
from xsp import registry
from xsp_levels import stub
from xsp_levels.framework.torch import Torch
from xsp_levels.kernel import cupti_library
from xsp_levels.kernel.cupti import Cupti
from xsp_levels.model import Model

NAMES = [ctypes.create_string_buffer(name) for name in (b"gemm", b"relu", b"triton_poi_0")]
KERNEL_NS = 20_000


def launch(vendor: FakeCupti, name: int) -> None:
    """Pretend to launch a kernel that runs after the call has returned."""
    begin = time.monotonic_ns()
    if vendor.enabled:
        vendor.script.append(_records(vendor, begin, name))
    while time.monotonic_ns() < begin + 2 * KERNEL_NS:
        pass


def _records(vendor: FakeCupti, begin: int, name: int) -> list[bytes]:
    at = begin + vendor.offset_ns
    own: dict[str, Any] = {"correlation_id": begin & 0xFFFFFFFF}
    thread, late = vendor.thread_id(), at + 3 * KERNEL_NS
    return [
        record(ActivityKind.RUNTIME, start=at, end=at + 2000, cbid=211, thread_id=thread, **own),
        record(
            ActivityKind.CONCURRENT_KERNEL,
            start=late,
            end=late + KERNEL_NS,
            stream_id=7,
            name=ctypes.addressof(NAMES[name]),
            **own,
        ),
    ]


class Launching(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, vendor: FakeCupti, name: int) -> None:
        super().__init__()
        self.vendor, self.number = vendor, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        launch(self.vendor, self.number)
        return x


class Gradient(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, vendor: FakeCupti) -> torch.Tensor:
        ctx.vendor = vendor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        launch(ctx.vendor, 0)
        return gradient, None


def on_a_thread_of_its_own(work: Any) -> None:
    """Work where `threading` does not know of it, as PyTorch does backward on a GPU."""
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            work()
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    if reason := stub.unsupported():
        pytest.skip(reason)
    vendor = FakeCupti()
    monkeypatch.setattr(cupti_library, "vendor", lambda: vendor)
    monkeypatch.setattr(cupti_library, "library", lambda: vendor)
    monkeypatch.setattr(cupti_library, "unavailable", lambda: None)
    yield vendor
    assert vendor.enabled == set()
    assert not vendor.subscribed


def test_kernels_lie_under_the_layers_that_launched_them(vendor: FakeCupti) -> None:
    model = torch.nn.Sequential(Launching(vendor, 0), Launching(vendor, 1)).eval()
    with registry.only(Model(), Torch(), Cupti()), torch.no_grad():
        trace = xsp.measure(model, torch.zeros(4), levels=("model", "framework", "kernel"))
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel")
    assert kernels["path"].to_list() == ["predict/Sequential/0/gemm", "predict/Sequential/1/relu"]
    assert kernels["latency_ns"].to_list() == [KERNEL_NS, KERNEL_NS]
    assert trace.spans["device_ns"][0] == 2 * KERNEL_NS


def test_kernels_that_inductor_generated_say_what_for(
    vendor: FakeCupti, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "# Topologically Sorted Source Nodes: [x, y], Original ATen: [aten.add, aten.relu]"
    module = tmp_path / "generated.py"
    module.write_text(f"{said}\ntriton_poi_0 = async_compile.triton('triton_poi_0', '')\n")
    cache = SimpleNamespace(modules=[SimpleNamespace(__file__=str(module))])
    monkeypatch.setattr("torch._inductor.codecache.PyCodeCache", cache)
    model = torch.nn.Sequential(Launching(vendor, 0), Launching(vendor, 2)).eval()
    with registry.only(Model(), Torch(), Cupti()), torch.no_grad():
        trace = xsp.measure(model, torch.zeros(4), levels=("model", "framework", "kernel"))
    trace.check()
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel").unnest("attributes")
    assert kernels["source_ops"].to_list() == [None, "aten.add, aten.relu"]
    assert kernels["source_nodes"].to_list() == [None, "x, y"]


def test_kernels_of_backward_on_a_thread_that_is_not_pythons_lie_under_their_operator(
    vendor: FakeCupti,
) -> None:
    x = torch.ones(4, requires_grad=True)

    def step() -> None:
        loss = Gradient.apply(x, vendor).sum()
        on_a_thread_of_its_own(loss.backward)

    with registry.only(Model(), Torch(), Cupti()):
        trace = xsp.measure(step, levels=("model", "framework", "kernel"))
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel")
    assert [path.split("/")[-2:] for path in kernels["path"]] == [["GradientBackward", "gemm"]]
