"""Makes the empty figures of plots, and the sources of their marks, for tables.

A source has the columns that the marks are drawn from. Beside them stand, under their own names,
the table's texts that are shown when the pointer rests on a mark, with `path` and `span_id` of
the span that the mark stands for, where the table has these; and of each number that is shown
a text, as `text_latency_ns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from bokeh.core.properties import value as constant
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    PanTool,
    ResetTool,
    SaveTool,
    TapTool,
    WheelZoomTool,
)
from bokeh.plotting import figure

from xsp.answer.analyses import ends_of, estimate_of, heading_of
from xsp.show.plot.theme import FAINT, GRID, INK, PAPER
from xsp.text import shorten

# Columns by which a page finds the span that a mark stands for, whatever else is shown of it.
_LINKS = ("path", "span_id")
_LONGEST = 36
# A browser draws as many within a second, and a figure has some thousand pixels of width.
MOST_MARKS = 5_000
_FONT = "system-ui, sans-serif"


def canvas(x: str, y: str, *, height: int = 320, **more: Any) -> figure:
    """Return an empty figure in the colors of a light page.

    Args:
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        height: Height in pixels; the width is that of the page.
        more: What `bokeh.plotting.figure` takes.
    """
    tools = [PanTool(), BoxZoomTool(), WheelZoomTool(), TapTool(), ResetTool(), SaveTool()]
    drawn = figure(
        height=height,
        sizing_mode="stretch_width",
        tools=tools,
        toolbar_location="right",
        x_axis_label=x,
        y_axis_label=y,
        **more,
    )
    drawn.toolbar.logo = None
    drawn.toolbar.autohide = True
    drawn.background_fill_color = drawn.border_fill_color = PAPER.light
    drawn.outline_line_color = None
    for axis in drawn.axis:
        axis.axis_label_text_color = axis.major_label_text_color = INK.light
        axis.axis_line_color = axis.major_tick_line_color = FAINT.light
        axis.minor_tick_line_color = None
        axis.axis_label_text_font = axis.major_label_text_font = _FONT
        axis.axis_label_text_font_style = "normal"
    for grid in drawn.grid:
        grid.grid_line_color = GRID.light
    return drawn


def nothing() -> figure:
    """Return a figure that says that there is nothing to draw."""
    drawn = canvas("", "", height=60, x_range=(0, 1), y_range=(-1, 1))
    drawn.tags = ["nothing"]
    drawn.toolbar_location = None
    drawn.axis.visible = drawn.grid.visible = False
    said = "There is nothing to draw: the table has no rows, or nothing but zeros."
    look = {"text_baseline": "middle", "text_color": FAINT.light, "text_font": constant(_FONT)}
    drawn.text(x=[0], y=[0], text=[said], **look)
    return drawn


def largest(table: pl.DataFrame, value: str) -> tuple[pl.DataFrame, str]:
    """Return the rows with the largest values, as many as are drawn, and a note on the others."""
    if table.height <= MOST_MARKS:
        return table, ""
    place = pl.int_range(pl.len())
    kept = table.with_columns(_place=place).sort(value, descending=True, nulls_last=True)
    said = f"; the {MOST_MARKS:,} largest of {table.height:,} are drawn"
    return kept[:MOST_MARKS].sort("_place").drop("_place"), said


def legend_of(drawn: figure) -> None:
    """Put the legend of a figure, if it has one, above its marks."""
    for legend in drawn.legend:
        legend.label_text_color = INK.light
        legend.label_text_font = _FONT
        legend.background_fill_color = None
        legend.border_line_color = None
        legend.orientation = "horizontal"
        legend.nrows = "auto"
        legend.padding = 2
        drawn.add_layout(legend, "above")


def source_of(table: pl.DataFrame, shown: Sequence[str], **drawn: Any) -> ColumnDataSource:
    """Return the source of marks, one for each row of a table.

    Args:
        table: The table of an analysis.
        shown: Columns whose values are shown when the pointer rests on a mark.
        drawn: Columns that the marks are drawn from.
    """
    told = [name for name in dict.fromkeys((*_LINKS, *shown)) if name in table.columns]
    texts = {_key(table[name]): _texts(table, name) for name in told}
    return ColumnDataSource({**texts, **drawn})


def _key(values: pl.Series) -> str:
    """Return the name in a source of a column of a table."""
    return (
        values.name if values.name in _LINKS or values.dtype == pl.String else f"text_{values.name}"
    )


def _texts(table: pl.DataFrame, name: str) -> list[str]:
    """Return the texts of a column, numbers with the reach of their intervals."""
    values = table[name]
    if name in _LINKS or values.dtype == pl.String:
        # An identifier of 64 bits is no number of JavaScript.
        return values.cast(pl.String).fill_null("").to_list()
    cells = zip(*(table[one] for one in (name, *ends_of(table.columns).get(name, ()))), strict=True)
    return [estimate_of(name, *cell) for cell in cells]


def hover(drawn: figure, table: pl.DataFrame, shown: Sequence[str], *marks: Any) -> None:
    """Let a figure show columns, those with any value, of the mark on which the pointer rests."""
    told = [name for name in shown if name in table.columns and table[name].count()]
    said = [(heading_of(name), f"@{{{_key(table[name])}}}") for name in told]
    drawn.add_tools(HoverTool(tooltips=said, renderers=list(marks) or "auto"))


def labels(names: Sequence[str | None]) -> list[str]:
    """Return names short enough for an axis, and different from each other.

    >>> labels(["a", "a", None])
    ['a', 'a (2)', '—']
    """
    seen: dict[str, int] = {}
    found = []
    for name in names:
        short = shorten(name or "—", _LONGEST)
        seen[short] = number = seen.get(short, 0) + 1
        found.append(short if number == 1 else f"{short} ({number})")
    return found
