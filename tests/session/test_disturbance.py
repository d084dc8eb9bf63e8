from __future__ import annotations

import cProfile
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from xsp.session import disturbance, environment


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def _times(user: float, idle: float) -> Any:
    fields = psutil.cpu_times()._fields
    return psutil.cpu_times()._replace(**{**dict.fromkeys(fields, 0.0), "user": user, "idle": idle})


def memory(monkeypatch: pytest.MonkeyPatch, *, own: int, used: int, available: int) -> None:
    """Have a machine of 16 GB look like this, in bytes."""
    process = SimpleNamespace(memory_full_info=lambda: SimpleNamespace(swap=own))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(used=used))
    whole = SimpleNamespace(available=available, total=16_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)


def test_without_a_limit_there_is_no_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000")
    assert environment.cpu_quota(tmp_path) is None
    assert environment.usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert list(disturbance._limits(tmp_path)) == []


def test_a_limit_is_a_disturbance_that_says_how_often_it_struck(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "200000 100000")
    put(tmp_path, "sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_throttled 17")
    (sentence,) = disturbance._limits(tmp_path)
    assert "2 cores' time" in sentence
    assert "17 times" in sentence
    assert "Remedy" in sentence


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("cpu3/cpufreq/scaling_governor", "powersave", "governor powersave"),
        ("intel_pstate/no_turbo", "0", "Turbo is on"),
        ("cpufreq/boost", "1", "boost is on"),
    ],
)
def test_a_frequency_that_changes_is_a_disturbance(
    tmp_path: Path, path: str, value: str, said: str
) -> None:
    put(tmp_path, f"sys/devices/system/cpu/{path}", value)
    (sentence,) = disturbance._frequency(tmp_path)
    assert said in sentence
    assert "Remedy" in sentence


def test_a_fixed_frequency_is_none(tmp_path: Path) -> None:
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    put(tmp_path, "sys/devices/system/cpu/intel_pstate/no_turbo", "1")
    put(tmp_path, "sys/devices/system/cpu/cpufreq/boost", "0")
    assert list(disturbance._frequency(tmp_path)) == []


def test_more_threads_than_cores_are_a_disturbance() -> None:
    (sentence,) = disturbance._too_many_threads(8, 2.5)
    assert "8 threads" in sentence
    assert "xsp profile --threads 2, OMP_NUM_THREADS=2" in sentence
    assert list(disturbance._too_many_threads(2, 2.0)) == []


def test_a_python_profiler_is_a_disturbance_and_named() -> None:
    before, profiler = sys.getprofile(), cProfile.Profile()
    profiler.enable()
    try:
        said = " ".join(disturbance._observers())
    finally:
        profiler.disable()
        sys.setprofile(before)
    assert "cProfile" in said


def test_a_tracing_process_is_a_disturbance(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", "Name:\tx\nTracerPid:\t4711")
    assert disturbance.observers(tmp_path) == ("ptrace: process 4711",)
    assert any("process 4711" in said for said in disturbance._observers(tmp_path))
    put(tmp_path, "proc/self/status", "Name:\tx\nTracerPid:\t0")
    assert disturbance.observers(tmp_path) == ()


def test_busy_neighbours_and_stolen_time_are_disturbances() -> None:
    busy, stolen = disturbance._neighbours(1.7, 4, 0.12)
    assert "1.7 of 4 cores" in busy
    assert "12%" in stolen
    assert list(disturbance._neighbours(0.1, 4, 0.01)) == []


def test_the_process_itself_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = psutil.cpu_count() or 1
    times = iter([_times(user=0.0, idle=0.0), _times(user=1.0, idle=cores - 1.0)])
    own = iter([SimpleNamespace(user=0.0, system=0.0), SimpleNamespace(user=1.0, system=0.0)])
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_times=lambda: next(own)))
    fake = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(disturbance, "time", fake)
    assert list(disturbance._load(0.0)) == []


def test_swapped_pages_of_this_process_are_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, own=2_048_000, used=2_048_000, available=9_000_000_000)
    (sentence,) = disturbance._swapped()
    assert "2.0 MB of this process" in sentence


def test_a_machine_short_of_memory_is_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, own=0, used=8_000_000_000, available=200_000_000)
    (sentence,) = disturbance._swapped()
    assert "8.0 GB are swapped out" in sentence
    memory(monkeypatch, own=0, used=8_000_000_000, available=9_000_000_000)
    assert list(disturbance._swapped()) == []


def test_every_disturbance_comes_with_its_remedy() -> None:
    assert all("Remedy: " in sentence for sentence in disturbance.disturbances(0.01))
