"""Draws analyses of memory as steps over time, or as horizontal bars."""

from __future__ import annotations

import polars as pl
from bokeh.plotting import figure

from xsp.level import Kind
from xsp.show.plot.bar import Part
from xsp.show.plot.color import KINDS, SERIES
from xsp.show.plot.curve import steps
from xsp.show.plot.document import Picture
from xsp.show.plot.lying import MOST_NAMED, by_name, by_size

_BLUE = SERIES[0]
_ORANGE = SERIES[1]
_SKY = SERIES[5]


def _memory_peak(table: pl.DataFrame) -> figure:
    named = table.with_columns(layer=pl.col("layer").replace("", "(the model)").fill_null("(none)"))
    shown = ("layer", "type", "operator", "alive_bytes", "share_pct", "part", "at")
    return by_size(named, "alive_bytes", name="layer", shown=shown)


def _memory_timeline(table: pl.DataFrame) -> figure:
    told = ("path", "layer", "operator")
    during = table.select(*told, at_ns="start_ns", held_bytes="highest_bytes")
    after = table.select(*told, at_ns="end_ns", held_bytes="after_bytes")
    order = pl.concat([during, after]).sort("at_ns", maintain_order=True)
    return steps(order, "at_ns", "held_bytes", shown=("layer", "operator", "held_bytes", "path"))


def _layer_memory(table: pl.DataFrame) -> figure:
    parts = (
        Part("parameter_bytes", "parameters", _BLUE),
        Part("buffer_bytes", "buffers", _SKY),
        Part("activation_bytes", "activations left behind", _ORANGE),
    )
    named = table.with_columns(
        layer=pl.col("layer").replace("", "(the model itself)"),
        activation_bytes=pl.col("kept_bytes").clip(lower_bound=0),
    )
    size = pl.sum_horizontal(part.column for part in parts)
    largest = named.sort(size, descending=True)[:MOST_NAMED]
    shown = ("layer", "type", "calls", "parameter_bytes", "buffer_bytes", "kept_bytes")
    return by_name(largest, parts, name="layer", unit="held_bytes", shown=shown)


def _operator_memory_allocation(table: pl.DataFrame) -> figure:
    shown = ("operator", "calls", "temporary_bytes", "temporary_share_pct", "allocated_bytes")
    colors = [KINDS[Kind.OP]] * table.height
    return by_size(table, "temporary_bytes", name="operator", shown=shown, colors=colors)


memory_peak = Picture("memory-peak", _memory_peak)
memory_timeline = Picture("memory-timeline", _memory_timeline)
layer_memory = Picture("layer-memory", _layer_memory)
operator_memory_allocation = Picture("operator-memory-allocation", _operator_memory_allocation)
