"""The gallery: the table of each analysis in, the picture of that table out.

Each picture bears the name of its analysis: `xsp.plot.layer_latency(trace)` is the picture of
`xsp.analyses.layer_latency(trace)`. `ALL` lists them, in the order of the analyses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from bokeh.layouts import column
from bokeh.models import Column
from bokeh.plotting import figure

from xsp import analyses
from xsp.level import Kind
from xsp.plot.bar import Part, by_position
from xsp.plot.colour import KINDS, SERIES, Colour
from xsp.plot.document import Picture
from xsp.plot.lying import by_name, by_size, wide
from xsp.trace import Trace

_BLUE, _ORANGE, _GREEN, _PINK, _YELLOW, _SKY, _GREY = SERIES
_NONE = Colour("#e6e9ee", "#2b3038")  # of time in which nothing happens


# Layers


def _layer_latency(table: pl.DataFrame, trace: Trace | None) -> figure:
    shown = ("layer", "type", "own_ns", "share_pct", "latency_ns", "path")
    return by_position(table, "own_ns", position="index", group="type", shown=shown)


layer_latency = Picture("layer-latency", _layer_latency)


# Structure


def _time_by_level(table: pl.DataFrame, trace: Trace | None) -> figure:
    known = {kind.value: colour for kind, colour in KINDS.items()}
    colours = [known.get(kind, KINDS[Kind.SYNC]) for kind in table["kind"]]
    shown = ("level", "kind", "calls", "own_ns", "share_pct", "latency_ns")
    return by_size(table, "own_ns", name="kind", shown=shown, colours=colours)


def _by_module(table: pl.DataFrame, trace: Trace | None) -> figure:
    named = table.with_columns(module=pl.col("module").replace("", "(the model itself)"))
    shown = ("module", "type", "part", "calls", "own_ns", "own_share_pct", "latency_ns")
    return by_size(named, "own_ns", name="module", shown=shown)


def _by_operator(table: pl.DataFrame, trace: Trace | None) -> figure:
    shown = ("operator", "shapes", "calls", "own_ns", "share_pct", "latency_ns", "kernel_ns")
    colours = [KINDS[Kind.OP]] * table.height
    return by_size(table, "own_ns", name="operator", shown=shown, colours=colours)


def _by_primitive(table: pl.DataFrame, trace: Trace | None) -> figure:
    implementation = pl.col("implementation").fill_null("")
    name = (pl.col("primitive") + " " + implementation).str.strip_chars().alias("name")
    shown = ("primitive", "implementation", "library", "calls", "own_ns", "share_pct")
    colours = [KINDS[Kind.CALL]] * table.height
    shown = (*shown, "flops_per_s", "bytes_per_s")
    return by_size(table.with_columns(name), "own_ns", name="name", shown=shown, colours=colours)


def _side_by_side(table: pl.DataFrame, trace: Trace | None) -> Column:
    typed = table.with_columns(type=_largest(table, "type", "trace_share_pct", "no layer"))
    drawn = []
    for value in ("own_ns", "share_pct"):
        bars = wide(typed, ["part"], "type", value)
        parts = _parts_of(bars, ["part"])
        drawn.append(by_name(bars, parts, name="part", unit=value, shown=("part",)))
    return column(drawn, sizing_mode="stretch_width")


def _attribution(table: pl.DataFrame, trace: Trace | None) -> figure:
    sums = table.filter(pl.col("name").is_null())
    said = sums.with_columns(share=pl.col("time") + " under " + pl.col("under"))
    shown = ("time", "under", "calls", "latency_ns", "share_pct")
    colours = [_GREY if under == "nothing" else _BLUE for under in sums["under"]]
    return by_size(said, "share_pct", name="share", shown=shown, colours=colours)


time_by_level = Picture("time-by-level", _time_by_level)
by_module = Picture("by-module", _by_module)
by_operator = Picture("by-operator", _by_operator)
by_primitive = Picture("by-primitive", _by_primitive)
side_by_side = Picture("side-by-side", _side_by_side)
attribution = Picture("attribution", _attribution)


# Devices


def _device_time(table: pl.DataFrame, trace: Trace | None) -> figure:
    parts = (
        Part("computing", "computing", KINDS[Kind.KERNEL]),
        Part("exposed communication", "exposed communication", _GREEN),
        Part("exposed copies", "exposed copies", KINDS[Kind.MEMCPY]),
        Part("idle", "idle", _NONE),
    )
    bars = _named_by_device(wide(table, ["rank", "device"], "part", "time_ns"))
    return by_name(bars, parts, name="name", unit="time_ns", shown=("name",))


def _device_idle(table: pl.DataFrame, trace: Trace | None) -> figure:
    bars = _named_by_device(wide(table, ["rank", "device", "stream"], "cause", "idle_ns"))
    causes = {"host": _BLUE, "launch": _YELLOW, "stream": _ORANGE, "queue": _SKY, "unknown": _GREY}
    parts = [
        Part(cause, cause, colour) for cause, colour in causes.items() if cause in bars.columns
    ]
    return by_name(bars, parts, name="name", unit="idle_ns", shown=("name",))


def _communication(table: pl.DataFrame, trace: Trace | None) -> figure:
    bars = _named_by_device(table.with_columns(hidden_ns=pl.col("time_ns") - pl.col("exposed_ns")))
    bars = bars.with_columns(name=pl.col("collective") + ", " + pl.col("name"))
    parts = (
        Part("exposed_ns", "exposed", _ORANGE),
        Part("hidden_ns", "hidden behind computing", _SKY),
    )
    shown = ("collective", "name", "group", "count", "time_ns", "exposed_ns", "bus_bytes_per_s")
    return by_name(bars, parts, name="name", unit="time_ns", shown=shown)


def _rank_imbalance(table: pl.DataFrame, trace: Trace | None) -> figure:
    shown = ("name", "made_wait_ns", "waiting_ns", "last", "collectives", "late_median_ns")
    return by_size(_named_by_device(table), "made_wait_ns", name="name", shown=shown)


device_time = Picture("device-time", _device_time)
device_idle = Picture("device-idle", _device_idle)
communication = Picture("communication", _communication)
rank_imbalance = Picture("rank-imbalance", _rank_imbalance)


# Names and parts of bars


def _named_by_device(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the name of each row's rank, device and stream, as far as they differ."""
    words = [
        pl.format(said + " {}", column)
        for column, said in {"rank": "rank", "device": "device", "stream": "stream"}.items()
        if column in table.columns
    ]
    return table.with_columns(name=pl.concat_str(words, separator=", ", ignore_nulls=True))


def _largest(table: pl.DataFrame, column: str, value: str, none: str) -> pl.Series:
    """Return a column's names, `other` in place of those whose values sum to little."""
    names = table[column].fill_null(none)
    sums = table.select(names.alias("name"), value=value).group_by("name").agg(pl.sum("value"))
    first = sums.sort("value", "name", descending=[True, False])["name"]
    large = first[: len(SERIES) - 1]
    return pl.select(pl.when(names.is_in(large.implode())).then(names).otherwise(pl.lit("other")))[
        names.name
    ]


def _parts_of(bars: pl.DataFrame, rows: Sequence[str]) -> list[Part]:
    """Return the parts that `wide` made columns of, in colours of their order; `other` is gray."""
    columns = [name for name in bars.columns if name not in rows]
    ordered = [name for name in columns if name != "other"]
    parts = [Part(name, name, SERIES[at]) for at, name in enumerate(ordered)]
    return parts + [Part(name, name, _GREY) for name in columns if name == "other"]


ALL: tuple[Picture, ...] = (
    layer_latency,
    time_by_level,
    by_module,
    by_operator,
    by_primitive,
    side_by_side,
    attribution,
    device_time,
    device_idle,
    communication,
    rank_imbalance,
)


def picture_of(analysis: analyses.Analysis[Any]) -> Picture | None:
    """Return the picture of an analysis, None where its table says more than a picture would."""
    return next((picture for picture in ALL if picture.name == analysis.name), None)
