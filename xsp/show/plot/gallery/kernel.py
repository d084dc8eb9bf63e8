"""Draws analyses of kernels, alone and in layers, as rooflines and bars."""

from __future__ import annotations

import polars as pl
from bokeh.layouts import row
from bokeh.models import Row
from bokeh.plotting import figure

from xsp.level import Kind
from xsp.show.plot.bar import Part, by_position, stacked
from xsp.show.plot.canvas import nothing
from xsp.show.plot.color import KINDS
from xsp.show.plot.document import Picture
from xsp.show.plot.gallery.part import WORK
from xsp.show.plot.lying import by_size
from xsp.show.plot.roofline import roofline


def _kernel_roofline(table: pl.DataFrame) -> figure:
    shown = ("kernel", "latency_ns", *WORK, "path")
    return roofline(table, size="latency_ns", shown=shown)


def _kernel_by_name(table: pl.DataFrame) -> figure:
    shown = ("kernel", "count", "latency_ns", "share_pct", *WORK[:-1])
    colors = [KINDS[Kind.KERNEL]] * table.height
    return by_size(table, "latency_ns", name="kernel", shown=shown, colors=colors)


def _kernel_by_type(table: pl.DataFrame) -> figure:
    shown = (
        "type",
        "count",
        "latency_ns",
        "share_pct",
        "flops_per_byte",
        "flops_per_s",
        "operators",
    )
    named = table.with_columns(pl.col("type").fill_null("not known"))
    colors = [KINDS[Kind.KERNEL]] * table.height
    return by_size(named, "latency_ns", name="type", shown=shown, colors=colors)


def _operator_roofline(table: pl.DataFrame) -> figure:
    placed = table.filter(pl.col("flops_per_s").is_not_null())
    return roofline(placed, size="time_ns", shown=("operator", "shapes", "time_ns", *WORK))


def _layer_kernel_metrics(table: pl.DataFrame) -> Row | figure:
    shown = ("layer", "type", "flops", "read_bytes", "write_bytes", "work_source", "path")
    if not table.height:
        return nothing()
    charts = [
        by_position(table, value, position="index", group="type", shown=shown, colored_by="flops")
        for value in ("flops", "read_bytes", "write_bytes")
    ]
    return row(charts, sizing_mode="stretch_width")


def _layer_device_time(table: pl.DataFrame) -> figure:
    parts = (
        Part("kernel_pct", "in kernels", KINDS[Kind.KERNEL]),
        Part("outside_pct", "outside of them", KINDS[Kind.LAYER]),
    )
    shown = ("layer", "type", "own_ns", "kernel_ns", "outside_ns", "kernel_pct", "path")
    return stacked(table, parts, position="index", unit="share_pct", shown=shown)


def _layer_roofline(table: pl.DataFrame) -> figure:
    shown = ("layer", "type", "kernel_ns", *WORK, "path")
    return roofline(table, size="kernel_ns", shown=shown)


kernel_roofline = Picture("kernel-roofline", _kernel_roofline)
kernel_by_name = Picture("kernel-by-name", _kernel_by_name)
kernel_by_type = Picture("kernel-by-type", _kernel_by_type)
operator_roofline = Picture("operator-roofline", _operator_roofline)
layer_kernel_metrics = Picture("layer-kernel-metrics", _layer_kernel_metrics)
layer_device_time = Picture("layer-device-time", _layer_device_time)
layer_roofline = Picture("layer-roofline", _layer_roofline)
