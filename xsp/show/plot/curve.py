"""Draws a quantity over another as lines with intervals, or as steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from bokeh.models import (
    Band,
    BasicTickFormatter,
    ColumnDataSource,
    FixedTicker,
    GlyphRenderer,
    Span,
)
from bokeh.plotting import figure

from xsp.answer.analyses import ends_of, heading_of
from xsp.show.plot.axis import Scale, scale_of
from xsp.show.plot.canvas import canvas, hover, legend_of, source_of
from xsp.show.plot.color import SERIES
from xsp.show.plot.theme import INK

# From so many times the first place on, places stand on a log axis.
_FAR = 8


def curve(
    table: pl.DataFrame,
    x: str,
    y: str,
    *,
    shown: Sequence[str],
    series: str | None = None,
    marked: float | None = None,
) -> figure:
    """Return a line with a point for each row, and a band for its intervals where it has them.

    Args:
        table: Rows in any order.
        x: Column of the places, such as batch sizes.
        y: Column of the heights; the ends of its intervals are in those of `ends_of`.
        shown: Columns shown when the pointer rests on a point.
        series: Column that says which line a row is of.
        marked: Place to be marked, such as the best.
    """
    scale = scale_of(y, table[y])
    places = sorted(table[x].drop_nulls().unique().to_list())
    far = bool(places) and places[0] > 0 and places[-1] / places[0] >= _FAR
    drawn = canvas(heading_of(x), scale.label(y), x_axis_type="log" if far else "linear")
    if far:
        drawn.xaxis.ticker = FixedTicker(ticks=places)
        drawn.xaxis.formatter = BasicTickFormatter()
    parts = [table] if series is None else table.partition_by(series, maintain_order=True)
    for at, part in enumerate(parts):
        legend = {} if series is None else {"legend_label": str(part[series][0])}
        look = {"color": SERIES[at % len(SERIES)].light, **legend}
        hover(drawn, part, shown, _line(drawn, part.sort(x), (x, y), scale, shown, look))
    if marked is not None:
        _mark(drawn, marked)
    drawn.y_range.start = 0
    legend_of(drawn)
    return drawn


def _line(
    drawn: figure,
    part: pl.DataFrame,
    axes: tuple[str, str],
    scale: Scale,
    shown: Sequence[str],
    look: dict[str, str],
) -> GlyphRenderer:
    """Draw a line with its band, and return its points."""
    x, y = axes
    places = part[x].to_numpy()
    if ends := ends_of(part.columns).get(y):
        lower, upper = (scale.of(part[end]) for end in ends)
        known = ~np.isnan(lower) & ~np.isnan(upper)
        band = {"x": places[known], "lower": lower[known], "upper": upper[known]}
        fill = {"fill_color": look["color"], "fill_alpha": 0.2, "line_color": None}
        source = ColumnDataSource(band)
        drawn.add_layout(Band(base="x", lower="lower", upper="upper", source=source, **fill))
    source = source_of(part, shown, x=places, y=scale.of(part[y]))
    drawn.line("x", "y", source=source, line_width=2, **look)
    return drawn.scatter("x", "y", source=source, size=7, **look)


def _mark(drawn: figure, place: float) -> None:
    look = {"line_color": INK.light, "line_dash": "dashed"}
    drawn.add_layout(Span(dimension="height", location=place, **look))


def steps(table: pl.DataFrame, x: str, y: str, *, shown: Sequence[str]) -> figure:
    """Return an area whose height is that of a row until the place of the next; its peak marked.

    Args:
        table: Rows in the order of their places.
        x: Column of the places, such as times.
        y: Column of the heights.
        shown: Columns shown when the pointer rests on the area's edge.
    """
    across, up = scale_of(x, table[x]), scale_of(y, table[y])
    places, heights = across.of(table[x]), np.nan_to_num(up.of(table[y]))
    drawn = canvas(across.label(x), up.label(y))
    color = SERIES[0].light
    area = {"x": np.repeat(places, 2)[1:], "y": np.repeat(heights, 2)[:-1]}
    drawn.varea("x", 0, "y", source=ColumnDataSource(area), fill_color=color, fill_alpha=0.25)
    source = source_of(table, shown, x=places, y=heights)
    drawn.step("x", "y", source=source, line_color=color, mode="after", line_width=1.5)
    points = drawn.scatter("x", "y", source=source, size=6, color=color, alpha=0.0)
    if table.height:
        _mark(drawn, float(places[int(np.argmax(heights))]))
    hover(drawn, table, shown, points)
    drawn.y_range.start = 0
    return drawn
