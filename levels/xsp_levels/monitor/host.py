"""Reads the kernel's counters of the machine, and of the program's processes, from `/proc`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from xsp_levels.monitor.row import Reading, Readings

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TREE_S = 1.0  # between looks for new child processes, which cost a listing of each thread
_STATES = {"user_s": (0, 1), "system_s": (2, 5, 6), "idle_s": (3,), "io_wait_s": (4,),
           "steal_s": (7,)}  # fmt: skip  # fields of /proc/stat, proc(5)


def unavailable() -> str | None:
    """Return why the host cannot be read; None if it can."""
    return None if os.access("/proc/self/stat", os.R_OK) else "/proc is not mounted. Mount it."


class Host:
    """Reads counters of the host, and of a process with its descendants.

    Args:
        process: Number of the process that runs the program.
    """

    def __init__(self, process: int) -> None:
        self.notes: list[str] = []
        self._process = process
        self._tree: list[int] = [process]
        self._looked_s = 0.0
        self._files: dict[str, int] = {}

    def fast(self) -> Readings:
        """Read nothing: no counter of the host is worth that."""
        return iter(())

    def slow(self) -> Readings:
        """Read counters of the machine, then those of the program."""
        yield from self._machine()
        yield from self._program()

    def _text(self, path: str) -> str:
        """Read a file that is kept open; empty where the kernel does not have it."""
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._files[path] = -1
        try:
            return os.pread(self._files[path], 16384, 0).decode() if self._files[path] >= 0 else ""
        except OSError:  # pressure may be switched off
            return ""

    def _machine(self) -> Readings:
        if fields := self._text("/proc/stat").partition("\n")[0].split()[1:]:
            for name, places in _STATES.items():
                yield Reading(name, sum(int(fields[place]) for place in places) / _TICKS)
        for what in ("cpu", "memory", "io"):
            some = self._text(f"/proc/pressure/{what}").partition("\n")[0]
            if "total=" in some:
                yield Reading(f"{what}_pressure_s", int(some.rpartition("=")[2]) / 1e6)
        memory = dict(_pairs(self._text("/proc/meminfo")))
        if "MemAvailable:" in memory:
            yield Reading("available_bytes", memory["MemAvailable:"] * 1024.0)
        if "SwapTotal:" in memory:
            used = memory["SwapTotal:"] - memory.get("SwapFree:", 0)
            yield Reading("swap_used_bytes", used * 1024.0)
        paged = dict(_pairs(self._text("/proc/vmstat")))
        for metric, name in (("disk_read_bytes", "pgpgin"), ("disk_written_bytes", "pgpgout")):
            if name in paged:
                yield Reading(metric, paged[name] * 1024.0)
        lines = [line.partition(":") for line in self._text("/proc/net/dev").splitlines()[2:]]
        cards = [rest.split() for name, _, rest in lines if name.strip() != "lo"]
        if cards:
            yield Reading("net_received_bytes", float(sum(int(card[0]) for card in cards)))
            yield Reading("net_sent_bytes", float(sum(int(card[8]) for card in cards)))

    def _program(self) -> Readings:
        now_s = time.monotonic()
        if now_s - self._looked_s > _TREE_S:
            self._looked_s, self._tree = now_s, list(_descendants(self._process))
        cpu_s, rss, threads, moved = 0.0, 0, 0, [0, 0]
        io_known = False
        for process in self._tree:
            with suppress(OSError, ValueError):  # it has ended
                stat = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
                # Own time, and that of children that ended.
                cpu_s += sum(map(int, stat[11:15])) / _TICKS
                threads += int(stat[17])
                rss += int(stat[21]) * _PAGE
                io = dict(_pairs(_read(f"/proc/{process}/io")))
                moved = [moved[0] + io["read_bytes:"], moved[1] + io["write_bytes:"]]
                io_known = True
        if threads:
            yield Reading("process_s", cpu_s)
            yield Reading("process_rss_bytes", float(rss))
            yield Reading("process_threads", float(threads))
        if io_known:
            yield Reading("process_read_bytes", float(moved[0]))
            yield Reading("process_written_bytes", float(moved[1]))


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read(16384).decode(errors="replace")


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[1].isdecimal():
            yield parts[0], int(parts[1])


def _descendants(process: int) -> Iterator[int]:
    """Yield a process and its descendants, without the one that asks."""
    yield process
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                for child in _read(f"/proc/{process}/task/{thread}/children").split():
                    if int(child) != os.getpid():
                        yield from _descendants(int(child))
