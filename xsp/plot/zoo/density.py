"""Densities: places of many marks on log axes in, boxes that say how many lie in each out."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool
from bokeh.plotting import figure

from xsp.plot.axis import Floats
from xsp.plot.colour import SERIES

_ACROSS, _UP = 72, 36
_FAINTEST, _STRONGEST = 0.12, 0.95


def draw_density(drawn: figure, x: Floats, y: Floats, *, log_y: bool) -> None:
    """Draw how many models lie in each box of a grid, the darker the more.

    Args:
        drawn: Figure whose horizontal axis is logarithmic.
        x: Places, all positive.
        y: Places on the other axis.
        log_y: Whether that axis is logarithmic as well.
    """
    counts, left, bottom = np.histogram2d(
        np.log10(x), np.log10(y) if log_y else y, bins=(_ACROSS, _UP)
    )
    column, row = np.nonzero(counts)
    number = counts[column, row]
    edges = 10.0**left
    sides = 10.0**bottom if log_y else bottom
    depth = np.log1p(number) / np.log1p(number.max())
    source = ColumnDataSource(
        {
            "left": edges[column],
            "right": edges[column + 1],
            "bottom": sides[row],
            "top": sides[row + 1],
            "alpha": _FAINTEST + (_STRONGEST - _FAINTEST) * depth,
            "models": [f"{int(one):,}" for one in number],
        }
    )
    boxes = drawn.quad(
        "left",
        "right",
        "top",
        "bottom",
        source=source,
        fill_color=SERIES[0].light,
        fill_alpha="alpha",
        line_color=None,
    )
    drawn.add_tools(HoverTool(tooltips=[("models", "@models")], renderers=[boxes]))
