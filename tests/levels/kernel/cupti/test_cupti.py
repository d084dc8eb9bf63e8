from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from fake_cupti import FakeCupti
from fake_records import ActivityKind
from visits import DEEPEST, played, recorded, work

from xsp.clock import SystemClock
from xsp.errors import ProviderError
from xsp.provider.packing import pack, unpack
from xsp_levels.kernel.cupti import provider as cupti
from xsp_levels.kernel.cupti.provider import Cupti


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    yield from played(monkeypatch)


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


def test_the_first_start_tries_cupti_out(fake: FakeCupti) -> None:
    provider = Cupti()
    recorded(provider, fake)
    assert fake.log.count("subscribe") == 2
    recorded(provider, fake)
    assert fake.log.count("subscribe") == 3


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


def test_what_is_under_way_at_exit_is_ended(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    cupti._finish_all()
    assert not fake.subscribed


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
    assert (unpacked.dropped, unpacked.warnings) == (kept.dropped, kept.warnings)
    rows = provider.spans(kept)
    assert rows.height
    assert provider.spans(unpacked).equals(rows)
