"""Draws analyses of layers, and of types of layer, as bars."""

from __future__ import annotations

import polars as pl
from bokeh.models import Column
from bokeh.plotting import figure

from xsp.show.plot.bar import by_position
from xsp.show.plot.document import Picture
from xsp.show.plot.gallery.part import known, named_by, parts_of, under_each_other
from xsp.show.plot.lying import by_name, by_size, wide

_LAYER = ("layer", "type", "group", "phase")


def _layer_latency(table: pl.DataFrame) -> Column:
    shown = (*_LAYER, "own_ns", "share_pct", "latency_ns", "own_device_ns", "calls", "path")
    times = [name for name in ("own_ns", "own_device_ns") if known(table, name)]
    return under_each_other(
        by_position(table, value, position="index", group="type", shown=shown) for value in times
    )


def _layer_memory_allocation(table: pl.DataFrame) -> figure:
    shown = (*_LAYER, "own_allocated_bytes", "share_pct", "kept_bytes", "peak_bytes", "path")
    return by_position(table, "own_allocated_bytes", position="index", group="type", shown=shown)


def _layer_type_distribution(table: pl.DataFrame) -> Column:
    return _by_type(table, "count")


def _layer_latency_by_type(table: pl.DataFrame) -> Column:
    return _by_type(table, "own_ns", "own_device_ns")


def _layer_memory_by_type(table: pl.DataFrame) -> Column:
    return _by_type(table, "own_allocated_bytes")


def _by_type(table: pl.DataFrame, *values: str) -> Column:
    """Return the sums of each type, of all groups and phases together."""
    there = [value for value in values if known(table, value)]
    summed = [name for name in dict.fromkeys(("count", *there, "share_pct")) if known(table, name)]
    types = table.group_by("type", maintain_order=True).agg(pl.col(*summed).sum())
    return under_each_other(
        by_size(types, value, name="type", shown=("type", *summed)) for value in there
    )


def _layer_thirds(table: pl.DataFrame) -> figure:
    measures = [name for name in table.columns if name.endswith("_pct")]
    parted = named_by(table, ("group", "phase"))
    long = parted.unpivot(measures, index=["name", "third"], variable_name="measure")
    said = pl.col("measure").str.strip_suffix("_pct")
    long = long.drop_nulls("value").with_columns(
        name=pl.concat_str(
            said, pl.col("name").replace("", None), separator=", ", ignore_nulls=True
        )
    )
    bars = wide(long, ["name"], "third", "value")
    return by_name(bars, parts_of(bars, ["name"]), name="name", unit="share_pct", shown=("name",))


layer_latency = Picture("layer-latency", _layer_latency)
layer_memory_allocation = Picture("layer-memory-allocation", _layer_memory_allocation)
layer_type_distribution = Picture("layer-type-distribution", _layer_type_distribution)
layer_latency_by_type = Picture("layer-latency-by-type", _layer_latency_by_type)
layer_memory_by_type = Picture("layer-memory-by-type", _layer_memory_by_type)
layer_thirds = Picture("layer-thirds", _layer_thirds)
