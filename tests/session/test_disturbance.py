from __future__ import annotations

import cProfile
import sys
from pathlib import Path

import pytest

from xsp.record.session import disturbance


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


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


def test_busy_neighbors_and_stolen_time_are_disturbances() -> None:
    busy, stolen = disturbance._neighbors(1.7, 4, 0.12)
    assert "1.7 of 4 cores" in busy
    assert "12%" in stolen
    assert list(disturbance._neighbors(0.1, 4, 0.01)) == []


def test_every_disturbance_comes_with_its_remedy() -> None:
    assert all("Remedy: " in sentence for sentence in disturbance.disturbances(0.01))
