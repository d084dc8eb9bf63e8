"""Rooflines: a table of work and its device's roof in, points below the roof on log axes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl
from bokeh.models import ColumnDataSource, Label, Span
from bokeh.plotting import figure

from xsp.analyses import text_of
from xsp.plot.axis import Floats
from xsp.plot.canvas import canvas, hover, largest, legend_of, source_of
from xsp.plot.colour import SERIES
from xsp.plot.theme import FAINT, INK

_SMALLEST_PX, _LARGEST_PX = 5.0, 26.0
# What a point is bound by: the words of the legend, and the colour.
_BOUND = {
    True: ("memory-bound", SERIES[0].light),
    False: ("compute-bound", SERIES[1].light),
    None: ("roof not known", SERIES[-1].light),
}
_FLOPS_PER_BYTE = "arithmetic intensity (FLOP/byte)"


class Roof(Protocol):
    """The most that a device can do, as `xsp.analyses.roof_of` tells."""

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second."""

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second from and to its memory."""

    @property
    def source(self) -> str:
        """Where the two numbers are from."""


class Axes(NamedTuple):
    """Columns of a table that say where its points lie.

    Attributes:
        intensity: Operations per byte.
        throughput: Operations per second.
        size: Column that the areas of the points are in proportion to.
        bound: Whether memory is the limit.
    """

    intensity: str = "flops_per_byte"
    throughput: str = "flops_per_s"
    size: str = "latency_ns"
    bound: str = "memory_bound"


def roofline(
    table: pl.DataFrame, roof: Roof | None, axes: Axes, *, shown: Sequence[str], label: str = ""
) -> figure:
    """Return a point for each row whose work is known, below the roof of the device.

    Args:
        table: The table of an analysis.
        roof: The roof; None draws no line.
        axes: Columns that say where the points lie.
        shown: Columns shown when the pointer rests on a point.
        label: Column whose values stand beside the points.
    """
    known = table.filter(pl.col(axes.intensity) > 0, pl.col(axes.throughput) > 0)
    hidden = table.height - known.height
    known, note = largest(known, axes.size)
    drawn = canvas(
        f"{_FLOPS_PER_BYTE}{note}"
        + f"; {hidden:,} without known work are not drawn" * (hidden > 0),
        "throughput (FLOP/s)",
        height=400,
        x_axis_type="log",
        y_axis_type="log",
    )
    if roof is not None:
        _draw_roof(drawn, known, roof, axes)
    bounds = known[axes.bound].to_list() if axes.bound in known.columns else [None] * known.height
    source = source_of(
        known,
        shown,
        x=known[axes.intensity].to_numpy(),
        y=known[axes.throughput].to_numpy(),
        size=_sizes(known[axes.size]),
        bound=[_BOUND[bound][0] for bound in bounds],
        colour=[_BOUND[bound][1] for bound in bounds],
    )
    points = drawn.scatter(
        x="x",
        y="y",
        size="size",
        fill_color="colour",
        fill_alpha=0.65,
        line_color="colour",
        legend_group="bound",
        source=source,
    )
    if label:
        source.data["label"] = [text_of(label, value) for value in known[label]]
        look = {"text_color": INK.light, "text_font_size": "11px", "x_offset": 9, "y_offset": 5}
        drawn.text(x="x", y="y", text="label", source=source, **look)
    hover(drawn, known, shown, points)
    legend_of(drawn)
    return drawn


def _sizes(values: pl.Series) -> Floats:
    """Return diameters whose squares are in proportion to values, as far as they can be seen."""
    known = values.cast(pl.Float64).fill_null(0.0).fill_nan(0.0).to_numpy()
    largest = float(known.max(initial=0.0)) or 1.0
    sizes: Floats = np.maximum(_LARGEST_PX * np.sqrt(known / largest), _SMALLEST_PX)
    return sizes


def _draw_roof(drawn: figure, known: pl.DataFrame, roof: Roof, axes: Axes) -> None:
    """Draw what memory and arithmetic allow, from half the least to twice the largest point."""
    ridge = roof.flops_per_s / roof.bytes_per_s
    around = [ridge, *known[axes.intensity].to_list()]
    left, right = min(around) / 3, max(around) * 3
    ends = {
        "x": [left, ridge, right],
        "y": [left * roof.bytes_per_s, roof.flops_per_s, roof.flops_per_s],
    }
    drawn.line("x", "y", source=ColumnDataSource(ends), line_color=INK.light, line_width=2)
    drawn.add_layout(
        Span(dimension="height", location=ridge, line_color=FAINT.light, line_dash="dashed")
    )
    peak = f"{text_of('flops_per_s', roof.flops_per_s).removesuffix('/s')}FLOP/s"
    memory = text_of("bytes_per_s", roof.bytes_per_s)
    _say(drawn, right, roof.flops_per_s, f"{peak}, {memory} ({roof.source})")


def _say(drawn: figure, x: float, y: float, text: str) -> None:
    look = {"text_color": FAINT.light, "text_font_size": "11px", "text_align": "right"}
    drawn.add_layout(Label(x=x, y=y, text=text, y_offset=4, **look))
