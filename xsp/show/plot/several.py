"""Draws the tables of batch sizes, sweeps and comparisons of several traces."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from bokeh.layouts import column
from bokeh.models import Column
from bokeh.plotting import figure

from xsp.show.plot.canvas import nothing
from xsp.show.plot.curve import curve
from xsp.show.plot.document import Plot
from xsp.show.plot.lying import difference

# Settings of a sweep that can be the places of its points, the first that varies.
_PLACES = ("batch", "threads")
_SETTINGS = ("batch", "threads", "framework", "precision", "compiled", "device", "train")


def batch_curves(table: pl.DataFrame, series: Sequence[str]) -> Column:
    """Return throughput and latency over the batch size, with the best batch marked.

    Args:
        table: Columns of `xsp.analyses.optimal_batch`.
        series: Columns that tell the lines apart.
    """
    best = table.filter(pl.col("optimal")) if "optimal" in table.columns else table.clear()
    marked = float(best["batch"][0]) if best.height == 1 else None
    return _curves(table, "batch", series, marked)


def sweep_curves(table: pl.DataFrame) -> Plot:
    """Return throughput and latency over the setting that a sweep varied.

    Places are batch sizes, where there are several, else numbers of threads, else values of a
    setting of the target's. Other settings that varied have a line for each of their values.

    Args:
        table: Columns of a sweep's table (`results.parquet`, in its folder).
    """
    settings = [name for name in table.columns if name in _SETTINGS or name.startswith("set.")]
    varied = [name for name in settings if table[name].drop_nulls().n_unique() > 1]
    numbers = [name for name in varied if table[name].dtype.is_numeric()]
    place = next((name for name in (*_PLACES, *numbers) if name in numbers), "batch")
    measured = table.drop_nulls([place, "latency_ns"])
    series = [name for name in varied if name != place]
    drawn = _curves(measured, place, series, None) if measured.height else nothing()
    return Plot(drawn, f"How quick is the model, by {place.removeprefix('set.')}?")


def _curves(table: pl.DataFrame, place: str, series: Sequence[str], marked: float | None) -> Column:
    named = table.with_columns(
        series=pl.concat_str(
            [pl.format(f"{name.removeprefix('set.')} {{}}", name) for name in series]
            or [pl.lit("")],
            separator=", ",
            ignore_nulls=True,
        )
    )
    drawn = [
        _curve(named, place, y, marked)
        for y in ("throughput_per_s", "latency_ns")
        if table[y].is_not_null().any()
    ]
    return column(drawn, sizing_mode="stretch_width")


def _curve(named: pl.DataFrame, place: str, y: str, marked: float | None) -> figure:
    by = "series" if named["series"].n_unique() > 1 else None
    shown = ("series", place, "throughput_per_s", "latency_ns", "runs", "warnings", "trace")
    return curve(named, place, y, shown=shown, series=by, marked=marked)


def comparison(table: pl.DataFrame) -> Plot:
    """Return a bar for what differs most between traces, as `xsp.compare` says it.

    Args:
        table: Columns of a comparison's table.
    """
    drawn = difference(table) if table.height else nothing()
    return Plot(drawn, "What costs more than before, and what less?")
