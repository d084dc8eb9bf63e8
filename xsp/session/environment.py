"""Says what machine and software a measurement was made on, and what disturbs it there.

Stands beside the flow: its results go into a trace's metadata and into `xsp doctor`.
"""

from __future__ import annotations

import hmac
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

# What is said the version of: whatever changes latencies or how they are read.
PACKAGES = (
    "xsp",
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "tensorflow",
    "onnxruntime",
    "jax",
    "cupti-python",
    "numpy",
    "polars",
    "click",
    "rich",
    "psutil",
)
# How many threads OpenMP, MKL and OpenBLAS use; they read it when they are loaded.
THREAD_NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_THREAD_VARIABLES = (*THREAD_NUMBERS, "KMP_AFFINITY", "OMP_PROC_BIND")
_ROOT = Path("/")


def describe_environment() -> dict[str, Any]:
    """Return the machine, this process and the software, as what JSON can hold.

    Nothing heavy is imported for it: versions come from the packages' metadata,
    thread settings of a framework only if the program has loaded it.
    """
    memory = psutil.virtual_memory()
    return {
        "host": platform.node(),
        "host_id": host_id(),
        "pid": os.getpid(),
        # Not the command line: it may hold credentials.
        "executable": os.path.basename(sys.executable),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": memory.total,
        "available_memory_bytes": memory.available,
        "os": platform.platform(),
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "versions": versions(),
        "threads": _threads(),
        "gpus": list(_gpus()),
    }


def versions() -> dict[str, str]:
    """Return the versions of those packages of `PACKAGES` that are installed."""
    return {package: found for package in PACKAGES if (found := _version(package))}


def host_id(root: Path = _ROOT) -> str:
    """Return what tells this machine from all others, made of its machine id, or of its name.

    The machine id itself is confidential (machine-id(5)), and traces are handed around: it
    is the key of a keyed hash (HMAC-SHA-256 of "xsp", 32 hexadecimal digits), which gives
    one value per machine and does not lead back to it.
    """
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        found = _read(root / path)
        if found and found != "uninitialized":  # as systemd writes it into images
            return _keyed(found)
    return _keyed(platform.node())


def _keyed(key: str) -> str:
    return hmac.digest(key.encode(), b"xsp", "sha256").hex()[:32]


def cpu_model(root: Path = _ROOT) -> str:
    """Return the processor's name as the kernel states it."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def usable_cores(root: Path = _ROOT) -> float:
    """Return how many cores this process may use: its affinity, or its group's quota if less."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return float(min(cores, cpu_quota(root) or cores))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return how many cores' time the control group may use; None: no limit.

    The narrowest limit of the process's group and all above it counts.
    """
    quotas = [quota for group in _cpu_groups(root) if (quota := _group_quota(group)) is not None]
    return min(quotas, default=None)


def disturbances(interval_s: float = 0.2) -> tuple[str, ...]:
    """Return what makes latencies on this machine vary, each sentence with its remedy.

    Args:
        interval_s: Seconds for which the load of the machine is watched.
    """
    return (
        *_frequency(),
        *_limits(),
        *_too_many_threads(thread_count() or _default_threads(), usable_cores()),
        *_observers(),
        *_load(interval_s),
        *_swapped(),
    )


def thread_count() -> int | None:
    """Return how many threads the framework's operators use; None if it cannot be said."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit():
            return int(first)
    return None


@contextmanager
def limited_threads(number: int | None) -> Iterator[None]:
    """Have operators and libraries use so many threads, here and in processes started meanwhile.

    Libraries that are loaded already keep theirs, but for PyTorch.

    Args:
        number: How many, at least 1; None: as it is.
    """
    if number is None:
        yield
        return
    variables = {name: os.environ.get(name) for name in THREAD_NUMBERS}
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    os.environ.update(dict.fromkeys(THREAD_NUMBERS, str(number)))
    if torch is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        for name, value in variables.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        if torch is not None:
            torch.set_num_threads(before)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _default_threads() -> int:
    """Return how many threads OpenMP starts unasked: it sees the affinity, but no quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, psutil.cpu_count(logical=False) or usable or 1)


def _threads() -> dict[str, Any]:
    variables = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    return {"operators": thread_count()} | variables


@cache
def _gpus() -> tuple[dict[str, str], ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    fields = ("name", "driver_version", "memory.total")
    command = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = [line.split(",") for line in answer.stdout.splitlines() if line.count(",") == 2]
    return tuple(
        dict(zip(("name", "driver", "memory"), map(str.strip, line), strict=True)) for line in lines
    )


def _frequency(root: Path = _ROOT) -> Iterator[str]:
    cpu = root / "sys/devices/system/cpu"
    governors = {_read(path) for path in sorted(cpu.glob("cpu[0-9]*/cpufreq/scaling_governor"))}
    slow = sorted(governors - {"performance", ""})
    if slow:
        yield (
            f"The cores' frequency is scaled (governor {', '.join(slow)}): latencies depend on "
            "what ran before. Remedy: sudo cpupower frequency-set --governor performance."
        )
    if _read(cpu / "intel_pstate/no_turbo") == "0":
        yield (
            "Turbo is on: the frequency falls when cores get warm or busy. "
            "Remedy: echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo."
        )
    if _read(cpu / "cpufreq/boost") == "1":
        yield (
            "Frequency boost is on: the frequency falls when cores get warm or busy. "
            "Remedy: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost."
        )


def _limits(root: Path = _ROOT) -> Iterator[str]:
    quota = cpu_quota(root)
    if quota is None:
        return
    throttled = max((_throttled(group) for group in _cpu_groups(root)), default=0)
    yield (
        f"The control group may use {quota:g} cores' time and has been stopped for using more "
        f"{throttled} times: whoever exceeds it waits up to 0.1 s. Remedy: give the container "
        "whole cores (docker: --cpuset-cpus instead of --cpus; Kubernetes: the static CPU policy)."
    )


def _too_many_threads(threads: int | None, cores: float) -> Iterator[str]:
    if threads is not None and threads > cores:
        yield (
            f"Operators use {threads} threads and the process may use {cores:g} cores: threads "
            f"wait for each other. Remedy: xsp profile --threads {max(1, int(cores))}, "
            f"OMP_NUM_THREADS={max(1, int(cores))}, or torch.set_num_threads."
        )


def _observers(root: Path = _ROOT) -> Iterator[str]:
    tools = [name for name, used in _python_hooks() if used]
    if tools:
        yield (
            f"Python code of this process is being watched ({', '.join(tools)}: a debugger, "
            "coverage or a profiler), which slows every call. Remedy: run without it."
        )
    for line in _read(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key == "TracerPid" and value.strip() != "0":
            yield (
                f"Process {value.strip()} traces this one (a debugger or strace), which slows "
                "its system calls. Remedy: detach it."
            )


def _python_hooks() -> Iterator[tuple[str, bool]]:
    yield "sys.settrace", sys.gettrace() is not None
    yield "sys.setprofile", sys.getprofile() is not None
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12 and later
    if monitoring is not None:
        for name in map(monitoring.get_tool, range(6)):
            yield f"sys.monitoring: {name}", name is not None


def _load(interval_s: float) -> Iterator[str]:
    own = psutil.Process()
    before, own_before, began = psutil.cpu_times(), own.cpu_times(), time.monotonic()
    time.sleep(interval_s)
    after, own_after = psutil.cpu_times(), own.cpu_times()
    seconds = time.monotonic() - began
    total = max(sum(after[:8]) - sum(before[:8]), 1e-9)
    idle = after.idle - before.idle + getattr(after, "iowait", 0) - getattr(before, "iowait", 0)
    steal = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    mine = own_after.user + own_after.system - own_before.user - own_before.system
    cores = psutil.cpu_count() or 1
    others = cores * (total - idle - steal) / total - mine / seconds
    yield from _neighbours(others, cores, steal / total)


def _neighbours(busy_cores: float, cores: int, steal: float) -> Iterator[str]:
    # A tick of 10 ms in the short interval is a twentieth of a core: not a neighbour yet.
    if busy_cores > max(0.15, 0.05 * cores):
        yield (
            f"Other processes keep {busy_cores:.1f} of {cores} cores busy. Remedy: stop them "
            "(top shows which), or pin the measurement to idle cores with taskset -c."
        )
    if steal > 0.02:
        yield (
            f"The machine is virtual, and its host takes {steal:.0%} of its time away. "
            "Remedy: a dedicated host; else more runs and a look at the intervals."
        )


def _swapped() -> Iterator[str]:
    own = getattr(psutil.Process().memory_full_info(), "swap", 0)  # Linux alone tells it
    if own:
        yield (
            f"{own / 1e6:.1f} MB of this process are swapped out, and come back when they are "
            "touched. Remedy: free memory, then start again."
        )
    used, memory = psutil.swap_memory().used, psutil.virtual_memory()
    # Old pages that nobody asks for do no harm: only a machine short of memory pages.
    if used > 0 and memory.available < 0.1 * memory.total:
        yield (
            f"Memory is short and {used / 1e9:.1f} GB are swapped out: any page may have to be "
            "read from disk. Remedy: free memory."
        )


def _cpu_groups(root: Path) -> list[Path]:
    groups: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":  # cgroup v2: one hierarchy for all controllers
            groups += _with_parents(root / "sys/fs/cgroup", path)
        elif "cpu" in controllers.split(","):
            groups += _with_parents(root / "sys/fs/cgroup/cpu", path)
    return groups


def _with_parents(mount: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:count]) for count in range(len(parts) + 1)]


def _group_quota(group: Path) -> float | None:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if not quota:
        quota = _read(group / "cpu.cfs_quota_us")
        period = _read(group / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or period == "0":
        return None  # "max", "-1" or no such file: no limit
    return int(quota) / int(period)


def _throttled(group: Path) -> int:
    for line in _read(group / "cpu.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == "nr_throttled":
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
