"""Reads the energy counters of CPU packages (RAPL): of powercap, or of the perf event `power`.

Both are the kernel's. Since 2020 (CVE-2020-8694) root alone reads powercap.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

from xsp_levels.monitor.row import Reading, Readings

POWERCAP = Path("/sys/class/powercap")
PERF = Path("/sys/bus/event_source/devices/power")
_CALL = {"x86_64": 298, "aarch64": 241}  # perf_event_open, by architecture
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0


def unavailable() -> str | None:
    """Find the reason why no energy of CPUs can be read; None if it can."""
    zones = _zones()
    if any(os.access(zone / "energy_uj", os.R_OK) for zone in zones):
        return None
    counters = _perf_counters()
    for counter, _ in counters:
        os.close(counter)
    if counters:
        return None
    if zones or (PERF / "events" / "energy-pkg").exists():
        return "root alone may read it. Run as root, or chmod a+r /sys/class/powercap/*/energy_uj."
    return "this machine (virtual, or not x86) has no counters of it. Measure on bare metal."


class Rapl:
    """Reads the sum of all CPU packages, in joules since the first reading."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._zones = [zone for zone in _zones() if os.access(zone / "energy_uj", os.R_OK)]
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in self._zones]
        self._last: list[int] = []
        self._joules = 0.0
        self._counters = [] if self._zones else _perf_counters()

    def fast(self) -> Readings:
        """Read the energy so far; a counter that went back has wrapped."""
        if self._zones:
            now = [_number(zone / "energy_uj") for zone in self._zones]
            for before, after, most in zip(self._last or now, now, self._ranges, strict=True):
                self._joules += (after - before + (most if after < before else 0)) / 1e6
            self._last = now
            yield Reading("processor_energy_j", self._joules)
        elif self._counters:
            counted = [
                struct.unpack("=q", os.read(counter, 8))[0] * scale
                for counter, scale in self._counters
            ]
            yield Reading("processor_energy_j", sum(counted))


def _zones() -> list[Path]:
    """List the zones of packages: neither those inside, nor `psys`, which holds the packages."""
    zones = (zone for zone in POWERCAP.glob("*-rapl:*") if zone.name.count(":") == 1)
    return sorted(zone for zone in zones if (zone / "name").read_text().startswith("package"))


def _number(path: Path) -> int:
    return int(path.read_text())


def _perf_counters() -> list[tuple[int, float]]:
    """Open the event of each package; none where the kernel refuses or lacks it."""
    number = _CALL.get(platform.machine())
    opened: list[tuple[int, float]] = []
    with suppress(OSError, ValueError):
        event = int((PERF / "events/energy-pkg").read_text().strip().rpartition("=")[2], 16)
        scale = float((PERF / "events/energy-pkg.scale").read_text())
        attribute = struct.pack("=IIQ", _number(PERF / "type"), _ATTRIBUTE_BYTES, event)
        buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
        call = ctypes.CDLL(None, use_errno=True).syscall
        for cpu in (PERF / "cpumask").read_text().strip().split(","):
            counter = call(number, buffer, -1, int(cpu.partition("-")[0]), -1, 8)  # close on exec
            if counter >= 0:
                opened.append((counter, scale))
    return opened
