"""The whole way, from CUPTI's buffers to a trace, on a CUPTI that is played."""

from __future__ import annotations

import _thread
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cupti import FakeCupti
from fake_records import ActivityKind, record

import xsp
from xsp import testing
from xsp.measurement.recording import record as record_all
from xsp.session.settings import settings_of
from xsp.testing import only_providers
from xsp.trace.coverage import attribution
from xsp_levels.framework.torch.provider import Torch
from xsp_levels.kernel.cupti import library as cupti_library
from xsp_levels.kernel.cupti.provider import Cupti
from xsp_levels.model import Model
from xsp_levels.native import stub

NAMES = [ctypes.create_string_buffer(name) for name in (b"gemm", b"relu", b"triton_poi_0")]
KERNEL_NS = 20_000
KEPT = Path(__file__).parents[3] / "data" / "cupti"  # from real GPUs
GENERATED = {"compiled", "reduced", "training", "resnet50-training"}  # not all under a layer
LOST = {"dropped", "no-launch", "idle-launches", "orphans", "provider-failed", "graph-unseen"}


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


def apart(vendor: FakeCupti) -> Callable[[], FakeCupti]:
    """Return a way to CUPTI for a model: what a model holds itself is put back as it was."""
    return lambda: vendor


class Launching(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, vendor: FakeCupti, name: int) -> None:
        super().__init__()
        self.vendor, self.number = apart(vendor), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        launch(self.vendor(), self.number)
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
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    vendor = FakeCupti()
    monkeypatch.setattr(cupti_library, "vendor", lambda: vendor)
    monkeypatch.setattr(cupti_library, "libcupti", lambda: vendor)
    monkeypatch.setattr(cupti_library, "unavailable", lambda: None)
    yield vendor
    assert vendor.enabled == set()
    assert not vendor.subscribed


def test_kernels_lie_under_the_layers_that_launched_them(vendor: FakeCupti) -> None:
    model = torch.nn.Sequential(Launching(vendor, 0), Launching(vendor, 1)).eval()
    with only_providers(Model(), Torch(), Cupti()), torch.no_grad():
        trace = xsp.measure(model, torch.zeros(4), levels=("model", "framework", "kernel"))
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel")
    assert kernels["path"].to_list() == ["predict/Sequential/0/gemm", "predict/Sequential/1/relu"]
    assert kernels["latency_ns"].to_list() == [KERNEL_NS, KERNEL_NS]
    assert trace.spans["device_ns"][0] == 2 * KERNEL_NS


@pytest.mark.slow
def test_kernels_that_inductor_generated_say_what_for(
    vendor: FakeCupti, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "# Topologically Sorted Source Nodes: [x, y], Original ATen: [aten.add, aten.relu]"
    module = tmp_path / "generated.py"
    module.write_text(f"{said}\ntriton_poi_0 = async_compile.triton('triton_poi_0', '')\n")
    cache = SimpleNamespace(modules=[SimpleNamespace(__file__=str(module))])
    monkeypatch.setattr("torch._inductor.codecache.PyCodeCache", cache)
    model = torch.nn.Sequential(Launching(vendor, 0), Launching(vendor, 2)).eval()
    with only_providers(Model(), Torch(), Cupti()), torch.no_grad():
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

    with only_providers(Model(), Torch(), Cupti()):
        trace = xsp.measure(step, levels=("model", "framework", "kernel"), runs=10)
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel")
    assert [path.split("/")[-2:] for path in kernels["path"]] == [["GradientBackward", "gemm"]]


class Captured(torch.nn.Module):  # type: ignore[misc]
    """Captures its layers in its first call as a graph of one node each, and replays it."""

    def __init__(self, vendor: FakeCupti) -> None:
        super().__init__()
        self.vendor = apart(vendor)
        self.names = ("first", "second")
        self.layers = torch.nn.ModuleDict({name: Node(vendor, name) for name in self.names})
        self.ready = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            for layer in self.layers.values():
                x = layer(x)
            begin = time.monotonic_ns()
            for node in NODES.values():
                self.vendor().node(13, node + 100)
                self.vendor().node(20, node + 100, node)
            runtime(self.vendor(), begin, time.monotonic_ns(), 305)
            self.ready = True
        else:
            replay(self.vendor())
        return x


NODES = {"first": 1, "second": 2}


class Node(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, vendor: FakeCupti, name: str) -> None:
        super().__init__()
        self.vendor, self.name = apart(vendor), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = time.monotonic_ns()
        self.vendor().node(13, NODES[self.name])
        runtime(self.vendor(), begin, time.monotonic_ns(), 211)
        return x + 1


def runtime(vendor: FakeCupti, begin: int, end: int, cbid: int) -> dict[str, Any]:
    own: dict[str, Any] = {"correlation_id": begin & 0xFFFFFFFF}
    times = {"start": begin + vendor.offset_ns, "end": end + vendor.offset_ns}
    made = record(ActivityKind.RUNTIME, cbid=cbid, thread_id=vendor.thread_id(), **times, **own)
    if vendor.enabled:
        vendor.script.append([made])
    return own


def replay(vendor: FakeCupti) -> None:
    begin = time.monotonic_ns()
    own = runtime(vendor, begin, begin + 2000, 311)
    for number, node in enumerate(NODES.values(), 1):
        start = begin + vendor.offset_ns + number * KERNEL_NS
        kernel = record(
            ActivityKind.CONCURRENT_KERNEL,
            **{"start": start, "end": start + KERNEL_NS, "stream_id": 7, "graph_id": 9, **own},
            graph_node_id=node + 100,
            name=ctypes.addressof(NAMES[0]),
        )
        if vendor.enabled:
            vendor.script.append([kernel])
    while time.monotonic_ns() < begin + 4 * KERNEL_NS:
        pass


def test_kernels_of_a_graph_lie_under_the_layers_that_were_captured(
    vendor: FakeCupti, tmp_path: Path
) -> None:
    model = Captured(vendor).eval()
    with only_providers(Model(), Torch(), Cupti()), torch.no_grad():
        settings = settings_of(("model", "framework", "kernel"), runs=5)
        recording = record_all(model, torch.zeros(4), settings=settings, progress=False)
        trace, again = recording.trace(), testing.replay(recording.save(tmp_path / "graph.xsprec"))
    top = "predict/Captured/cudaGraphLaunch/Captured/{}/gemm"
    for made in (trace, again):
        made.check()
        kernels = made.spans.filter(made.spans["kind"] == "kernel").unnest("attributes")
        assert kernels["path"].to_list() == [top.format(name) for name in NODES]
        assert kernels["captured_node"].to_list() == [1, 2]
        assert "graph-unseen" not in {problem.code for problem in made.problems}
    found = attribution(trace.spans)
    assert found is not None
    assert found.layer == 1.0


def test_recordings_make_whole_trees_on_any_machine(vendor: FakeCupti, tmp_path: Path) -> None:
    """Those that scripts/gpu keeps, and one that is made here."""
    model = torch.nn.Sequential(Launching(vendor, 0), Launching(vendor, 1)).eval()
    settings = settings_of(("model", "framework", "kernel"), runs=3)
    with only_providers(Model(), Torch(), Cupti()), torch.no_grad():
        recording = record_all(model, torch.zeros(4), settings=settings, progress=False)
    for path in (recording.save(tmp_path / "played.xsprec"), *sorted(KEPT.glob("*.xsprec"))):
        trace = testing.replay(path)
        trace.check()
        assert {problem.code for problem in trace.problems}.isdisjoint(LOST), path.name
        found = attribution(trace.spans)
        assert found is not None, path.name
        if path.stem not in GENERATED:
            assert (found.layer or 0.0) >= 0.99, path.name


def test_a_graph_that_was_captured_before_is_said_to_be(vendor: FakeCupti) -> None:
    model = Captured(vendor).eval()
    with only_providers(Model(), Torch(), Cupti()), torch.no_grad():
        model(torch.zeros(4))
        trace = xsp.measure(model, torch.zeros(4), levels=("model", "framework", "kernel"))
    assert [p.message for p in trace.problems if p.code == "graph-unseen"] == [
        "2 nodes of CUDA graphs were captured where xsp did not see it, before the measurement "
        "began mostly, so the operators and layers that they stand for are not known; measure a "
        "function whose first call captures the graph"
    ]
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel")
    assert kernels["path"][0] == "predict/Captured/cudaGraphLaunch/gemm"
