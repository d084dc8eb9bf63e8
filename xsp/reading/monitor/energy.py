"""Finds the energy of a stretch of time, with its 95 % interval, from counters or from power.

A counter moves every 10 to 100 ms. Over steps that are alike, energy is the slope of a straight
line (least squares) through the moments at which it moved; errors that follow each other are
allowed for (Newey and West, 1987). Of any program it is the difference between both ends. At either
end the counter may be off by one update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.provider import Readings

Floats = NDArray[np.float64]

_FEWEST = 3  # updates of a counter, or values of power
SURE = 1.96  # standard errors to either side of a 95 % interval
_NEAR = 5  # updates that tell of power before the first of them, or after the last
_COVERED = 0.5  # of the time that must lie between readings


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of one device, or of several.

    Attributes:
        joules: The energy.
        half_j: Half of its 95 % interval.
        source: `counter`, or `power` that was summed up over time.
    """

    joules: float
    half_j: float
    source: str

    @property
    def ends(self) -> tuple[float, float]:
        """The 95 % interval, in joules."""
        return max(self.joules - self.half_j, 0.0), self.joules + self.half_j


def energy_of(readings: Readings, begin_ns: int, end_ns: int, *, steady: bool) -> list[Energy]:
    """Return the energy between two moments by the counter, and by power, as far as known.

    Args:
        readings: Readings of one device (of the host: of its processors).
        begin_ns: When it begins.
        end_ns: When it ends.
        steady: Whether the program does the same all the time.
    """
    found = []
    for metrics, source in (
        (("energy_j", "processor_energy_j"), "counter"),
        (("power_w",), "power"),
    ):
        rows = readings.filter(pl.col("metric").is_in(metrics)).sort("time_ns")
        times = (rows["time_ns"].to_numpy() - begin_ns) / 1e9
        values = rows["value"].to_numpy().astype(np.float64)
        lasts_s = (end_ns - begin_ns) / 1e9
        by = _by_counter if source == "counter" else _by_power
        energy = by(times, values, lasts_s, steady)
        if energy is not None:
            found.append(Energy(*energy, source))
    return found


def _by_counter(
    times: Floats, values: Floats, lasts_s: float, steady: bool
) -> tuple[float, float] | None:
    times, values = _moved(*_unbroken(times, values))
    if steady:
        inside = (times >= 0) & (times <= lasts_s)
        times, values = times[inside], values[inside]
    if len(times) < _FEWEST or not times[-1] > times[0]:
        return None
    update_s = float(np.median(np.diff(times)))
    if steady:
        x = times - times.mean()
        watts = float(x @ values / (x @ x))
        error = _error(x * (values - values.mean() - watts * x)) / float(x @ x)
        joules, within = watts * lasts_s, SURE * error * lasts_s
        missing_s = max(lasts_s - (times[-1] - times[0]) - 2 * update_s, 0.0)
    else:
        first, last = max(0.0, float(times[0])), min(lasts_s, float(times[-1]))
        covered_s = last - first
        if covered_s < _COVERED * lasts_s:
            return None
        joules = float(np.diff(np.interp([first, last], times, values))[0])
        # Before the helper's first reading power was what it was soon after; at the end likewise.
        joules += first * _slope(times[:_NEAR], values[:_NEAR])
        joules += (lasts_s - last) * _slope(times[-_NEAR:], values[-_NEAR:])
        within, missing_s = 0.0, lasts_s - covered_s
    watts = joules / lasts_s
    if missing_s > (1 - _COVERED) * lasts_s:
        return None
    return joules, math.hypot(within, watts * update_s, watts * update_s) + watts * missing_s


def _by_power(
    times: Floats, values: Floats, lasts_s: float, steady: bool
) -> tuple[float, float] | None:
    inside = (times >= 0) & (times <= lasts_s)
    times, values = times[inside], values[inside]
    if len(times) < _FEWEST or times[-1] - times[0] < _COVERED * lasts_s:
        return None
    between_s = np.diff(times, prepend=0.0, append=lasts_s)
    weight = (between_s[:-1] + between_s[1:]) / 2
    weight[0], weight[-1] = weight[0] + between_s[0] / 2, weight[-1] + between_s[-1] / 2
    joules = float(weight @ values)
    error = _error(values - joules / lasts_s) / len(values) if steady else 0.0
    moved, _ = _moved(times, values)
    if len(moved) < _FEWEST:  # it is steady, and when it was updated cannot be seen
        moved = times
    update_j = float(np.median(np.diff(moved))) * joules / lasts_s
    return joules, math.hypot(SURE * error * lasts_s, update_j, update_j)


def moves(readings: Readings) -> tuple[Floats, Floats]:
    """List the times, in ns, at which the counter of one device moved, and its joules."""
    rows = readings.sort("time_ns")
    times = rows["time_ns"].to_numpy().astype(np.float64)
    return _moved(*_unbroken(times, rows["value"].to_numpy()))


def _unbroken(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the longest stretch in which a counter never goes back, as after a new driver."""
    breaks = np.flatnonzero(np.diff(values) < 0) + 1
    parts = zip(np.split(times, breaks), np.split(values, breaks), strict=True)
    return max(parts, key=lambda part: len(part[0]))


def _slope(times: Floats, values: Floats) -> float:
    return float((values[-1] - values[0]) / (times[-1] - times[0]))


def _moved(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the moments at which a counter was seen to have moved."""
    moved = np.flatnonzero(np.diff(values)) + 1
    return times[moved], values[moved]


def _error(parts: Floats) -> float:
    """Return the standard error of a sum whose parts may depend on those before them.

    Newey and West's: products of parts up to some lag count, with weights that fall to 0. The lag
    grows with the number of parts: 4 (n / 100) ^ (2 / 9).
    """
    number = len(parts)
    lag = int(4 * (number / 100) ** (2 / 9))
    variance = float(parts @ parts)
    for behind in range(1, min(lag, number - 1) + 1):
        weight = 1 - behind / (lag + 1)
        variance += 2 * weight * float(parts[behind:] @ parts[:-behind])
    return math.sqrt(max(variance, 0.0) * number / max(number - 2, 1))
