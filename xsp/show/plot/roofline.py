"""Draws the work of a table's rows as points below a device's roof, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from bokeh.models import BasicTickFormatter, ColumnDataSource, FixedTicker, Label, Span
from bokeh.plotting import figure

from xsp.answer.analyses import text_of
from xsp.show.plot.axis import Floats, Scale, scale_of
from xsp.show.plot.canvas import canvas, hover, largest, legend_of, source_of
from xsp.show.plot.color import SERIES
from xsp.show.plot.theme import FAINT, INK

_SMALLEST_PX, _LARGEST_PX = 5.0, 26.0
_FEW_POWERS = 2  # of ten: up to so many have ticks within them
# What a point is bound by: the words of the legend, and the color.
_BOUND = {
    True: ("memory-bound", SERIES[0].light),
    False: ("compute-bound", SERIES[1].light),
    None: ("roof not known", SERIES[-1].light),
}


def roofline(table: pl.DataFrame, *, size: str, shown: Sequence[str], label: str = "") -> figure:
    """Return a point for each row whose work is known, below the roof of the device.

    Args:
        table: `flops_per_byte`, `flops_per_s` and `memory_bound` of each point; `peak_flops_per_s`,
            `peak_bytes_per_s` and `roof_source`, the same in all rows, null where no roof is known.
        size: Column that the areas of the points are in proportion to.
        shown: Columns shown when the pointer rests on a point.
        label: Column whose values stand beside the points.
    """
    known = table.filter(pl.col("flops_per_byte") > 0, pl.col("flops_per_s") > 0)
    hidden = f"; {table.height - known.height:,} without computing are not drawn"
    known, note = largest(known, size)
    scale = scale_of("flops_per_s", known["flops_per_s"], known["peak_flops_per_s"])
    drawn = canvas(
        f"arithmetic intensity (FLOP/byte){note}{hidden * (table.height > known.height)}",
        scale.label("throughput_flops_per_s"),
        height=400,
        x_axis_type="log",
        y_axis_type="log",
    )
    drawn.axis.formatter = BasicTickFormatter(use_scientific=False)
    _draw_roof(drawn, known, scale)
    bounds = known["memory_bound"].to_list()
    source = source_of(
        known,
        shown,
        x=known["flops_per_byte"].to_numpy(),
        y=scale.of(known["flops_per_s"]),
        size=_sizes(known[size]),
        bound=[_BOUND[bound][0] for bound in bounds],
        color=[_BOUND[bound][1] for bound in bounds],
    )
    drawn.xaxis.ticker = ticks(source.data["x"])
    drawn.yaxis.ticker = ticks(source.data["y"])
    points = drawn.scatter(
        x="x",
        y="y",
        size="size",
        fill_color="color",
        fill_alpha=0.65,
        line_color="color",
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


def ticks(places: Floats) -> FixedTicker:
    """Return ticks at 1, 2 and 5 times each power of ten around places, of many powers at 1 alone.

    Bokeh's own have one tick, or none, where places lie within two powers of ten.
    """
    if not len(places):
        return FixedTicker(ticks=[])
    first, last = (int(np.floor(np.log10(end(places)))) for end in (np.min, np.max))
    steps = (1, 2, 5) if last - first <= _FEW_POWERS else (1,)
    # Beyond the points stand the roof's ends.
    return FixedTicker(
        ticks=[step * 10.0**power for power in range(first - 3, last + 4) for step in steps]
    )


def _sizes(values: pl.Series) -> Floats:
    """Return diameters whose squares are in proportion to values, as far as they can be seen."""
    known = values.cast(pl.Float64).fill_null(0.0).fill_nan(0.0).to_numpy()
    most = float(known.max(initial=0.0)) or 1.0
    sizes: Floats = np.maximum(_LARGEST_PX * np.sqrt(known / most), _SMALLEST_PX)
    return sizes


def _draw_roof(drawn: figure, known: pl.DataFrame, scale: Scale) -> None:
    """Draw what memory and arithmetic allow, from left of all points to right of them."""
    roofs = known.select("peak_flops_per_s", "peak_bytes_per_s", "roof_source").drop_nulls()
    if not roofs.height:
        return
    flops, moved, source = roofs.row(0)
    ridge = flops / moved
    around = [ridge, *known["flops_per_byte"].to_list()]
    left, right = min(around) / 3, max(around) * 3
    top = flops / scale.divisor
    ends = {"x": [left, ridge, right], "y": [top * left / ridge, top, top]}
    drawn.line("x", "y", source=ColumnDataSource(ends), line_color=INK.light, line_width=2)
    look = {"line_color": FAINT.light, "line_dash": "dashed"}
    drawn.add_layout(Span(dimension="height", location=ridge, **look))
    # Left of the ridge nothing reaches as high, so the label covers no point there.
    peak = text_of("peak_flops_per_s", flops).removesuffix("/s")
    said = f"{peak}FLOP/s, {text_of('peak_bytes_per_s', moved)}: {source}"
    text = {"text_color": FAINT.light, "text_font_size": "11px", "text_align": "left"}
    drawn.add_layout(Label(x=left, y=top, text=said, y_offset=4, **text))
