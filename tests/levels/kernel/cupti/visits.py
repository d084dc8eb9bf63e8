"""Plays records into the CUPTI provider, and keeps its records."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import pytest
from fake_cupti import ActivityThreadIdType, FakeCupti
from fake_records import ActivityKind, record

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp_levels.kernel.cupti import library as cupti_library
from xsp_levels.kernel.cupti import provider as cupti
from xsp_levels.kernel.cupti import session
from xsp_levels.kernel.cupti.buffer import Buffers
from xsp_levels.kernel.cupti.provider import Cupti
from xsp_levels.native import stub

K = ActivityKind
DEEPEST = Request(frozenset({Kind.OP, *Cupti.kinds}))
DETAIL = Request(DEEPEST.kinds, detail=True)
NAME = ctypes.create_string_buffer(b"triton_mm")


def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    """Yield a CUPTI in the place of the real one, which must be left as it was."""
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    vendor = FakeCupti()
    monkeypatch.setattr(cupti_library, "vendor", lambda: vendor)
    monkeypatch.setattr(cupti_library, "libcupti", lambda: vendor)
    monkeypatch.setattr(cupti, "Buffers", lambda count: Buffers(count=8, size=1 << 16))
    monkeypatch.setattr(session, "PATIENCE_S", 0.03)
    yield vendor
    assert vendor.enabled == set()
    assert not vendor.subscribed
    assert vendor.thread_id_type is ActivityThreadIdType.DEFAULT


def now(fake: FakeCupti) -> int:
    return time.monotonic_ns() + fake.offset_ns


def work(fake: FakeCupti, number: int) -> list[bytes]:
    start, thread = now(fake), fake.thread_id()
    return [
        record(
            K.RUNTIME,
            correlation_id=number,
            start=start,
            end=start + 10,
            cbid=211,
            thread_id=thread,
        ),
        record(
            K.CONCURRENT_KERNEL,
            correlation_id=number,
            start=start + 20,
            end=start + 99,
            stream_id=7,
            name=ctypes.addressof(NAME),
        ),
    ]


def recorded(provider: Cupti, fake: FakeCupti, *buffers: list[bytes]) -> Records:
    provider.start(SystemClock(), DEEPEST)
    fake.script = [list(buffer) for buffer in buffers]
    return provider.stop()
