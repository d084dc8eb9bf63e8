from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cupti import ActivityKind, ActivityThreadIdType, FakeCupti, record

from xsp.clock import SystemClock
from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider.contract import Provider, Records, Request
from xsp.provider.packing import pack, unpack
from xsp.session import registry
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


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
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


@pytest.mark.parametrize("kinds", [(10,), (3, 5), (5, 4, 39), ()])
def test_kernels_of_another_profiler_are_not_taken_from_it(
    fake: FakeCupti, kinds: tuple[int, ...]
) -> None:
    """A profiler need not have subscribed: PyTorch's does not since 2.15."""
    fake.rival_kinds = kinds
    provider = Cupti()
    if {3, 10} & set(kinds):
        with pytest.raises(ProviderError, match=r"end torch\.profiler"):
            provider.start(SystemClock(), DEEPEST)
        assert fake.callbacks is None
    else:
        assert recorded(provider, fake).problems == ()


def test_a_warning_of_cupti_ends_no_recording(fake: FakeCupti) -> None:
    fake.failing["cuptiActivityRegisterCallbacks"] = 34
    provider = Cupti()
    assert provider.spans(recorded(provider, fake, work(fake, 1))).height == 2


def test_bytes_that_cannot_be_read_are_a_problem(fake: FakeCupti) -> None:
    kept = recorded(Cupti(), fake, [b"\xff" * 64])
    assert any("64 bytes" in problem for problem in kept.problems)


def test_another_clock_inside_cupti_is_noticed(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    early = now(fake) - 5_000_000_000
    fake.script = [[record(K.RUNTIME, start=early, end=early + 1, cbid=211)]]
    assert any("clock of its own" in problem for problem in provider.stop().problems)


def test_a_clock_that_was_set_meanwhile_is_said(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.offset_ns += 1_000_000
    assert any("was set" in problem for problem in provider.stop().problems)


def test_a_clock_that_counts_ticks_places_kernels_as_well_as_any(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a session of Kineto, which gives CUPTI the processor's counter."""

    def ticks() -> int:
        return (time.monotonic_ns() + 77) * 5 // 2

    monkeypatch.setattr(fake, "get_timestamp", ticks)
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    begin, call = time.monotonic_ns(), ticks()
    time.sleep(0.02)
    start = ticks()
    kernel = {"start": start, "end": start + 50_000, "queued": call}
    fake.script = [
        [
            record(K.RUNTIME, correlation_id=1, start=call, end=call + 2500, cbid=211),
            record(K.CONCURRENT_KERNEL, correlation_id=1, name=ctypes.addressof(NAME), **kernel),
        ]
    ]
    kept = provider.stop()
    assert kept.problems == ()
    launch, ran = provider.spans(kept).sort("start_ns").rows(named=True)
    assert abs(launch["start_ns"] - begin) < 50_000
    assert launch["uncertainty_ns"] < 50_000
    assert abs(ran["end_ns"] - ran["start_ns"] - 20_000) <= 2
    assert abs(ran["attr.queue_delay_ns"] - (ran["start_ns"] - launch["start_ns"])) <= 2


@pytest.mark.parametrize("moment", ["begins", "ends"])
def test_calls_while_recording_begins_or_ends_are_no_other_clock(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    name = {"begins": "activity_enable_and_dump", "ends": "activity_flush_all"}[moment]
    function, launches = getattr(fake, name), []

    def slowly(*args: Any) -> None:
        time.sleep(0.003)
        launches.append(record(K.RUNTIME, start=now(fake), end=now(fake), cbid=211))
        time.sleep(0.003)
        if moment == "ends":
            fake.script = [launches.copy()]
        function(*args)

    monkeypatch.setattr(fake, name, slowly)
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    del launches[:-2]  # those of the trial
    fake.script = [launches.copy()]
    if moment == "ends":
        launches.clear()
    assert provider.stop().problems == ()


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


@pytest.mark.parametrize(
    ("function", "status", "word"),
    [
        ("subscribe", 39, "torch.profiler"),
        ("activity_enable", 35, "NVreg_RestrictProfilingToAdminUsers"),
        ("activity_enable_and_dump", 15, "nvidia-smi"),
        ("cuptiActivityRegisterCallbacks", 14, "another profiler"),
    ],
)
def test_a_refusal_is_said_with_its_remedy_and_leaves_nothing(
    fake: FakeCupti, function: str, status: int, word: str
) -> None:
    fake.failing[function] = status
    provider = Cupti()
    with pytest.raises(ProviderError, match=word):
        provider.start(SystemClock(), DEEPEST)
    assert provider.spans(provider.stop()).height == 0


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


def test_a_recording_can_be_made_after_one_that_failed(fake: FakeCupti) -> None:
    provider = Cupti()
    fake.failing["subscribe"] = 39
    with pytest.raises(ProviderError):
        provider.start(SystemClock(), DEEPEST)
    fake.failing.clear()
    provider.start(SystemClock(), DEEPEST)
    fake.script = [work(fake, 1)]
    assert provider.spans(provider.stop()).height == 2


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
