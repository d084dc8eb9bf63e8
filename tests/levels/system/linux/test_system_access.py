from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp.show.cli import doctor
from xsp.testing import only_providers
from xsp_levels.native import event_ring
from xsp_levels.system.linux import access as module
from xsp_levels.system.linux import provider as provider_module
from xsp_levels.system.linux.access import Access, access, keep_tracepoints, tracepoints
from xsp_levels.system.linux.call_name import call_names
from xsp_levels.system.linux.provider import LinuxSystem

NUMBERS = {"raw_syscalls/sys_enter": 443, "raw_syscalls/sys_exit": 442, "sched/sched_waking": 375}


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Let what may be watched be tried in the test, and again after it."""
    access.cache_clear()
    yield
    access.cache_clear()


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOSYS])
def test_kernel_that_refuses_everything_leaves_counters(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kernel.perf_event_paranoid 3 or 4 of Debian and Ubuntu, and in gVisor."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(event_ring, "open_event", refuse)
    system = LinuxSystem()
    assert system.unavailable() is None
    assert "system calls: no" in str(system.remark())
    assert "perf_event_open" in str(system.remark())
    monkeypatch.setattr(module, "_SCHEDSTAT", Path("/nowhere"))
    assert "run it on a Linux kernel" in str(system.unavailable())


def tracefs(folder: Path) -> Path:
    for name, number in NUMBERS.items():
        (folder / "events" / name).mkdir(parents=True)
        (folder / "events" / name / "id").write_text(f"{number}\n")
    return folder


def test_numbers_of_tracepoints_are_left_for_other_users_until_the_next_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_NUMBERS", tmp_path / "run" / "tracepoints")
    monkeypatch.setattr(module, "_TRACEFS", (tracefs(tmp_path / "tracing"),))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert tracepoints() == NUMBERS
    keep_tracepoints()
    monkeypatch.setattr(module, "_TRACEFS", (Path("/nowhere"),))
    # What another user than root has written is not believed.
    assert tracepoints() == (NUMBERS if os.getuid() == 0 else {})
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(module, "_BOOT", boot)
    assert tracepoints() == {}


def test_doctor_has_a_line_with_the_remedy_for_each_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "keep_tracepoints", lambda: None)
    allowed = Access(None, kernel=True, no_calls="mount tracefs", waking=375)
    monkeypatch.setattr(provider_module, "access", lambda: allowed)
    with only_providers(LinuxSystem()):
        lines = doctor.summary(doctor.diagnosis(), 100).splitlines()
    assert "✓ waits, page faults, who wakes threads  yes" in lines
    assert "✗ system calls                           no; mount tracefs" in lines


def test_kernel_that_does_not_count_lost_records_fills_rings_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels before Linux 6.0."""
    if access().refusal is not None:
        pytest.skip(f"needs performance events: {access().refusal}")
    older = replace(access(), lost_counted=False)
    monkeypatch.setattr(provider_module, "access", lambda: older)
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        for _ in range(10):
            with mmap.mmap(-1, 6000 * mmap.PAGESIZE) as memory:
                memory.madvise(mmap.MADV_NOHUGEPAGE)
                for page in range(6000):
                    memory[page * mmap.PAGESIZE] = 1
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    system, clock = LinuxSystem(), SystemClock()
    system.start(clock, Request(frozenset({Kind.SYSCALL})))
    go.set()
    done.wait()
    records = system.stop()
    faults = system.accounts(records).filter(what="page_fault", thread=thread.ident).height
    thread.join()
    assert faults < 60_000 <= faults + records.dropped <= 61_000
    system.start(clock, Request(frozenset({Kind.SYSCALL})))
    assert system.stop().dropped == 0


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_names_of_calls_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    names = call_names(machine)
    known = {"x86_64": (0, 60, 202, 257, 435), "aarch64": (63, 93, 98, 56, 435)}[machine]
    assert [names[number] for number in known] == ["read", "exit", "futex", "openat", "clone3"]
    if not Path(header).exists():
        return
    # aarch64 has its own names for two, and no numbers of 32-bit machines.
    other = {79: "newfstatat", 84: "sync_file_range"} if machine == "aarch64" else {}
    for line in Path(header).read_text().splitlines():
        words = line.replace("__NR3264_", "__NR_").split()
        if len(words) == 3 and words[1].startswith("__NR_") and words[2].isdigit():
            number, name = int(words[2]), words[1].removeprefix("__NR_")
            if name in ("syscalls", "arch_specific_syscall") or (294 < number < 424 and other):
                continue
            if number in names:
                assert names[number] == other.get(number, name)
    assert max(names) == 469
