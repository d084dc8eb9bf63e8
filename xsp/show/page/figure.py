"""Makes the empty figures of icicle and timeline, which the page's script fills.

Of a trace's boxes only those are drawn that can be seen, so the script puts these into the
sources whenever the view changes (script/view.js), and the figures themselves are without data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bokeh.plotting import figure

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def view_items() -> dict[str, Any]:
    """Return the figures of icicle and timeline as BokehJS embeds them, by name."""
    from bokeh.embed import json_item  # noqa: PLC0415

    return {"icicle": json_item(_view("icicle")), "timeline": json_item(_view("timeline"))}


def _view(name: str) -> figure:
    """Return a figure of boxes in rows, with labels, and a frame for what is selected."""
    from bokeh.models import FixedTicker, PanTool, Range1d, WheelZoomTool  # noqa: PLC0415
    from bokeh.plotting import figure  # noqa: PLC0415

    wheel = WheelZoomTool(dimensions="width", modifiers="ctrl")
    plot = figure(
        name=name,
        height=300,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools=[PanTool(dimensions="width"), wheel],
        x_range=Range1d(0, 1),
        y_range=Range1d(1, 0),
        min_border=0,
        outline_line_color=None,
        background_fill_color=None,
        border_fill_color=None,
    )
    plot.toolbar.active_scroll = wheel
    plot.grid.visible = False
    plot.axis.axis_line_color = None
    plot.axis.major_tick_line_color = None
    plot.axis.minor_tick_line_color = None
    plot.yaxis.ticker = FixedTicker(ticks=[])
    plot.xaxis.visible = plot.yaxis.visible = name == "timeline"
    _add_boxes(plot)
    return plot


def _add_boxes(plot: figure) -> None:
    from bokeh.core.properties import value  # noqa: PLC0415
    from bokeh.models import ColumnDataSource  # noqa: PLC0415

    edges = ("left", "right", "top", "bottom")
    boxes = ColumnDataSource({name: [] for name in (*edges, "fill", "alpha", "line")})
    labels = ColumnDataSource({name: [] for name in ("x", "y", "text", "ink", "alpha")})
    marks = ColumnDataSource({name: [] for name in (*edges, "line")})
    sides = {name: name for name in edges}
    plot.quad(**sides, source=boxes, fill_color="fill", fill_alpha="alpha", line_color="line")
    plot.text(
        "x",
        "y",
        "text",
        source=labels,
        text_color="ink",
        text_alpha="alpha",
        text_font_size="11px",
        text_font=value(_FONT),
        text_baseline="middle",
    )
    plot.quad(**sides, source=marks, fill_color=None, line_color="line", line_width=2.5)
