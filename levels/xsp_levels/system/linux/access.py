"""Finds out what the kernel lets this process watch of its own threads.

Each thing is tried once in a process. Opening an event proves little: if code of the kernel may not
be watched, events of system calls open all the same, and count nothing. So they have to count.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xsp_levels.native import event_ring
from xsp_levels.native.perf_event import explain

# What `sudo xsp doctor` leaves until the next boot, as only root may read tracefs.
KEPT_NUMBERS = Path("/run/xsp/tracepoints")
_TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_SCHEDSTAT = Path("/proc/self/schedstat")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO: numbers of threads are the kernel's own
_ENTER, _EXIT, _WAKING = "raw_syscalls/sys_enter", "raw_syscalls/sys_exit", "sched/sched_waking"
_TRIED = 7  # calls that an event of system calls must count

_PRIVILEGE = "allow them: sudo sysctl kernel.perf_event_paranoid=1 (or give Python CAP_PERFMON)"
_BOTH = f"{_PRIVILEGE}, and run once: sudo xsp doctor"
_WAKING_PRIVILEGE = "give Python CAP_PERFMON"
_UNMOUNTED = "mount tracefs: sudo mount -t tracefs nodev /sys/kernel/tracing"
_UNREADABLE = (
    "run once since the machine started: sudo xsp doctor (or: sudo mount -o remount,mode=755 "
    "/sys/kernel/tracing)"
)
_NO_COUNTERS = "this machine shows none, as most virtual ones"
_CONTAINED = "run it outside of the container, where the kernel's numbers of threads are known"


@dataclass(frozen=True, slots=True)
class Access:
    """What may be watched here.

    Attributes:
        refusal: Why switches and page faults cannot be watched; None: they can.
        kernel: Whether what happens within the kernel can be, page faults in system calls too.
        lost_counted: Whether the kernel counts lost records (Linux 6.0).
        calls: Numbers of the tracepoints of a system call's begin and end; None: not to be watched.
        no_calls: The remedy if system calls cannot be watched, else empty.
        waking: Number of the tracepoint of wake-ups; None: wakers cannot be watched.
        no_waking: The remedy if wakers cannot be watched, else empty.
        counters: Whether the processor's counters can be sampled.
    """

    refusal: str | None = None
    kernel: bool = False
    lost_counted: bool = False
    calls: tuple[int, int] | None = None
    no_calls: str = ""
    waking: int | None = None
    no_waking: str = ""
    counters: bool = False

    def lines(self) -> tuple[str, ...]:
        """Return a line for each thing that may be watched: what it is, whether, and the remedy."""
        if self.refusal is not None:
            counters = "yes, but only how much in each visit, not when"
            return (
                f"waits: {counters}",
                f"page faults: {counters}",
                f"system calls: no; {self.refusal}",
            )
        return (
            "waits: yes",
            "page faults: yes"
            if self.kernel
            else f"page faults: yes, outside of system calls; for those inside, {_PRIVILEGE}",
            "system calls: yes" if self.calls else f"system calls: no; {self.no_calls}",
            "who wakes threads: yes" if self.waking else f"who wakes threads: no; {self.no_waking}",
            "CPU counters: yes" if self.counters else f"CPU counters: no; {_NO_COUNTERS}",
        )


@cache
def access() -> Access:
    """Try once which events the kernel lets this process open, and return them with refusals."""
    refusal: OSError | None = None
    for kernel in (True, False):
        try:
            _try(event_ring.SOFTWARE, event_ring.DUMMY, 0, kernel=kernel)
        except OSError as error:
            refusal = error
            continue
        lost_counted = _takes(event_ring.LOST, kernel=kernel)
        numbers = tracepoints()
        calls, no_calls = (
            _calls(numbers) if kernel else (None, _BOTH if not numbers else _PRIVILEGE)
        )
        waking, no_waking = _waking(numbers) if kernel else (None, _WAKING_PRIVILEGE)
        counters = _has_counters(kernel=kernel)
        return Access(None, kernel, lost_counted, calls, no_calls, waking, no_waking, counters)
    assert refusal is not None
    return Access(explain(refusal))


def tracepoints() -> dict[str, int]:
    """Return the kernel's numbers of tracepoints, by name; none where they cannot be known."""
    for tracefs in _TRACEFS:
        with suppress(OSError, ValueError):
            return {
                name: int((tracefs / "events" / name / "id").read_text())
                for name in (_ENTER, _EXIT, _WAKING)
            }
    with suppress(OSError, ValueError):
        boot, *lines = KEPT_NUMBERS.read_text().splitlines()
        # Whoever else can write there could make this process watch something else.
        if KEPT_NUMBERS.stat().st_uid == 0 and boot == _BOOT.read_text().strip():
            return {name: int(number) for name, number in (line.split() for line in lines)}
    return {}


def keep_tracepoints() -> None:
    """Leave the numbers of tracepoints for other users, until the next boot, if this is root."""
    numbers = tracepoints()
    if os.geteuid() != 0 or not numbers:
        return
    lines = (f"{name} {number}" for name, number in numbers.items())
    with suppress(OSError):
        KEPT_NUMBERS.parent.mkdir(mode=0o755, exist_ok=True)
        written = KEPT_NUMBERS.with_name(f"{KEPT_NUMBERS.name}.{os.getpid()}")
        written.write_text("\n".join((_BOOT.read_text().strip(), *lines)) + "\n")
        written.replace(KEPT_NUMBERS)


def _calls(numbers: dict[str, int]) -> tuple[tuple[int, int] | None, str]:
    if not numbers:
        return None, _UNMOUNTED if os.geteuid() == 0 else _UNREADABLE
    try:
        counted = _try(event_ring.TRACEPOINT, numbers[_ENTER], 0, kernel=True)
    except OSError:
        return None, _PRIVILEGE
    return ((numbers[_ENTER], numbers[_EXIT]), "") if counted >= _TRIED else (None, _PRIVILEGE)


def _waking(numbers: dict[str, int]) -> tuple[int | None, str]:
    if not numbers:
        return None, _UNMOUNTED if os.geteuid() == 0 else _UNREADABLE
    if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
        return None, _CONTAINED
    struct_ = event_ring.attributes(
        event_ring.TRACEPOINT, numbers[_WAKING], event_ring.TIME | event_ring.RAW, 1
    )
    try:
        os.close(event_ring.open_event(struct_, -1, cpu=min(os.sched_getaffinity(0))))
    except OSError:
        return None, _WAKING_PRIVILEGE
    return numbers[_WAKING], ""


def _has_counters(*, kernel: bool) -> bool:
    with suppress(OSError):
        return _try(event_ring.HARDWARE, event_ring.INSTRUCTIONS, 0, kernel=kernel) > 0
    return False


def _takes(read_format: int, *, kernel: bool) -> bool:
    try:
        _try(event_ring.SOFTWARE, event_ring.DUMMY, read_format, kernel=kernel)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _try(kind: int, config: int, read_format: int, *, kernel: bool) -> int:
    """Return how often an event of this thread counted while it made `_TRIED` system calls.

    Raises:
        OSError: The kernel refuses.
    """
    flags = 0 if kernel else event_ring.EXCLUDE_KERNEL
    made = event_ring.attributes(kind, config, 0, flags, read_format=read_format)
    descriptor = event_ring.open_event(made, threading.get_native_id())
    try:
        for _ in range(_TRIED):
            os.getppid()
        (count,) = struct.unpack_from("=Q", os.read(descriptor, 64))
    finally:
        os.close(descriptor)
    return int(count)


def unwatchable() -> str | None:
    """Return why this system cannot be watched at all, None if it can."""
    if platform.system() != "Linux":
        return f"this level watches Linux's threads, and this is {platform.system()}"
    if not _SCHEDSTAT.exists() and access().refusal is not None:
        return (
            "this system tells neither by perf_event_open nor by /proc/self/schedstat when its "
            "threads run (gVisor, say); run it on a Linux kernel"
        )
    return None
