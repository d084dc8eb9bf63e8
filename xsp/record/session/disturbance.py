"""Writes sentences about whatever makes latencies vary on this machine.

`xsp doctor` prints the sentences, each with its remedy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from xsp.record.session.environment import (
    cpu_groups,
    cpu_quota,
    read_text,
    thread_count,
    usable_cores,
)

_ROOT = Path("/")


def disturbances(interval_s: float = 0.2) -> tuple[str, ...]:
    """Return sentences that say what makes latencies on this machine vary, each with a remedy.

    Args:
        interval_s: Seconds over which the load of the machine is measured.
    """
    return (
        *_frequency(),
        *_limits(),
        *_too_many_threads(thread_count() or _default_threads(), usable_cores()),
        *_observers(),
        *_load(interval_s),
        *_swapped(),
    )


def _default_threads() -> int:
    """Return how many threads OpenMP starts unasked: OpenMP sees the affinity, but no quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, psutil.cpu_count(logical=False) or usable or 1)


def _frequency(root: Path = _ROOT) -> Iterator[str]:
    cpu = root / "sys/devices/system/cpu"
    governors = {read_text(path) for path in sorted(cpu.glob("cpu[0-9]*/cpufreq/scaling_governor"))}
    slow = sorted(governors - {"performance", ""})
    if slow:
        yield (
            f"The cores' frequency is scaled (governor {', '.join(slow)}): latencies depend on "
            "what ran before. Remedy: sudo cpupower frequency-set --governor performance."
        )
    if read_text(cpu / "intel_pstate/no_turbo") == "0":
        yield (
            "Turbo is on: the frequency falls when cores get warm or busy. "
            "Remedy: echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo."
        )
    if read_text(cpu / "cpufreq/boost") == "1":
        yield (
            "Frequency boost is on: the frequency falls when cores get warm or busy. "
            "Remedy: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost."
        )


def _limits(root: Path = _ROOT) -> Iterator[str]:
    quota = cpu_quota(root)
    if quota is None:
        return
    throttled = max((_throttled(group) for group in cpu_groups(root)), default=0)
    yield (
        f"The control group may use {quota:g} cores' time and has been stopped for using more "
        f"{throttled} times, for up to 0.1 s each. Remedy: give the container "
        "whole cores (docker: --cpuset-cpus instead of --cpus; Kubernetes: the static CPU policy)."
    )


def _too_many_threads(threads: int | None, cores: float) -> Iterator[str]:
    if threads is not None and threads > cores:
        yield (
            f"Operators use {threads} threads and the process may use {cores:g} cores: threads "
            f"wait for each other. Remedy: xsp profile --threads {max(1, int(cores))}, "
            f"OMP_NUM_THREADS={max(1, int(cores))}, or torch.set_num_threads."
        )


def observers(root: Path = _ROOT) -> tuple[str, ...]:
    """Return the observers of this thread's Python code or of this process, by means and name.

    A debugger, coverage or a profiler slows what it watches. What watches other threads alone
    is not seen.

    Args:
        root: Folder that holds `proc`.
    """
    status = read_text(root / "proc/self/status")
    tracer = status.partition("TracerPid:")[2].partition("\n")[0].strip() or "0"
    traced = () if tracer == "0" else (f"ptrace: process {tracer}",)
    return (*(f"{means}: {name}" for means, name in _python_hooks()), *traced)


def _observers(root: Path = _ROOT) -> Iterator[str]:
    found = observers(root)
    if found:
        yield (
            f"This process is being watched ({', '.join(found)}): a debugger, coverage or a "
            "profiler slows every call that it watches. Remedy: run without it, or detach it."
        )


def _python_hooks() -> Iterator[tuple[str, str]]:
    for means, hook in (("sys.settrace", sys.gettrace()), ("sys.setprofile", sys.getprofile())):
        if hook is not None:
            module = getattr(hook, "__module__", None) or type(hook).__module__
            yield means, str(module).partition(".")[0]
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12 and later
    if monitoring is not None:
        for name in filter(None, map(monitoring.get_tool, range(6))):
            yield "sys.monitoring", str(name)


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
    yield from _neighbors(others, cores, steal / total)


def _neighbors(busy_cores: float, cores: int, steal: float) -> Iterator[str]:
    # A tick of 10 ms in the short interval is a twentieth of a core: not a neighbor yet.
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
    own = getattr(psutil.Process().memory_full_info(), "swap", 0)  # told on Linux alone
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


def _throttled(group: Path) -> int:
    for line in read_text(group / "cpu.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == "nr_throttled":
            return int(value)
    return 0
