"""Finds the energy of parts that take turns, by how an energy counter grew while each ran."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.provider import Readings
from xsp.reading.monitor.energy import SURE, Energy, Floats, moves
from xsp.reading.monitor.readings import Monitoring
from xsp.trace import attribute_column, parent_rows

Stretches = tuple[Floats, Floats]  # begins and ends, in ns from the begin of the readings

_MOST_PARTS = 16
_FEWEST_STEPS = 10  # where layers lie in a step is known by other steps, on average
_WIDE = 0.2  # of the energy: an interval wider than that to either side says too little
_SHORT = 4  # updates of the counter that each stretch must last: it tells too late of shorter ones


def regressed(readings: Readings, parts: Sequence[Stretches]) -> list[Energy | None]:
    """Return the energy of each part over all of its stretches; None where it is not known.

    The growth of the counter between two moves is the sum of each part's power, which is the same
    in all stretches of a part, times the time that it ran: least squares.

    Args:
        readings: Readings of one device or of several, whose energies are added.
        parts: Stretches of each part, which do not overlap; what is in none is a part of its own.
    """
    if not parts:
        return []
    unknown: list[Energy | None] = [None] * len(parts)
    total = unknown
    for _, rows in readings.filter(pl.col("metric") == "energy_j").group_by("device"):
        times, joules = moves(rows)
        if len(times) < 3 * (len(parts) + 1):
            return unknown
        update_ns = float(np.median(np.diff(times)))
        if any(np.mean(end - begin) < _SHORT * update_ns for begin, end in parts):
            return unknown
        ran = np.diff([_ran_before(times, *part) for part in parts], axis=1).T / 1e9
        rest = np.diff(times) / 1e9 - ran.sum(axis=1)
        table = np.column_stack([ran, rest])[:, [*[True] * len(parts), rest.sum() > 1e-3]]
        watts, _, rank, _ = np.linalg.lstsq(table, np.diff(joules), rcond=None)
        if rank < table.shape[1]:
            return unknown
        left = np.diff(joules) - table @ watts
        variance = float(left @ left) / max(len(left) - rank, 1)
        error = np.sqrt(variance * np.diag(np.linalg.inv(table.T @ table)))
        found = []
        for w, e, (begin, end) in zip(watts, error, parts, strict=False):
            # At both ends of each stretch the counter may be off by an update.
            ends_j = float(w) * update_ns / 1e9 * math.sqrt(2 * len(begin))
            lasts_s = float((end - begin).sum()) / 1e9
            half_j = math.hypot(SURE * float(e) * lasts_s, ends_j)
            found.append(Energy(float(w) * lasts_s, half_j, "counter"))
        total = [_sum(one, other) for one, other in zip(total, found, strict=True)]
    return [each if each and each.half_j <= _WIDE * each.joules else None for each in total]


def _ran_before(times: Floats, begins: Floats, ends: Floats) -> Floats:
    """Return for how long a part had run at each of some moments."""
    order = np.argsort(begins)
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    edges = np.column_stack([begins, ends]).ravel()
    ran = np.column_stack([np.zeros(len(begins)), ends - begins]).ravel().cumsum()
    result: Floats = np.interp(times, edges, ran)
    return result


def _sum(one: Energy | None, other: Energy) -> Energy:
    if one is None:
        return other
    half = float(np.hypot(one.half_j, other.half_j))
    return Energy(one.joules + other.joules, half, "counter")


def layer_energies(spans: pl.DataFrame, monitoring: Monitoring) -> dict[int, Energy]:
    """Return the energy of one call of the longest layers of steps that last long, by their rows.

    Where the device works for a layer is known by the trace's kernels, in proportion to the step's
    length. The host may be ahead of the device, so without kernels no layer has an energy.

    Args:
        spans: Spans of the trace of one step, root first.
        monitoring: Readings beside some steps.
    """
    begins = np.array(monitoring.begins_ns, np.float64)
    around = spans.filter(pl.col("kind") == Kind.LAYER.value)["parent_id"].implode()
    first, last = _device_extents(spans)
    layers = (
        spans.with_row_index("row")
        .with_columns(first=first, last=last)
        .filter(
            pl.col("kind") == Kind.LAYER.value,
            pl.col("last") > pl.col("first"),
            ~pl.col("span_id").is_in(around),
            attribute_column(spans, "calls", pl.Int64).fill_null(1) == 1,
        )
    )
    whole = float(spans["end_ns"][0] or 0)
    if len(begins) < _FEWEST_STEPS or not whole or not layers.height:
        return {}
    lasts = np.diff(begins, append=monitoring.lasts_ns)
    longest = layers.sort(pl.col("last") - pl.col("first"), descending=True)[:_MOST_PARTS]
    parts = [
        (begins + lasts * start / whole, begins + lasts * end / whole)
        for start, end in longest.select("first", "last").iter_rows()
    ]
    of_devices = monitoring.readings.filter(pl.col("device") >= 0)
    while parts:
        found = regressed(of_devices, parts)
        if any(found) or len(parts) == 1:
            break
        parts = parts[: len(parts) // 2]  # fewer, longer ones
    return {
        row: Energy(each.joules / len(begins), each.half_j / len(begins), each.source)
        for row, each in zip(longest["row"], found, strict=False)
        if each is not None
    }


def _device_extents(spans: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Find the begin of the first and the end of the last kernel below each span.

    Of a span without kernels the begin is infinite, and the end minus infinite.
    """
    parents = parent_rows(spans)
    first, last = np.full(spans.height, np.inf), np.full(spans.height, -np.inf)
    on_device = spans["kind"].is_in([kind.value for kind in DEVICE_ACTIVITIES])
    rows = np.flatnonzero(on_device.to_numpy())
    start, end = (spans[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
    above = parents[rows]
    while (inside := above >= 0).any():
        np.minimum.at(first, above[inside], start[inside])
        np.maximum.at(last, above[inside], end[inside])
        above = np.where(inside, parents[above], -1)
    return pl.Series(first), pl.Series(last)
