from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partialmethod

import pytest

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request, Watched
from xsp.testing import added_providers
from xsp_levels.native import event_ring
from xsp_levels.system.linux import group, watch
from xsp_levels.system.linux.access import Access, access
from xsp_levels.system.linux.provider import LinuxSystem
from xsp_levels.system.linux.record import What

CALLS = Request(frozenset({Kind.SYSCALL}))


@pytest.fixture
def system() -> Iterator[LinuxSystem]:
    """Return a provider whose events are closed when the test ends."""
    if access().refusal is not None:
        pytest.skip(f"needs performance events: {access().refusal}")
    yield LinuxSystem()
    gc.collect()
    assert open_events() == 0


def open_events() -> int:
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[perf_event]"
        except OSError:
            continue
    return count


def visited(provider: LinuxSystem, work: Callable[[], object]) -> Records:
    clock = SystemClock()
    provider.start(clock, CALLS)
    work()
    return provider.stop()


def own_sum(provider: LinuxSystem, records: Records, what: str) -> float:
    found = provider.accounts(records)
    return float(found.filter(what=what, thread=threading.get_ident())["amount"].sum())


def touch(pages: int) -> None:
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1


def test_nothing_is_watched_unless_system_calls_are_asked_for(system: LinuxSystem) -> None:
    system.start(SystemClock(), Request(frozenset({Kind.OP})))
    assert open_events() == 0
    records = system.stop()
    assert system.spans(records).height == system.accounts(records).height == 0


def test_wait_is_blocked_time(system: LinuxSystem) -> None:
    before = time.monotonic_ns()
    records = visited(system, lambda: time.sleep(0.05))
    after = time.monotonic_ns()
    blocked = own_sum(system, records, "blocked") + own_sum(system, records, "runnable")
    assert 50e6 <= blocked <= after - before
    watched = system.accounts(records).filter(what="watched", thread=threading.get_ident())
    assert before <= watched["start_ns"].min() <= watched["end_ns"].max() <= after  # type: ignore[operator]


def test_time_on_and_off_the_processor_is_the_watched_time(system: LinuxSystem) -> None:
    def work() -> None:
        for _ in range(20):
            sum(range(20_000))
            time.sleep(0.001)

    records = visited(system, work)
    (own,) = [t for t in records.data.threads if t.number == threading.get_native_id()]
    off = own_sum(system, records, "blocked") + own_sum(system, records, "runnable")
    length = records.data.end_ns - records.data.begin_ns
    # The kernel counts the thread's time from when events are on, before the visit begins.
    assert length - off == pytest.approx(own.ran_ns, abs=2e6)


def test_page_faults_are_counted(system: LinuxSystem) -> None:
    records = visited(system, lambda: touch(500))
    assert 500 <= own_sum(system, records, "page_fault") <= 600
    assert records.dropped == 0


def test_counters_are_sampled_beside_the_other_events(
    system: LinuxSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread's time on a processor, in ns, stands for cycles: a clock that any machine has."""
    task_clock = (event_ring.SOFTWARE, 1, What.CYCLES)
    monkeypatch.setattr(group, "COUNTERS", (task_clock,))
    monkeypatch.setattr(watch.Watch, "__init__", partialmethod(_counting, watch.Watch.__init__))

    def work() -> None:
        until = time.thread_time_ns() + 50_000_000
        while time.thread_time_ns() < until:
            sum(range(1000))

    records = visited(system, work)
    assert Watched.COUNTERS in records.data.watched
    (own,) = [t for t in records.data.threads if t.number == threading.get_native_id()]
    assert own_sum(system, records, "cycles") == pytest.approx(own.ran_ns, abs=10e6)
    assert own_sum(system, records, "instructions") == 0


def _counting(self: watch.Watch, make: Callable[..., None], allowed: Access) -> None:
    make(self, replace(allowed, counters=True))


def test_events_stay_open_between_visits_and_until_records_are_read(system: LinuxSystem) -> None:
    clock = SystemClock()
    system.start(clock, CALLS)
    system.stop()
    opened = open_events()
    assert opened > 0
    system.start(clock, CALLS)
    records = system.stop()
    assert open_events() == opened
    assert system.accounts(records).height > 0
    assert open_events() == 0
    system.start(clock, CALLS)
    system.accounts(records)  # of another visit, while this one goes on
    time.sleep(0.01)
    assert own_sum(system, system.stop(), "blocked") > 0


def test_events_close_with_the_clock_of_the_last_measurement(system: LinuxSystem) -> None:
    clock, later = SystemClock(), SystemClock()
    system.start(clock, CALLS)
    system.stop()
    system.start(later, CALLS)
    system.stop()
    del clock
    assert open_events() > 0
    del later
    assert open_events() == 0


def test_measurement_and_block_leave_no_events_behind(system: LinuxSystem) -> None:
    with added_providers(system):
        trace = xsp.measure(lambda: time.sleep(1e-4), levels=("model", "system"), runs=5)
        assert open_events() == 0
        with xsp.profile(levels=("model", "system")) as block:
            for _ in range(20):
                with xsp.span("pause"):
                    time.sleep(1e-3)
        assert open_events() == 0
    assert trace.spans.height
    assert block.trace.spans.height


def test_calling_thread_is_watched_whichever_it_is(system: LinuxSystem) -> None:
    clock = SystemClock()
    system.start(clock, CALLS)
    system.stop()
    found: list[float] = []

    def measure() -> None:
        system.start(clock, CALLS)
        touch(300)
        found.append(own_sum(system, system.stop(), "page_fault"))

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    assert found[0] >= 300


def test_other_threads_are_watched_and_those_that_begin_later_are_named(
    system: LinuxSystem,
) -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        touch(200)
        done.set()

    earlier = threading.Thread(target=work)
    earlier.start()

    def begin() -> None:
        go.set()
        done.wait()
        later = threading.Thread(target=lambda: sum(range(10_000_000)))
        later.start()
        later.join()

    records = visited(system, begin)
    found = system.accounts(records).filter(what="page_fault", thread=earlier.ident)
    earlier.join()
    assert found["amount"].sum() >= 200
    assert any(warning.startswith("1 thread") for warning in records.warnings)


def test_child_that_exists_is_watched_and_one_that_begins_is_named(system: LinuxSystem) -> None:
    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(child: subprocess.Popen[bytes]) -> None:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"x\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"x\n"

    with begin() as earlier:
        ask(earlier)
        later: list[subprocess.Popen[bytes]] = []

        def work() -> None:
            ask(earlier)
            subprocess.run(["true"], check=True)
            later.append(begin())
            ask(later[0])

        records = visited(system, work)
        earlier.kill()
        with later[0]:
            later[0].kill()
    names = {each.number: each.process for each in records.data.threads}
    assert names[earlier.pid] == f"cat {earlier.pid}"
    assert system.accounts(records).filter(thread=-earlier.pid, what="watched").height
    assert any("2 processes (cat) began" in w for w in records.warnings), records.warnings


def test_thread_that_ends_is_watched_until_then(system: LinuxSystem) -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    number = thread.ident

    def end() -> None:
        go.set()
        thread.join()
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            time.sleep(0.001)
        time.sleep(0.05)

    records = visited(system, end)
    watched = system.accounts(records).filter(what="watched", cause="switches")
    ends = dict(watched.select("thread", "end_ns").rows())
    assert ends[number] <= records.data.end_ns - 50_000_000
    assert ends[threading.get_ident()] == records.data.end_ns


def test_hostile_names_of_threads_are_made_printable(system: LinuxSystem) -> None:
    go = threading.Event()
    libc = ctypes.CDLL(None)

    def work() -> None:
        libc.prctl(15, b"\xff\n\x1b[31m", 0, 0, 0)  # PR_SET_NAME
        go.wait()

    thread = threading.Thread(target=work, name="a\nb\x1b")
    thread.start()
    records = visited(system, lambda: None)
    go.set()
    thread.join()
    assert records.data.names[thread.native_id] == "a?b?"
    assert all(name.isprintable() for name in records.data.names.values())


def test_full_ring_is_counted(system: LinuxSystem) -> None:
    clock = SystemClock()
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        for _ in range(10):
            touch(6000)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    system.start(clock, CALLS)
    go.set()
    done.wait()
    records = system.stop()
    thread.join()
    found = system.accounts(records).filter(what="page_fault", thread=thread.ident).height
    assert found < 60_000 <= found + records.dropped <= 61_000
    system.start(clock, CALLS)  # and it goes on
    touch(10)
    assert own_sum(system, system.stop(), "page_fault") >= 10
