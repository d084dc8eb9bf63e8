"""Tests of what takes a privilege: system calls and wakers."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp.record.session.calibration import calibrate, inside_cost
from xsp_levels.system.linux.access import access
from xsp_levels.system.linux.provider import LinuxSystem

pytestmark = pytest.mark.perfmon
CALLS = Request(frozenset({Kind.SYSCALL}))


@pytest.fixture(autouse=True)
def allowed() -> None:
    """Skip a test where not everything may be watched."""
    here = access()
    if here.refusal or not here.calls or not here.waking:
        pytest.skip(f"needs CAP_PERFMON and tracefs: {'; '.join(here.lines())}")


def test_calls_are_counted_and_lie_between_the_readings_around_them() -> None:
    provider, clock = LinuxSystem(), SystemClock()
    reader, writer = os.pipe()
    provider.start(clock, CALLS)
    before = time.monotonic_ns()
    for _ in range(7):
        os.getppid()
    after = time.monotonic_ns()
    os.write(writer, b"12345")
    os.read(reader, 100)
    with pytest.raises(OSError, match="Bad file"):
        os.read(-1, 1)
    records = provider.stop()
    os.close(reader)
    os.close(writer)
    rows = provider.spans(records).filter(thread=threading.get_ident())
    assert rows["name"].to_list() == ["getppid"] * 7 + ["write", "read", "read"]
    assert rows["attr.bytes"].to_list()[7:] == [5, 5, None]
    assert rows["attr.error"].to_list()[7:] == [None, None, "EBADF"]
    calls = rows.filter(name="getppid")
    assert before <= calls["start_ns"].min()  # type: ignore[operator]
    assert calls["end_ns"].max() <= after  # type: ignore[operator]
    assert records.dropped == 0


def test_wakers_and_what_they_woke_the_thread_from_are_named() -> None:
    """Not each of ten waits: the kernel records nearly all wake-ups by timers."""
    provider, clock = LinuxSystem(), SystemClock()
    ask, answer = os.pipe(), os.pipe()

    def wake() -> None:
        while os.read(ask[0], 1) == b"x":
            time.sleep(0.005)
            os.write(answer[1], b"x")

    thread = threading.Thread(target=wake, name="waker of tests")
    thread.start()
    provider.start(clock, CALLS)
    for _ in range(10):
        os.write(ask[1], b"x")
        os.read(answer[0], 1)
        time.sleep(0.002)
    records = provider.stop()
    os.write(ask[1], b"q")
    thread.join()
    for descriptor in (*ask, *answer):
        os.close(descriptor)
    found = provider.accounts(records).filter(thread=threading.get_ident())
    assert {"read", "clock_nanosleep"} <= set(found.filter(what="blocked")["cause"])
    assert {"waker of tests", "interrupt"} <= set(found.filter(what="woken")["cause"])


def test_faults_within_calls_are_counted() -> None:
    provider, clock = LinuxSystem(), SystemClock()
    pages = 400
    with (
        open("/dev/zero", "rb", buffering=0) as zeros,
        mmap.mmap(-1, pages * mmap.PAGESIZE) as memory,
    ):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        provider.start(clock, CALLS)
        zeros.readinto(memory)
        records = provider.stop()
    found = provider.accounts(records).filter(thread=threading.get_ident(), what="page_fault")
    (read,) = provider.spans(records).filter(thread=threading.get_ident(), name="read").to_dicts()
    within = found.filter(found["start_ns"].is_between(read["start_ns"], read["end_ns"]))
    assert within.height >= pages


def test_cost_of_recording_inside_a_call_is_measured() -> None:
    made = calibrate(LinuxSystem(), Kind.SYSCALL, SystemClock())
    assert made is not None
    cost = inside_cost(made)
    assert cost is not None
    assert -1_000 < cost.cost_ns < 100_000


WORK = """
import os, sys, tempfile
def work():
    with tempfile.TemporaryFile() as file:
        number = file.fileno()
        for _ in range(40): os.pwrite(number, bytes(100), 0)
        for _ in range(30): os.pread(number, 50, 0)
        for _ in range(20): os.lseek(number, 0, 0)
        for _ in range(10): os.getppid()
        for _ in range(5): os.ftruncate(number, 10)
"""
NAMES = ("pwrite64", "pread64", "lseek", "getppid", "ftruncate")


def test_counts_are_those_of_strace(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace: apt-get install strace")

    def traced(then: str) -> Counter[str]:
        summary = tmp_path / "counts"
        command = ["strace", "-f", "-c", "-U", "calls,name", "-e", ",".join(NAMES)]
        code = [sys.executable, "-c", textwrap.dedent(WORK) + then]
        finished = subprocess.run(
            [*command, "-o", summary, *code], capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stderr
        lines = (line.split() for line in summary.read_text().splitlines())
        return Counter({line[1]: int(line[0]) for line in lines if line[-1] in NAMES})

    expected = traced("work()") - traced("")
    scope: dict[str, object] = {}
    exec(WORK, scope)
    work = scope["work"]
    assert callable(work)
    provider, clock = LinuxSystem(), SystemClock()
    provider.start(clock, CALLS)
    work()
    rows = provider.spans(provider.stop()).filter(thread=threading.get_ident())
    found = Counter(rows["name"].to_list())
    assert {name: found[name] for name in NAMES} == {name: expected[name] for name in NAMES}
    assert expected["pwrite64"] == 40
