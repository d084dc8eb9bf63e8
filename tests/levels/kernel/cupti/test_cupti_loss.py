"""What CUPTI loses, keeps, gives late or gives unfinished, and how that is said."""

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


def test_more_records_than_room_are_a_problem(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [work(fake, number) for number in range(11)]
    kept = provider.stop()
    assert any("3 more buffers" in problem for problem in kept.problems)
    assert provider.spans(kept).height == 16


def test_kernels_without_times_are_lost_and_said_so(fake: FakeCupti) -> None:
    kept = recorded(
        Cupti(), fake, [record(K.CONCURRENT_KERNEL, start=0, end=0, name=ctypes.addressof(NAME))]
    )
    assert kept.dropped == 1
    assert any("no place on the device" in problem for problem in kept.problems)


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
    assert (kept.dropped, kept.problems) == (0, ())
    kernel = provider.spans(kept).filter(kind="kernel").row(0, named=True)
    assert kernel["end_ns"] - kernel["start_ns"] == 20_000_000 - 20


def test_a_kernel_that_runs_on_is_said_to_and_has_no_end(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    running(fake, 60_000_000_000)
    kept = provider.stop()
    assert kept.dropped == 1
    assert ["had not ended" in problem for problem in kept.problems] == [True]
    assert provider.spans(kept)["kind"].to_list() == ["launch"]


def test_buffers_that_come_back_a_little_late_are_waited_for(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Cupti()
    recorded(provider, fake)
    monkeypatch.setattr(session, "PATIENCE_S", 5.0)
    fake.late_s = 0.02
    kept = recorded(provider, fake, work(fake, 1), work(fake, 2))
    assert (kept.dropped, kept.problems) == (0, ())
    assert sorted(provider.spans(kept)["correlation_id"].to_list()) == [1, 1, 2, 2]


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
    assert ["2 kernels and copies have times before" in said for said in kept.problems] == [True]
    assert sorted(provider.spans(kept)["kind"]) == ["kernel", "launch"]


def test_a_kernel_that_seems_to_begin_a_little_before_its_call_is_kept(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    at = now(fake)
    made = [
        record(K.RUNTIME, correlation_id=1, start=at, end=at + 10, cbid=211),
        record(K.CONCURRENT_KERNEL, correlation_id=1, start=at - 900, end=at + 900),
    ]
    fake.script = [made]
    kept = provider.stop()
    assert (kept.dropped, kept.problems) == (0, ())
    assert provider.spans(kept).height == 2


def test_kernels_are_not_taken_for_strays_where_the_clocks_are_uncertain(fake: FakeCupti) -> None:
    """The wall clock is set forward while the last kernel runs."""
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    made = work(fake, 1)
    fake.offset_ns += 2_000_000
    at = now(fake)
    late = record(K.CONCURRENT_KERNEL, correlation_id=1, start=at, end=at + 9)
    fake.script = [[*made, late]]
    kept = provider.stop()
    assert kept.dropped == 0
    assert provider.spans(kept).height == 3


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
    said = ["1 of 1 launches of CUDA graphs have no kernel" in p for p in provider.stop().problems]
    assert said == ([] if kernels else [True])


def test_records_that_are_not_finished_are_no_sign_of_a_wrong_binding(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    made = work(fake, 1)
    buffer, _ = fake.request()
    assert buffer is not None
    fake.incomplete = {buffer + len(made[0])}
    fake.running = [(0, buffer, made)]
    kept = provider.stop()
    assert len(kept.problems) == 1
    assert kept.problems[0].startswith("224 bytes of CUPTI's records were not finished")


def test_bytes_that_cannot_be_read_are_a_problem(fake: FakeCupti) -> None:
    kept = recorded(Cupti(), fake, [b"\xff" * 64])
    assert any("64 bytes" in problem for problem in kept.problems)


def test_a_kernel_record_longer_than_the_binding_knows_is_read_at_a_buffers_end(
    fake: FakeCupti,
) -> None:
    fake.lengths[K.CONCURRENT_KERNEL] += 24
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [[*work(fake, 1), bytes(24)]]
    kept = provider.stop()
    assert kept.problems == ()
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
        said.append(any("1 buffers to itself" in problem for problem in kept.problems))
        assert kept.dropped == 0
        assert set(provider.spans(kept)["correlation_id"]) == {number}
    assert said == [more or number == 0 for number in range(12)]
