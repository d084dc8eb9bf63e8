"""The whole way, from CUPTI's buffers to a trace, on a CUPTI that is played."""

from __future__ import annotations

import ctypes
import threading
import time
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

NAMES = [ctypes.create_string_buffer(name) for name in (b"gemm", b"relu")]
KERNEL_NS = 20_000


class Launching(torch.nn.Module):  # type: ignore[misc]
    """Pretends to launch a kernel that runs after it has returned."""

    def __init__(self, vendor: FakeCupti, name: int) -> None:
        super().__init__()
        self.vendor, self.number = vendor, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = time.monotonic_ns()
        if self.vendor.enabled:
            self.vendor.script.append(self._records(begin))
        while time.monotonic_ns() < begin + 2 * KERNEL_NS:
            pass
        return x

    def _records(self, begin: int) -> list[bytes]:
        at = begin + self.vendor.offset_ns
        own: dict[str, Any] = {"correlation_id": begin & 0xFFFFFFFF}
        thread = threading.get_ident() & 0xFFFFFFFF
        late = at + 3 * KERNEL_NS
        return [
            record(
                ActivityKind.RUNTIME, start=at, end=at + 2000, cbid=211, thread_id=thread, **own
            ),
            record(
                ActivityKind.CONCURRENT_KERNEL,
                start=late,
                end=late + KERNEL_NS,
                stream_id=7,
                name=ctypes.addressof(NAMES[self.number]),
                **own,
            ),
        ]


def test_kernels_lie_under_the_layers_that_launched_them(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := stub.unsupported():
        pytest.skip(reason)
    vendor = FakeCupti()
    monkeypatch.setattr(cupti_library, "vendor", lambda: vendor)
    monkeypatch.setattr(cupti_library, "library", lambda: vendor)
    monkeypatch.setattr(cupti_library, "unavailable", lambda: None)
    model = torch.nn.Sequential(Launching(vendor, 0), Launching(vendor, 1)).eval()
    with registry.only(Model(), Torch(), Cupti()), torch.no_grad():
        trace = xsp.measure(model, torch.zeros(4), levels=("model", "framework", "kernel"))
    kernels = trace.spans.filter(trace.spans["kind"] == "kernel")
    assert kernels["path"].to_list() == ["predict/Sequential/0/gemm", "predict/Sequential/1/relu"]
    assert kernels["latency_ns"].to_list() == [KERNEL_NS, KERNEL_NS]
    assert trace.spans["device_ns"][0] == 2 * KERNEL_NS
    assert vendor.enabled == set()
    assert not vendor.subscribed
