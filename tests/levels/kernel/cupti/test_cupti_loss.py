"""Records that CUPTI loses, keeps, gives late or unfinished, and the warnings about them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from fake_cupti import FakeCupti
from fake_records import record
from visits import DEEPEST, NAME, K, now, played, recorded, work

from xsp.clock import SystemClock
from xsp_levels.kernel.cupti import session
from xsp_levels.kernel.cupti.provider import Cupti


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    yield from played(monkeypatch)


def test_dropped_records_are_reported(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.dropped = 12
    assert provider.stop().dropped == 12


def running(fake: FakeCupti, for_ns: int) -> None:
    """Launch a kernel that runs for so long."""
    at = now(fake)
    ended_ns = at - fake.offset_ns + for_ns
    call = {"start": at, "end": at + 10, "cbid": 211, "thread_id": fake.thread_id()}
    kernel = {"start": at + 20, "end": ended_ns + fake.offset_ns, "name": ctypes.addressof(NAME)}
    made = [
        record(K.RUNTIME, correlation_id=1, **call),
        record(K.CONCURRENT_KERNEL, correlation_id=1, **kernel),
    ]
    fake.run(made, ended_ns)


def test_a_kernel_that_ends_shortly_after_is_waited_for(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PATIENCE_S", 5.0)
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    running(fake, 20_000_000)
    kept = provider.stop()
    assert (kept.dropped, kept.warnings) == (0, ())
    kernel = provider.spans(kept).filter(kind="kernel").row(0, named=True)
    assert kernel["end_ns"] - kernel["start_ns"] == 20_000_000 - 20


def test_a_kernel_that_runs_on_is_said_to_and_has_no_end(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    running(fake, 60_000_000_000)
    kept = provider.stop()
    assert kept.dropped == 1
    assert ["still ran" in warning for warning in kept.warnings] == [True]
    assert provider.spans(kept)["kind"].to_list() == ["launch"]


@pytest.mark.parametrize("off_ns", [-(10**11), 10**14, -(10**7), 10**10])
def test_kernels_at_the_times_of_another_clock_are_left_out_and_counted(
    fake: FakeCupti, off_ns: int
) -> None:
    """As the first kernels after a profiler has given CUPTI a clock anew, some times over."""
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    at = now(fake)
    kernel = {"name": ctypes.addressof(NAME), "correlation_id": 1}
    stray = record(K.CONCURRENT_KERNEL, start=at + off_ns, end=at + off_ns + 9, **kernel)
    copy = record(K.MEMCPY, start=at + off_ns, end=at + off_ns + 9, correlation_id=77)
    fake.script = [[*work(fake, 1), stray, copy]]
    kept = provider.stop()
    assert kept.dropped == 2
    assert ["2 kernels and copies have impossible times" in said for said in kept.warnings] == [
        True
    ]
    assert sorted(provider.spans(kept)["kind"]) == ["kernel", "launch"]


@pytest.mark.parametrize("kernels", [0, 2])
def test_a_launch_of_a_graph_without_any_kernel_is_said(fake: FakeCupti, kernels: int) -> None:
    """CUPTI was seen to lose those of graphs that were captured in an earlier recording."""
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    at = now(fake)
    own = {"correlation_id": 5, "start": at, "end": at + 10}
    made = [record(K.RUNTIME, cbid=311, **own)]
    made += [record(K.CONCURRENT_KERNEL, graph_id=3, graph_node_id=9, **own)] * kernels
    fake.script = [[*made, *work(fake, 1)]]
    said = [
        "1 of 1 launches of CUDA graphs lack their kernels" in p for p in provider.stop().warnings
    ]
    assert said == ([] if kernels else [True])


def test_bytes_that_cannot_be_read_are_a_warning(fake: FakeCupti) -> None:
    kept = recorded(Cupti(), fake, [b"\xff" * 64])
    assert any("64 bytes" in warning for warning in kept.warnings)


def test_a_kernel_record_longer_than_the_binding_knows_is_read_at_a_buffers_end(
    fake: FakeCupti,
) -> None:
    fake.lengths[K.CONCURRENT_KERNEL] += 24
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [[*work(fake, 1), bytes(24)]]
    kept = provider.stop()
    assert kept.warnings == ()
    assert provider.spans(kept).height == 2


@pytest.mark.parametrize("more", [False, True])
def test_a_buffer_that_cupti_keeps_ends_no_recording_and_is_said_when_it_does(
    fake: FakeCupti, more: bool
) -> None:
    provider, said = Cupti(), []
    for number in range(12):  # more than there are buffers
        provider.start(SystemClock(), DEEPEST)
        if more or number == 0:
            fake.request()
        fake.script = [work(fake, number)]
        kept = provider.stop()
        said.append(any("1 buffers to itself" in warning for warning in kept.warnings))
        assert kept.dropped == 0
        assert set(provider.spans(kept)["correlation_id"]) == {number}
    assert said == [more or number == 0 for number in range(12)]
