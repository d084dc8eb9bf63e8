from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from xsp_levels.system.linux.access import access
from xsp_levels.system.linux.provider import LinuxSystem

BEFORE = """
import ctypes, mmap, os, platform, resource, struct, sys, threading, time
import polars as pl
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp_levels.system.linux.access import access
from xsp_levels.system.linux.provider import LinuxSystem
CALLS, clock, system = Request(frozenset({Kind.SYSCALL})), SystemClock(), LinuxSystem()
def unprivileged():
    if os.geteuid() == 0:
        system.accounts(system.stop())  # imports what it needs
        os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again
def begin(count):
    for _ in range(count): threading.Thread(target=threading.Event().wait, daemon=True).start()
def own(records, what):
    found = system.accounts(records)
    return found.filter(what=what, thread=threading.get_ident())["amount"].sum()
def end():
    sys.stdout.flush(); os._exit(0)
"""


def python(code: str) -> str:
    """Run code in a new process, and return its standard output."""
    finished = subprocess.run(
        [sys.executable, "-c", BEFORE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


# A filter of seccomp that refuses perf_event_open, as containers do: load the number of the call,
# compare, return EPERM or allow.
REFUSED = """
number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
program = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number,
                      0x06, 0, 0, 0x50000 | 1, 0x06, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(program, len(program))
filter_ = struct.pack("=H6xQ", 4, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.create_string_buffer(filter_, len(filter_)), 0, 0) == 0
"""
COUNTED = """
def work():
    memory = mmap.mmap(-1, 400 * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(400): memory[page * mmap.PAGESIZE] = 1
    time.sleep(0.2)
    until = time.thread_time() + 0.03
    while time.thread_time() < until: pass
assert system.unavailable() is None
print(system.remark())
system.start(clock, CALLS)
work()
records = system.stop()
print(records.warnings[0])
found = system.accounts(records)
assert not found["exact"].any()
assert system.spans(records).height == 0
assert system.empty_span(Kind.SYSCALL) is None
length = records.data.end_ns - records.data.begin_ns
blocked, runnable = own(records, "blocked"), own(records, "runnable")
assert blocked >= 50e6 and blocked + runnable <= length - 29e6, (blocked, runnable, length)
assert own(records, "page_fault") >= 400
watched = found.filter(what="watched", thread=threading.get_ident())
assert set(watched["cause"]) == {"switches", "faults"}
assert set(watched["thread_name"]) == {"MainThread"}
"""


def test_container_that_refuses_events_has_counters() -> None:
    said = python(REFUSED + COUNTED)
    assert "in a container allow perf_event_open" in said
    assert "not when and why" in said


def test_refusal_that_comes_later_has_counters_too() -> None:
    said = python("access()\n" + REFUSED + COUNTED.replace("assert system.empty", "system.empty"))
    assert "not when and why" in said


@pytest.mark.forks
def test_forked_child_measures_itself_and_its_parent_goes_on() -> None:
    if access().refusal is not None:
        pytest.skip(f"needs performance events: {access().refusal}")
    code = """
        def events():
            files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
            return sum("perf_event" in os.readlink(each) for each in files if os.path.lexists(each))
        system.start(clock, CALLS)
        child = os.fork()
        if child == 0:
            assert events() == 0 and not system.stop().data.threads
            system.start(clock, CALLS)
            time.sleep(0.01)
            os._exit(0 if own(system.stop(), "blocked") >= 10e6 else 1)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        time.sleep(0.01)
        records = system.stop()
        print("open", events() > 0)
        print("parent", own(records, "blocked") >= 10e6)
        """
    assert python(code) == "child 0\nopen True\nparent True\n"


@pytest.mark.slow
def test_of_a_thousand_threads_those_that_ran_longest_are_watched() -> None:
    code = """
        begin(1000)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 10_000),) * 2)
        system.start(clock, CALLS)
        time.sleep(0.01)
        records = system.stop()
        assert own(records, "blocked") + own(records, "runnable") >= 10e6
        print(len(records.data.threads), records.warnings)
        end()
        """
    count, said = python(code).split(maxsplit=1)
    assert 1 <= int(count) <= 256
    assert "threads that have run longest" in said


def test_files_are_left_for_the_program() -> None:
    code = """
        begin(40)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        system.start(clock, CALLS)
        files = [open("/dev/null") for _ in range(15)]
        records = system.stop()
        print(records.warnings)
        end()
        """
    assert "ulimit -n" in python(code) or access().refusal is not None


def test_little_memory_that_may_be_locked_makes_rings_small() -> None:
    code = """
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        begin(4)
        unprivileged()
        system.start(clock, CALLS)
        time.sleep(0.01)
        records = system.stop()
        print(own(records, "blocked") >= 10e6, records.warnings)
        end()
        """
    assert python(code).startswith("True ")


def test_system_that_tells_nothing_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert "this is Darwin" in str(LinuxSystem().unavailable())


def test_remark_says_what_may_be_watched_and_what_would_allow_the_rest() -> None:
    said = python("unprivileged()\nprint(system.remark())")
    if access().refusal is None:
        assert "waits: yes" in said
        assert "system calls: yes" in said or "perf_event_paranoid=1" in said or "tracing" in said
        assert "who wakes threads: yes" in said or "CAP_PERFMON" in said or "tracing" in said
