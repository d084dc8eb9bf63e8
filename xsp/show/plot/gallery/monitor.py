"""Draws what monitors read, as a lane over time for each quantity of each device."""

from __future__ import annotations

import numpy as np
import polars as pl
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from xsp.answer.analyses import heading_of, text_of
from xsp.show.plot.axis import scale_of
from xsp.show.plot.canvas import canvas, hover, source_of
from xsp.show.plot.color import SERIES
from xsp.show.plot.document import Picture

_LANE_PX, _AXES_PX = 44, 90
_HEIGHT = 0.8  # of a lane that the highest value fills


def _utilization_timeline(table: pl.DataFrame) -> figure:
    lanes = [
        (
            part,
            name,
            f"{device} {heading_of(name)}, up to {text_of(name, part[name].max())}",
        )
        for (device,), part in table.group_by("device", maintain_order=True)
        for name in table.columns[2:]
        if part[name].count() > 1
    ]
    scale = scale_of("start_ns", table["start_ns"])
    drawn = canvas(
        scale.label("start_ns"), "", y_range=(0, max(len(lanes), 1)),
        height=_LANE_PX * len(lanes) + _AXES_PX,
    )  # fmt: skip
    for at, (part, name, _) in enumerate(reversed(lanes)):
        known = part.drop_nulls(name)
        most = float(known[name].max() or 0.0) or 1.0  # type: ignore[arg-type]
        heights = at + _HEIGHT * known[name].to_numpy() / most
        places = scale.of(known["start_ns"])
        color = SERIES[table.columns.index(name) % len(SERIES)].light
        area = {"x": np.repeat(places, 2)[1:], "y": np.repeat(heights, 2)[:-1]}
        drawn.varea("x", at, "y", source=ColumnDataSource(area), fill_color=color, fill_alpha=0.4)
        shown = ("device", "start_ns", name)
        source = source_of(known, shown, x=places, y=heights)
        points = drawn.scatter("x", "y", source=source, size=6, color=color, alpha=0.0)
        hover(drawn, known, shown, points)
    drawn.yaxis.ticker = [at + _HEIGHT / 2 for at in range(len(lanes))]
    drawn.yaxis.major_label_overrides = {
        at + _HEIGHT / 2: label for at, (_, _, label) in enumerate(reversed(lanes))
    }
    return drawn


utilization_timeline = Picture("utilization-timeline", _utilization_timeline)
