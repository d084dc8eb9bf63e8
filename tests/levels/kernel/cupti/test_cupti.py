from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cupti import FakeCupti
from fake_records import ActivityKind, record
from visits import DEEPEST, DETAIL, K, now, played, recorded, work

from xsp.clock import SystemClock
from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider.contract import Provider, Request
from xsp.provider.packing import pack, unpack
from xsp.session import registry
from xsp_levels.kernel.cupti import library as cupti_library
from xsp_levels.kernel.cupti import provider as cupti
from xsp_levels.kernel.cupti.buffer import Buffers
from xsp_levels.kernel.cupti.provider import Cupti


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    yield from played(monkeypatch)


def test_it_is_a_provider() -> None:
    assert isinstance(Cupti(), Provider)
    assert registry.validate(Cupti()).kinds == Cupti.kinds


def test_it_says_what_nvtx_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert "NVTX_INJECTION64_PATH" in (Cupti().remark() or "")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/lib/libcupti.so.13")
    assert Cupti().remark() is None


def test_a_launch_and_its_kernel_become_rows_on_our_clock(fake: FakeCupti) -> None:
    provider, before = Cupti(), time.monotonic_ns()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [work(fake, 5)]
    rows = provider.spans(provider.stop())
    after = time.monotonic_ns()
    launch, kernel = rows.sort("start_ns").rows(named=True)
    assert (launch["kind"], launch["name"]) == ("launch", "cudaLaunchKernel")
    assert launch["thread"] == threading.get_ident()
    assert (kernel["kind"], kernel["name"], kernel["stream"]) == ("kernel", "triton_mm", 7)
    assert launch["correlation_id"] == kernel["correlation_id"] == 5
    assert before <= launch["start_ns"] < kernel["start_ns"] < kernel["end_ns"] <= after
    assert kernel["end_ns"] - kernel["start_ns"] == 79


def test_records_of_several_buffers_are_all_kept(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [work(fake, 1), work(fake, 2), work(fake, 3)]
    kept = provider.stop()
    assert (kept.dropped, kept.problems) == (0, ())
    assert sorted(provider.spans(kept)["correlation_id"].to_list()) == [1, 1, 2, 2, 3, 3]


def test_visits_follow_each_other_without_mixing(fake: FakeCupti) -> None:
    provider = Cupti()
    for number in range(20):  # more than there are buffers
        provider.start(SystemClock(), DEEPEST)
        fake.script = [work(fake, number)]
        kept = provider.stop()
        assert kept.dropped == 0
        assert set(provider.spans(kept)["correlation_id"]) == {number}


def test_kernels_run_concurrently_and_graphs_are_seen_in_full(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    assert {"CONCURRENT_KERNEL", "RUNTIME", "driver 307", "zeroed"} <= fake.enabled
    assert not {"KERNEL", "GRAPH_TRACE", "latency", "MEMORY2", "driver 9"} & fake.enabled
    provider.stop()


def test_calls_that_this_cupti_does_not_know_are_no_error(fake: FakeCupti) -> None:
    fake.failing = {"driver 9": 1}
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    assert "driver 307" in fake.enabled
    provider.stop()
    assert not any(name.startswith("driver") for name in fake.enabled)


def test_what_costs_time_is_recorded_in_detail_runs_only(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DETAIL)
    assert "MEMORY2" in fake.enabled
    provider.stop()


def test_when_kernels_were_queued_is_never_asked_for(fake: FakeCupti) -> None:
    """CUPTI must be asked before CUDA begins, must not be asked again, and may hang."""
    provider = Cupti()
    for _ in range(2):
        provider.start(SystemClock(), DETAIL)
        assert provider.stop().problems == ()
    assert "latency" not in fake.log


def test_queries_that_were_answered_with_not_yet_are_left_out(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    assert "no vain queries" in fake.enabled
    provider.stop()


def test_devices_are_asked_for_once_and_known_in_every_recording(fake: FakeCupti) -> None:
    """CUPTI leaves the names in the records of devices to their reader, for ever."""
    limits = {"max_warps_per_multiprocessor": 64, "max_blocks_per_multiprocessor": 32}
    limits |= {"max_registers_per_multiprocessor": 65536, "compute_capability_major": 9}
    fake.script = [[record(K.DEVICE, id=0, max_shared_memory_per_multiprocessor=233472, **limits)]]
    provider = Cupti()
    for _ in range(2):
        provider.start(SystemClock(), DEEPEST)
        assert "DEVICE" not in fake.enabled
        at = now(fake)
        shape = {"block_x": 256, "block_y": 1, "block_z": 1, "registers_per_thread": 64}
        fake.script = [[record(K.CONCURRENT_KERNEL, start=at, end=at + 1, **shape)]]
        assert provider.spans(provider.stop())["attr.occupancy_pct"].to_list() == [50.0]


def test_the_first_start_tries_cupti_out(fake: FakeCupti) -> None:
    provider = Cupti()
    recorded(provider, fake)
    assert fake.log.count("subscribe") == 2
    recorded(provider, fake)
    assert fake.log.count("subscribe") == 3


def test_nothing_is_touched_where_nothing_of_ours_is_asked_for(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), Request(frozenset({Kind.OP})))
    assert provider.spans(provider.stop()).height == 0
    assert fake.log == []


def test_a_call_without_a_name_keeps_its_number(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [[record(K.RUNTIME, start=now(fake), end=now(fake), cbid=9999)], work(fake, 1)]
    names = provider.spans(provider.stop())["name"].to_list()
    assert sorted(names) == ["cudaLaunchKernel", "runtime 9999", "triton_mm"]


def test_queue_times_that_come_are_kept(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DETAIL)
    at = now(fake)
    fake.script = [[record(K.CONCURRENT_KERNEL, start=at + 30, end=at + 40, queued=at + 10)]]
    kept = provider.stop()
    assert kept.problems == ()
    assert provider.spans(kept)["attr.queue_delay_ns"].to_list() == [20]


def test_a_failure_at_the_end_leaves_nothing_either(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.failing["activity_flush_all"] = 999
    with pytest.raises(ProviderError, match="999"):
        provider.stop()
    assert provider.spans(provider.stop()).height == 0


def test_what_was_recorded_before_a_failure_is_not_in_the_next_visit(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.deliver(b"".join(work(fake, 1)))
    fake.failing["activity_flush_all"] = 999
    with pytest.raises(ProviderError, match="999"):
        provider.stop()
    fake.failing.clear()
    assert set(provider.spans(recorded(provider, fake, work(fake, 2)))["correlation_id"]) == {2}


def test_a_recording_can_be_made_after_one_that_failed(fake: FakeCupti) -> None:
    provider = Cupti()
    fake.failing["subscribe"] = 39
    with pytest.raises(ProviderError):
        provider.start(SystemClock(), DEEPEST)
    fake.failing.clear()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [work(fake, 1)]
    assert provider.spans(provider.stop()).height == 2


@pytest.mark.forks
def test_a_forked_child_does_not_touch_cupti(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        before = len(fake.log)
        quiet = provider.stop().data.tables == {} and len(fake.log) == before
        os.write(write_end, b"quiet" if quiet else b"loud")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        assert answer.read() == b"quiet"
    fake.script = [work(fake, 1)]
    assert provider.spans(provider.stop()).height == 2


def test_less_room_is_taken_where_there_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def narrow(count: int) -> Buffers:
        asked.append(count)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cupti, "Buffers", narrow)
    with pytest.raises(OSError, match="allocate"):
        cupti._new_buffers()
    assert asked == [512, 128, 32, 8]


def test_what_is_under_way_at_exit_is_ended(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    cupti._finish_all()
    assert not fake.subscribed


def test_a_module_that_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("libcupti.so.13: cannot open shared object file")

    monkeypatch.setattr(cupti_library, "vendor", missing)
    with pytest.raises(ProviderError, match=r"libcupti\.so\.13"):
        Cupti().start(SystemClock(), DEEPEST)


def test_the_real_binding_says_what_is_missing_and_has_every_name() -> None:
    vendor = pytest.importorskip("cupti.cupti", reason="needs cupti-python: make .venv/.cupti")
    used = [name for name in vars(FakeCupti) if name.startswith(("activity_", "get_"))]
    used = [name for name in used if not name.endswith("_dtype")]
    for name in (*used, "enable_callback", "unsubscribe", "cuptiError", "CallbackDomain"):
        assert hasattr(vendor, name), name
    for kind in ActivityKind:
        assert int(getattr(vendor.ActivityKind, kind.name)) == kind
    assert hasattr(vendor.ActivityAttribute, "ATTR_ZEROED_OUT_BUFFER")
    assert vendor.runtime_api_trace_cbid.cudaLaunchKernel_v7000 == 211
    assert vendor.runtime_api_trace_cbid.cudaGraphLaunch_v10000 == 311
    assert vendor.driver_api_trace_cbid.cuLaunchKernel == 307


def test_records_are_kept_as_bytes_and_make_the_same_rows(fake: FakeCupti) -> None:
    provider = Cupti()
    kept = recorded(provider, fake, work(fake, 1), work(fake, 2))
    unpacked = unpack(provider, pack(provider, kept))
    assert (unpacked.dropped, unpacked.problems) == (kept.dropped, kept.problems)
    rows = provider.spans(kept)
    assert rows.height
    assert provider.spans(unpacked).equals(rows)
