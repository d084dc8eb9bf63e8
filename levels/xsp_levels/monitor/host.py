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
    """Find the reason why the host cannot be read; None if it can."""
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
        memory = self._text("/proc/meminfo")
        available, swap, free = (
            _number(memory, name) for name in ("MemAvailable:", "SwapTotal:", "SwapFree:")
        )
        if available is not None:
            yield Reading("available_bytes", available * 1024.0)
        if swap is not None and free is not None:
            yield Reading("swap_used_bytes", (swap - free) * 1024.0)
        paged = self._text("/proc/vmstat")
        for metric, name in (("disk_read_bytes", "pgpgin "), ("disk_written_bytes", "pgpgout ")):
            if (moved := _number(paged, name)) is not None:
                yield Reading(metric, moved * 1024.0)
        lines = [line.partition(":") for line in self._text("/proc/net/dev").splitlines()[2:]]
        # What a virtual interface forwards, a card has counted; a last line may be cut short.
        cards = [
            fields
            for name, _, rest in lines
            if len(fields := rest.split()) > 8 and os.path.exists(_CARD.format(name.strip()))
        ]
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
                io = _read(f"/proc/{process}/io")
                read, written = _number(io, "read_bytes:"), _number(io, "write_bytes:")
                if read is not None and written is not None:
                    moved = [moved[0] + read, moved[1] + written]
                    io_known = True
        if threads:
            yield Reading("process_s", cpu_s)
            yield Reading("process_rss_bytes", float(rss))
            yield Reading("process_threads", float(threads))
        if io_known:
            yield Reading("process_read_bytes", float(moved[0]))
            yield Reading("process_written_bytes", float(moved[1]))


_CARD = "/sys/class/net/{}/device"


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read(16384).decode(errors="replace")


def _number(text: str, name: str) -> int | None:
    """Return the number that follows a name at the begin of a line."""
    after = f"\n{text}".partition(f"\n{name}")[2]
    return int(after.split(None, 1)[0]) if after else None


def _descendants(process: int) -> Iterator[int]:
    """Yield a process and its descendants, without the one that asks."""
    yield process
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                for child in _read(f"/proc/{process}/task/{thread}/children").split():
                    if int(child) != os.getpid():
                        yield from _descendants(int(child))
