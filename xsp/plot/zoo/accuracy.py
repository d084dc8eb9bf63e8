"""Accuracy against latency: the frame of results in, a bubble for each model out."""

from __future__ import annotations

import numpy as np
import polars as pl
from bokeh.models import BasicTickFormatter
from bokeh.plotting import figure

from xsp.plot.axis import Floats, scale_of
from xsp.plot.canvas import MOST_MARKS, canvas, hover, legend_of, nothing, source_of
from xsp.plot.document import Plot
from xsp.plot.roofline import ticks
from xsp.plot.theme import INK
from xsp.plot.zoo.density import draw_density
from xsp.plot.zoo.entry import colours_of, explain, named
from xsp.zoo import models

_SMALLEST_PX, _LARGEST_PX = 6.0, 42.0
_NAMED = 40  # models that have their name beside their bubble
_SHOWN = (
    *("label", "family", "accuracy_pct", "online_latency_ns", "max_throughput_per_s"),
    *("parameter_bytes", "optimal_batch"),
)
_QUESTION = "What does accuracy cost in latency?"


def zoo_accuracy(results: pl.DataFrame) -> Plot:
    """Return accuracy against the latency at batch 1; the area of a bubble are the parameters.

    Args:
        results: The frame of a zoo's results.
    """
    known = named(models(results)).drop_nulls(["accuracy_pct", "online_latency_ns"])
    return Plot(_bubbles(known) if known.height else nothing(), _QUESTION)


def _bubbles(known: pl.DataFrame) -> figure:
    middle = known.select(pl.median("online_latency_ns")).to_series()
    scale = scale_of("online_latency_ns", middle)
    many = known.height > MOST_MARKS
    note = f"; {known.height:,} entries, counted" if many else "; area: parameters"
    label = f"latency at batch 1 ({scale.unit}){note}"
    drawn = canvas(label, "accuracy (%)", height=420, x_axis_type="log")
    drawn.min_border_right = 40  # for names beside bubbles
    x, y = scale.of(known["online_latency_ns"]), known["accuracy_pct"].to_numpy()
    drawn.xaxis.ticker, drawn.xaxis.formatter = ticks(x), BasicTickFormatter(use_scientific=False)
    if many:
        draw_density(drawn, x, y, log_y=False)
        return drawn
    known = known.with_columns(_x=pl.Series(x), _size=pl.Series(_sizes(known["parameter_bytes"])))
    _draw(drawn, known)
    drawn.x_range.range_padding = 0.12  # for whole bubbles and names
    drawn.y_range.range_padding = 0.12
    if known.height <= _NAMED:
        _name(drawn, known)
    legend_of(drawn)
    return drawn


def _draw(drawn: figure, known: pl.DataFrame) -> None:
    hues = colours_of(known)
    known = known.sort("_size", descending=True)  # small ones lie on large ones
    groups = known["group"].to_list()
    source = source_of(
        known,
        _SHOWN,
        x=known["_x"].to_numpy(),
        y=known["accuracy_pct"].to_numpy(),
        size=known["_size"].to_numpy(),
        entry=known["entry"].to_numpy(),
        colour=[hues[group] for group in groups],
    )
    look = {"fill_color": "colour", "fill_alpha": 0.5, "line_color": "colour"}
    marks = drawn.scatter(x="x", y="y", size="size", source=source, **look)
    hover(drawn, known, _SHOWN, marks)
    explain(drawn, marks, groups, hues)


def _name(drawn: figure, known: pl.DataFrame) -> None:
    source = source_of(
        known, ("model",), x=known["_x"].to_numpy(), y=known["accuracy_pct"].to_numpy(),
        off=known["_size"].to_numpy() / 2 + 3,
    )  # fmt: skip
    look = {"text_font_size": "11px", "text_color": INK.light, "text_baseline": "middle"}
    drawn.text(x="x", y="y", text="model", x_offset="off", source=source, **look)


def _sizes(bytes_: pl.Series) -> Floats:
    """Return diameters whose squares are in proportion to sizes, as far as they can be seen."""
    sizes = bytes_.cast(pl.Float64).fill_null(0.0).to_numpy()
    most = float(sizes.max(initial=0.0)) or 1.0
    found: Floats = np.maximum(_LARGEST_PX * np.sqrt(sizes / most), _SMALLEST_PX)
    return found
