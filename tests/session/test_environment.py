from __future__ import annotations

import hmac
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from xsp.session import environment


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def test_the_description_is_json_and_has_what_matters() -> None:
    facts = json.loads(json.dumps(environment.describe_environment()))
    assert facts["python"] == platform.python_version()
    assert facts["cpu"]
    assert facts["memory_bytes"] > 1 << 20
    assert 0 < facts["usable_cores"] <= facts["logical_cores"]
    assert facts["versions"]["polars"]
    assert facts["versions"]["xsp"]
    assert "no-such-package" not in facts["versions"]


def test_the_description_names_the_process_but_not_its_command_line() -> None:
    facts = environment.describe_environment()
    assert facts["pid"] == os.getpid()
    assert facts["executable"] == Path(sys.executable).name
    assert sys.executable not in json.dumps(facts)


@pytest.mark.parametrize("path", ["etc/machine-id", "var/lib/dbus/machine-id"])
def test_a_machine_is_known_by_its_machine_id_which_is_not_told(tmp_path: Path, path: str) -> None:
    secret = "fdbf79e8af94cb7f9e8df36789187052"
    put(tmp_path, path, secret)
    made = environment.host_id(tmp_path)
    assert made == hmac.new(secret.encode(), b"xsp", "sha256").hexdigest()[:32]
    put(tmp_path, path, secret.replace("f", "e"))
    assert environment.host_id(tmp_path) != made


@pytest.mark.parametrize("content", [None, "", "uninitialized"])
def test_a_machine_without_an_id_has_one_made_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        put(tmp_path, "etc/machine-id", content)
    found = set()
    for name in ("one", "one", "other", ""):
        monkeypatch.setattr(platform, "node", lambda name=name: name)
        found.add(environment.host_id(tmp_path))
    assert len(found) == 3
    assert all(len(made) == 32 for made in found)


def test_describing_imports_no_framework() -> None:
    code = (
        "import sys; from xsp.session.environment import describe_environment; describe_environment(); "
        "sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_processor_is_called_what_the_kernel_calls_it(tmp_path: Path) -> None:
    put(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast One\n")
    assert environment.cpu_model(tmp_path) == "Fast One"


def test_a_machine_that_does_not_say_its_processor_gives_its_architecture(tmp_path: Path) -> None:
    assert environment.cpu_model(tmp_path)


def test_the_narrowest_limit_of_a_group_and_its_parents_counts(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/pods/mine")
    put(tmp_path, "sys/fs/cgroup/pods/mine/cpu.max", "max 100000")
    put(tmp_path, "sys/fs/cgroup/pods/cpu.max", "150000 100000")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "400000 100000")
    assert environment.cpu_quota(tmp_path) == 1.5
    assert environment.usable_cores(tmp_path) <= 1.5


def test_a_limit_of_the_older_groups_is_found(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "4:memory:/\n1:cpu,cpuacct:/box")
    put(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000")
    put(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert environment.cpu_quota(tmp_path) == 2.5


def test_without_a_limit_there_is_no_quota(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000")
    assert environment.cpu_quota(tmp_path) is None
    assert environment.usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert list(environment._limits(tmp_path)) == []


def test_a_limit_is_a_disturbance_that_says_how_often_it_struck(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "200000 100000")
    put(tmp_path, "sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_throttled 17")
    (sentence,) = environment._limits(tmp_path)
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
    (sentence,) = environment._frequency(tmp_path)
    assert said in sentence
    assert "Remedy" in sentence


def test_a_fixed_frequency_is_none(tmp_path: Path) -> None:
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    put(tmp_path, "sys/devices/system/cpu/intel_pstate/no_turbo", "1")
    put(tmp_path, "sys/devices/system/cpu/cpufreq/boost", "0")
    assert list(environment._frequency(tmp_path)) == []


def test_more_threads_than_cores_are_a_disturbance() -> None:
    (sentence,) = environment._too_many_threads(8, 2.5)
    assert "8 threads" in sentence
    assert "xsp profile --threads 2, OMP_NUM_THREADS=2" in sentence
    assert list(environment._too_many_threads(2, 2.0)) == []


def test_the_framework_says_how_many_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 7))
    assert environment.thread_count() == 7


def test_before_the_framework_is_loaded_its_variables_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert environment.thread_count() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert environment.thread_count() is None


def test_a_python_profiler_is_a_disturbance() -> None:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        said = " ".join(environment._observers())
    finally:
        sys.setprofile(before)
    assert "sys.setprofile" in said


def test_a_tracing_process_is_a_disturbance(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", "Name:\tx\nTracerPid:\t4711")
    assert any("Process 4711 traces" in said for said in environment._observers(tmp_path))
    put(tmp_path, "proc/self/status", "Name:\tx\nTracerPid:\t0")
    assert not any("traces" in said for said in environment._observers(tmp_path))


def test_busy_neighbours_and_stolen_time_are_disturbances() -> None:
    busy, stolen = environment._neighbours(1.7, 4, 0.12)
    assert "1.7 of 4 cores" in busy
    assert "12%" in stolen
    assert list(environment._neighbours(0.1, 4, 0.01)) == []


def test_the_process_itself_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = psutil.cpu_count() or 1
    times = iter([_times(user=0.0, idle=0.0), _times(user=1.0, idle=cores - 1.0)])
    own = iter([SimpleNamespace(user=0.0, system=0.0), SimpleNamespace(user=1.0, system=0.0)])
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_times=lambda: next(own)))
    fake = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(environment, "time", fake)
    assert list(environment._load(0.0)) == []


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


def test_swapped_pages_of_this_process_are_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, own=2_048_000, used=2_048_000, available=9_000_000_000)
    (sentence,) = environment._swapped()
    assert "2.0 MB of this process" in sentence


def test_a_machine_short_of_memory_is_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, own=0, used=8_000_000_000, available=200_000_000)
    (sentence,) = environment._swapped()
    assert "8.0 GB are swapped out" in sentence
    memory(monkeypatch, own=0, used=8_000_000_000, available=9_000_000_000)
    assert list(environment._swapped()) == []


def test_every_disturbance_comes_with_its_remedy() -> None:
    assert all("Remedy: " in sentence for sentence in environment.disturbances(0.01))


def test_gpus_are_asked_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment._gpus.cache_clear()
    try:
        (gpu,) = environment.describe_environment()["gpus"]
    finally:
        environment._gpus.cache_clear()
    assert gpu == {"name": "NVIDIA H200", "driver": "580.1", "memory": "143771 MiB"}


def test_an_nvidia_smi_that_fails_means_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment._gpus.cache_clear()
    try:
        assert environment.describe_environment()["gpus"] == []
    finally:
        environment._gpus.cache_clear()
