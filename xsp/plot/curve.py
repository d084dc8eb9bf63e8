"""Curves: tables of a quantity over another in, lines with their intervals, and steps out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from bokeh.models import Band, ColumnDataSource, Span
from bokeh.plotting import figure

from xsp.plot.axis import Scale, scale_of
from xsp.plot.canvas import canvas, hover, legend_of, source_of
from xsp.plot.colour import SERIES
from xsp.plot.theme import INK


def curve(
    table: pl.DataFrame,
    x: str,
    y: str,
    *,
    shown: Sequence[str],
    series: str | None = None,
    marked: float | None = None,
    log: bool = True,
) -> figure:
    """Return a line with a point for each row, and a band for its intervals where it has them.

    Args:
        table: Rows in any order.
        x: Column of the places, such as batch sizes.
        y: Column of the heights; `y` with `_low` and `_high` before its unit are the ends.
        shown: Columns shown when the pointer rests on a point.
        series: Column that says which line a row is of.
        marked: Place to be marked, such as the best.
        log: Whether places are far apart: powers of two.
    """
    scale = scale_of(y, table[y])
    drawn = canvas(x.replace("_", " "), scale.label(y), x_axis_type="log" if log else "linear")
    groups = [("", table)] if series is None else _parted(table, series)
    for at, (said, part) in enumerate(groups):
        colour = SERIES[at % len(SERIES)].light
        _line(drawn, part.sort(x), (x, y), scale, shown=shown, colour=colour, said=said)
    if marked is not None:
        look = {"line_color": INK.light, "line_dash": "dashed"}
        drawn.add_layout(Span(dimension="height", location=marked, **look))
    if log:
        drawn.xaxis.ticker = sorted(table[x].unique().to_list())
    drawn.y_range.start = 0
    legend_of(drawn)
    return drawn


def _parted(table: pl.DataFrame, series: str) -> list[tuple[str, pl.DataFrame]]:
    parts = table.partition_by(series, maintain_order=True)
    return [(str(part[series][0]), part) for part in parts]


def _line(
    drawn: figure,
    part: pl.DataFrame,
    axes: tuple[str, str],
    scale: Scale,
    *,
    shown: Sequence[str],
    colour: str,
    said: str,
) -> None:
    x, y = axes
    places, heights = part[x].to_numpy(), scale.of(part[y])
    source = source_of(part, shown, x=places, y=heights)
    low, high = ends_of(y)
    if {low, high} <= set(part.columns):
        lower, upper = scale.of(part[low]), scale.of(part[high])
        known = ~np.isnan(lower) & ~np.isnan(upper)
        band = {"x": places[known], "lower": lower[known], "upper": upper[known]}
        look = {"fill_color": colour, "fill_alpha": 0.2, "line_color": None}
        drawn.add_layout(
            Band(base="x", lower="lower", upper="upper", source=ColumnDataSource(band), **look)
        )
    legend = {"legend_label": said} if said else {}
    drawn.line("x", "y", source=source, line_color=colour, line_width=2, **legend)
    points = drawn.scatter("x", "y", source=source, size=7, color=colour, **legend)
    hover(drawn, part, shown, points)


def ends_of(column: str) -> tuple[str, str]:
    """Return the columns of the ends of a column's interval.

    >>> ends_of("latency_ns"), ends_of("samples_per_s")
    (('latency_low_ns', 'latency_high_ns'), ('samples_low_per_s', 'samples_high_per_s'))
    """
    for unit in ("_bytes_per_s", "_flops_per_s", "_per_s", "_ns", "_bytes", "_pct"):
        if column.endswith(unit):
            stem = column.removesuffix(unit)
            return f"{stem}_low{unit}", f"{stem}_high{unit}"
    return f"{column}_low", f"{column}_high"


def steps(table: pl.DataFrame, x: str, y: str, *, shown: Sequence[str], peak: bool) -> figure:
    """Return an area whose height is that of a row until the place of the next.

    Args:
        table: Rows in the order of their places.
        x: Column of the places, such as times.
        y: Column of the heights.
        shown: Columns shown when the pointer rests on the area's edge.
        peak: Whether the first place of the largest height is marked.
    """
    across, up = scale_of(x, table[x]), scale_of(y, table[y])
    places, heights = across.of(table[x]), np.nan_to_num(up.of(table[y]))
    drawn = canvas(across.label(x), up.label(y), marks=table.height)
    colour = SERIES[0].light
    source = source_of(table, shown, x=places, y=heights)
    area = {"x": np.repeat(places, 2)[1:], "y": np.repeat(heights, 2)[:-1]}
    drawn.varea("x", 0, "y", source=ColumnDataSource(area), fill_color=colour, fill_alpha=0.25)
    drawn.step("x", "y", source=source, line_color=colour, mode="after", line_width=1.5)
    points = drawn.scatter("x", "y", source=source, size=5, color=colour, alpha=0.0)
    if peak and table.height:
        at = places[int(np.argmax(heights))]
        look = {"line_color": INK.light, "line_dash": "dashed"}
        drawn.add_layout(Span(dimension="height", location=at, **look))
    hover(drawn, table, shown, points)
    drawn.y_range.start = 0
    return drawn
