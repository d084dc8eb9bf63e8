"""Draws the latency and throughput of models as curves, bars and rooflines."""

from __future__ import annotations

import polars as pl
from bokeh.models import Column, LayoutDOM
from bokeh.plotting import figure

from xsp.show.plot.document import Picture
from xsp.show.plot.gallery.part import WORK
from xsp.show.plot.lying import by_size
from xsp.show.plot.roofline import roofline
from xsp.show.plot.several import batch_curves


def _model_information(table: pl.DataFrame) -> LayoutDOM:
    if table["batch"].n_unique() > 1:
        return batch_curves(table, _varied(table))
    shown = ("model", "settings", "batch", "latency_ns", "throughput_per_s", "runs")
    return by_size(table, "latency_ns", name="model", shown=shown)


def _optimal_batch(table: pl.DataFrame) -> Column:
    return batch_curves(table, _varied(table))


def _model_roofline(table: pl.DataFrame) -> figure:
    # What is reached, as a share of the roof at this intensity, says where the roof is.
    roof = 100 * pl.col("flops_per_s") / pl.col("roof_pct")
    memory = pl.col("bound") == "memory"
    slope = roof / pl.when(memory).then("flops_per_byte").otherwise("ideal_flops_per_byte")
    known = table.with_columns(
        memory_bound=memory,
        peak_bytes_per_s=slope,
        peak_flops_per_s=slope * pl.col("ideal_flops_per_byte"),
    )
    shown = ("model", "settings", "batch", "latency_ns", "kernel_ns", *WORK, "roof_pct")
    return roofline(known, size="kernel_ns", shown=shown, label="batch")


def _varied(table: pl.DataFrame) -> list[str]:
    """Label the lines of batch sizes by model and settings, if these vary."""
    return [name for name in ("model", "settings") if table[name].n_unique() > 1]


model_information = Picture("model-information", _model_information)
optimal_batch = Picture("optimal-batch", _optimal_batch)
model_roofline = Picture("model-roofline", _model_roofline)
