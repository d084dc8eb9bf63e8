"""Makes attributes of a span from the readings beside it, and warns where they contradict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from xsp.provider import Readings
from xsp.reading.monitor.energy import Energy, energy_of
from xsp.reading.monitor.readings import Monitoring
from xsp.text import duration
from xsp.warning import TraceWarning

HOST = -1
_APART = 0.05  # of the energy: by as much counter and power may differ
SETTLE_NS = 1_000_000_000  # NVML's utilization is a mean over up to as long
_IDLE_NS = 1_000_000_000  # least time before the first step that tells of idle power
_AROUND_NS = 150_000_000  # before and after the steps: the first sample, and the last
MEANS = (
    "gpu_busy_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct",
    "sm_clock_mhz",
)  # fmt: skip
# Bits of NVML's reasons for low clocks (nvmlClocksEventReasons); being idle is none here.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
_DISAGREE = (
    "the energy counter says {:.4g} J for a step, and power over time {:.4g} J ({:+.0f} %). Trust "
    "neither to better than that; compare with a power meter."
)
_UNREAD = (
    "the program ended after {}, before the monitor could read enough, so energy and utilization "
    "are missing. Profile a second or more."
)
_PARTLY = (
    "readings of some of the {} devices cover too little, so the energy of all is missing. Measure "
    "again for longer; other warnings may say why."
)
_UNCOVERED = (
    "readings of devices cover only {} of {}, so their energy is missing. Measure again for "
    "longer; other warnings may say why."
)


def attributes_of(
    monitoring: Monitoring, *, asked: bool = False
) -> tuple[dict[str, Any], list[TraceWarning]]:
    """Return the attributes that the readings beside a program, or beside its steps, make.

    Args:
        monitoring: The readings; of several steps energy is that of one.
        asked: Whether the user asked for them, so that a short program without any is told.

    Returns:
        The attributes, without those that nothing tells; and warnings.
    """
    readings, lasts_ns = monitoring.readings, monitoring.lasts_ns
    steps, warnings = max(monitoring.steps, 1), list(monitoring.warnings)
    found: dict[str, Any] = {}
    of_devices = readings.filter(pl.col("device") > HOST)
    known = _energies(of_devices if of_devices.height else readings, monitoring, warnings)
    if known and len(known) < len(_devices(of_devices)):  # a sum without one would be too little
        warnings.append(TraceWarning("few-readings", _PARTLY.format(len(_devices(of_devices)))))
        known = []
    if known:
        joules = sum(each.joules for each in known)
        half = float(np.sqrt(sum(each.half_j**2 for each in known)))
        whole = Energy(joules, half, "counter" if _all_counted(known) else "power")
        low, high = whole.ends
        found |= {"energy_j": joules / steps, "energy_low_j": low / steps}
        found |= {"energy_high_j": high / steps, "energy_source": whole.source}
        found["energy_of"] = "devices" if of_devices.height else "processor"
        found["power_w"] = joules / (lasts_ns / 1e9)
    idle_ns = int(readings["time_ns"].min() or 0) if readings.height else 0  # type: ignore[arg-type]
    if idle_ns <= -_IDLE_NS:
        idle = [energy_of(each, idle_ns, 0, steady=True) for _, each in _devices(readings)]
        watts = [each[0].joules / (-idle_ns / 1e9) for each in idle if each]
        found |= {"idle_power_w": sum(watts)} if watts and all(idle) else {}
    found |= _utilization(of_devices, lasts_ns)
    found |= _host(readings.filter(pl.col("device") == HOST), lasts_ns, steps)
    if asked and not known and "cpu_pct" not in found:
        warnings.append(TraceWarning("few-readings", _UNREAD.format(duration(lasts_ns))))
    elif not known and lasts_ns >= SETTLE_NS:
        times = [each["time_ns"].clip(0, lasts_ns) for _, each in _devices(of_devices)]
        covered_ns = max((int(np.ptp(each.to_numpy())) for each in times), default=lasts_ns)
        if covered_ns < lasts_ns // 2:
            said = _UNCOVERED.format(duration(covered_ns), duration(lasts_ns))
            warnings.append(TraceWarning("few-readings", said))
    return found, warnings


def _devices(readings: Readings) -> list[tuple[Any, Readings]]:
    """Return the readings of each device; of the host alone those of its processors."""
    metrics = ("energy_j", "power_w", "processor_energy_j")
    energy = readings.filter(pl.col("metric").is_in(metrics))
    if (energy["device"] > HOST).any():
        energy = energy.filter(pl.col("device") > HOST)
    return list(energy.group_by("device", maintain_order=True))


def _energies(
    readings: Readings, monitoring: Monitoring, warnings: list[TraceWarning]
) -> list[Energy]:
    """Return the energy of each device; by its counter where that moves."""
    steady, known = monitoring.steps > 0, []
    for _, each in _devices(readings):
        by = energy_of(each, 0, monitoring.lasts_ns, steady=steady)
        known += by[:1]
        if len(by) > 1:
            counter, power = by
            apart = counter.joules - power.joules
            unsure = float(np.hypot(counter.half_j, power.half_j))
            if abs(apart) > max(_APART * power.joules, unsure):
                steps = max(monitoring.steps, 1)
                share = 100 * apart / power.joules
                said = _DISAGREE.format(counter.joules / steps, power.joules / steps, share)
                warnings.append(TraceWarning("energy-disagrees", said))
    return known


def _all_counted(known: list[Energy]) -> bool:
    return all(each.source == "counter" for each in known)


def _utilization(readings: Readings, lasts_ns: int) -> dict[str, Any]:
    """Return means over all devices of what was read within the steps."""
    late = pl.when(pl.col("metric") == "gpu_busy_pct").then(min(SETTLE_NS, lasts_ns // 2))
    begin = pl.coalesce("since_ns", "time_ns")
    inside = readings.filter(begin >= late.otherwise(0), pl.col("time_ns") <= lasts_ns)
    values = {
        metric: inside.filter(pl.col("metric") == metric)["value"]
        for metric in (*MEANS, "temperature_c", "throttle_reasons")
    }
    found: dict[str, Any] = {m: values[m].mean() for m in MEANS if len(values[m])}
    if len(values["temperature_c"]):
        found["temperature_c"] = values["temperature_c"].max()
    if len(bits := values["throttle_reasons"].cast(pl.Int64).to_numpy()):
        often = {name: int(np.count_nonzero(bits & bit)) for bit, name in _REASONS.items()}
        found["throttled_pct"] = 100 * float(np.mean((bits & sum(_REASONS)) != 0))
        reasons = sorted((name for name in often if often[name]), key=lambda name: -often[name])
        found |= {"throttle_reasons": reasons} if reasons else {}
    return found


def _host(readings: Readings, lasts_ns: int, steps: int) -> dict[str, Any]:
    """Sum up the use by the program's processes; counters from the first reading to the last."""
    inside = readings.filter(pl.col("time_ns").is_between(-_AROUND_NS, lasts_ns + _AROUND_NS))
    found: dict[str, Any] = {}
    rates = {}
    for metric in ("process_s", "process_read_bytes", "process_rss_bytes"):
        rows = inside.filter(pl.col("metric") == metric)
        if rows.height > 1:
            times, values = rows["time_ns"].to_numpy(), rows["value"].to_numpy()
            rates[metric] = max((values[-1] - values[0]) / (times[-1] - times[0]), 0.0)
            found |= {"rss_bytes": int(values.max())} if metric == "process_rss_bytes" else {}
    if "process_s" in rates:
        found["cpu_pct"] = 100e9 * float(rates["process_s"])
    if "process_read_bytes" in rates:
        found["read_bytes"] = float(rates["process_read_bytes"]) * lasts_ns / steps
    return found


def part_attributes(energy: Energy) -> dict[str, Any]:
    """Return the attributes of a part whose energy was found by regression."""
    low, high = energy.ends
    ends = {"energy_j": energy.joules, "energy_low_j": low, "energy_high_j": high}
    return {**ends, "energy_how": "regressed"}


def with_attributes(spans: pl.DataFrame, found: Mapping[int, Mapping[str, Any]]) -> pl.DataFrame:
    """Return spans with more attributes; a row without them keeps those that it has."""
    table = spans["attributes"].struct.unnest()
    for name in dict.fromkeys(name for attributes in found.values() for name in attributes):
        old = table[name].to_list() if name in table.columns else [None] * spans.height
        new = [found.get(row, {}).get(name, value) for row, value in enumerate(old)]
        table = table.with_columns(pl.Series(name, new, strict=False))
    return spans.with_columns(attributes=table.to_struct()) if found else spans
