"""Draws analyses of devices, communication and limits as horizontal bars."""

from __future__ import annotations

import polars as pl
from bokeh.plotting import figure

from xsp.level import Kind
from xsp.show.plot.bar import Part
from xsp.show.plot.color import KINDS, SERIES
from xsp.show.plot.document import Picture
from xsp.show.plot.gallery.part import named_by_device
from xsp.show.plot.lying import MOST_NAMED, by_name, by_size, wide
from xsp.show.plot.theme import GRID

_BLUE = SERIES[0]
_ORANGE = SERIES[1]
_GREEN = SERIES[2]
_YELLOW = SERIES[4]
_SKY = SERIES[5]
_GREY = SERIES[6]
_NONE = GRID  # of time in which nothing happens


def _device_time(table: pl.DataFrame) -> figure:
    parts = (
        Part("computing", "computing", KINDS[Kind.KERNEL]),
        Part("exposed communication", "exposed communication", _GREEN),
        Part("exposed copies", "exposed copies", KINDS[Kind.MEMCPY]),
        Part("idle", "idle", _NONE),
    )
    bars = named_by_device(wide(table, ["rank", "device"], "part", "time_ns"))
    return by_name(bars, parts, name="name", unit="time_ns", shown=("name",))


def _device_idle(table: pl.DataFrame) -> figure:
    # A cause is named `stream`, and so is a column.
    caused = table.with_columns(pl.col("cause") + "_ns")
    bars = named_by_device(wide(caused, ["rank", "device", "stream"], "cause", "idle_ns"))
    causes = {"host": _BLUE, "launch": _YELLOW, "stream": _ORANGE, "queue": _SKY, "unknown": _GREY}
    parts = [
        Part(f"{cause}_ns", cause, color)
        for cause, color in causes.items()
        if f"{cause}_ns" in bars.columns
    ]
    return by_name(bars, parts, name="name", unit="idle_ns", shown=("name",))


def _launch_overhead(table: pl.DataFrame) -> figure:
    parts = (
        Part("call_ns", "launching, on the host", KINDS[Kind.LAUNCH]),
        Part("work_ns", "what was launched, on the device", KINDS[Kind.KERNEL]),
    )
    named = table.with_columns(name=pl.coalesce("work", "call"))
    longest = named.sort("call_ns", descending=True)[:MOST_NAMED]
    shown = ("call", "work", "launches", "call_ns", "work_ns", "short_pct", "ahead_mean")
    return by_name(longest, parts, name="name", unit="time_ns", shown=shown)


def _critical_path(table: pl.DataFrame) -> figure:
    kinds = table.filter(pl.col("name").is_null())
    known = {kind.value: color for kind, color in KINDS.items()} | {"communication": _GREEN}
    colors = [known.get(kind, _GREY) for kind in kinds["kind"]]
    shown = ("kind", "count", "time_ns", "share_pct", "gain_ns", "gain_pct")
    return by_size(kinds, "time_ns", name="kind", shown=shown, colors=colors)


def _communication(table: pl.DataFrame) -> figure:
    bars = named_by_device(table.with_columns(hidden_ns=pl.col("time_ns") - pl.col("exposed_ns")))
    bars = bars.with_columns(name=pl.col("collective") + ", " + pl.col("name"))
    parts = (
        Part("exposed_ns", "exposed", _ORANGE),
        Part("hidden_ns", "hidden behind computing", _SKY),
    )
    shown = ("collective", "name", "group", "count", "time_ns", "exposed_ns", "bus_bytes_per_s")
    return by_name(bars, parts, name="name", unit="time_ns", shown=shown)


def _rank_imbalance(table: pl.DataFrame) -> figure:
    shown = ("name", "made_wait_ns", "waiting_ns", "last", "collectives", "late_median_ns")
    return by_size(named_by_device(table), "made_wait_ns", name="name", shown=shown)


def _verdict(table: pl.DataFrame) -> figure:
    colors = [_ORANGE if limits else _BLUE for limits in table["verdict"]]
    shown = ("candidate", "share_pct", "time_ns", "evidence")
    return by_size(table, "share_pct", name="candidate", shown=shown, colors=colors)


device_time = Picture("device-time", _device_time)
device_idle = Picture("device-idle", _device_idle)
launch_overhead = Picture("launch-overhead", _launch_overhead)
critical_path = Picture("critical-path", _critical_path)
communication = Picture("communication", _communication)
rank_imbalance = Picture("rank-imbalance", _rank_imbalance)
verdict = Picture("verdict", _verdict)
