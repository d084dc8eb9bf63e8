"""Rooflines of all models in one picture: the frame of results in, points below roofs out."""

from __future__ import annotations

import polars as pl
from bokeh.models import BasicTickFormatter, ColumnDataSource, Label
from bokeh.plotting import figure

from xsp.analyses import text_of
from xsp.plot.axis import Scale, scale_of
from xsp.plot.canvas import MOST_MARKS, canvas, hover, legend_of, nothing, source_of
from xsp.plot.document import Plot
from xsp.plot.roofline import ticks
from xsp.plot.theme import FAINT, INK
from xsp.plot.zoo.density import draw_density
from xsp.plot.zoo.entry import colours_of, explain, named
from xsp.zoo import models, roofs

_QUESTION = "Which models are bound by memory, and which by arithmetic?"
_SHOWN = (
    *("label", "family", "flops_per_byte", "flops_per_s", "bound", "optimal_batch", "flops"),
    "convolution_pct",
)
_MOST_ROOFS = 6


def zoo_roofline(results: pl.DataFrame) -> Plot:
    """Return each model at its best batch below the roofs of the machines.

    Args:
        results: The frame of a zoo's results.
    """
    known = named(models(results)).filter(pl.col("flops_per_byte") > 0, pl.col("flops_per_s") > 0)
    return Plot(_points(known, roofs(results)) if known.height else nothing(), _QUESTION)


def _points(known: pl.DataFrame, peaks: pl.DataFrame) -> figure:
    peaks = peaks.sort("peak_flops_per_s", descending=True).head(_MOST_ROOFS)
    scale = scale_of("flops_per_s", known["flops_per_s"], peaks["peak_flops_per_s"])
    many = known.height > MOST_MARKS
    note = f"; {known.height:,} entries, counted" if many else ""
    drawn = canvas(
        f"arithmetic intensity (FLOP/byte), at the best batch{note}",
        scale.label("throughput_flops_per_s"),
        height=420,
        x_axis_type="log",
        y_axis_type="log",
    )
    drawn.axis.formatter = BasicTickFormatter(use_scientific=False)
    x, y = known["flops_per_byte"].to_numpy(), scale.of(known["flops_per_s"])
    drawn.xaxis.ticker, drawn.yaxis.ticker = ticks(x), ticks(y)
    for peak in peaks.iter_rows(named=True):
        _roof(drawn, peak, (float(x.min()) / 2, float(x.max()) * 2), scale, one=peaks.height == 1)
    if many:
        draw_density(drawn, x, y, log_y=True)
        return drawn
    _draw(drawn, known, scale)
    legend_of(drawn)
    return drawn


def _draw(drawn: figure, known: pl.DataFrame, scale: Scale) -> None:
    hues, groups = colours_of(known), known["group"].to_list()
    source = source_of(
        known,
        _SHOWN,
        x=known["flops_per_byte"].to_numpy(),
        y=scale.of(known["flops_per_s"]),
        entry=known["entry"].to_numpy(),
        colour=[hues[group] for group in groups],
    )
    points = drawn.scatter(x="x", y="y", size=9, source=source, color="colour", alpha=0.65)
    hover(drawn, known, _SHOWN, points)
    explain(drawn, points, groups, hues)


def _roof(
    drawn: figure, peak: dict[str, float | str], around: tuple[float, float], scale: Scale, *,
    one: bool,
) -> None:  # fmt: skip
    """Draw what the memory and arithmetic of a machine allow."""
    flops, moved = float(peak["peak_flops_per_s"]), float(peak["peak_bytes_per_s"])
    ridge, top = flops / moved, flops / scale.divisor
    left, right = min(around[0], ridge / 2), max(around[1], ridge * 2)
    ends = {"x": [left, ridge, right], "y": [top * left / ridge, top, top]}
    drawn.line("x", "y", source=ColumnDataSource(ends), line_color=INK.light, line_width=1.6)
    rate = text_of("peak_flops_per_s", flops).removesuffix("/s")
    said = f"{rate}FLOP/s, {text_of('peak_bytes_per_s', moved)}"
    said = f"{said}: {peak['roof_source']}" if one else f"{peak['host']}: {said}"
    text = {"text_color": FAINT.light, "text_font_size": "11px", "text_align": "right"}
    drawn.add_layout(Label(x=right, y=top, text=said, y_offset=3, **text))
