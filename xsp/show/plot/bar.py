"""Draws the rows of a table as vertical bars, side by side in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from bokeh.core.properties import value as constant
from bokeh.models import Legend, LegendItem
from bokeh.plotting import figure

from xsp.show.plot.axis import Floats, Scale, scale_of
from xsp.show.plot.canvas import canvas, hover, largest, legend_of, source_of
from xsp.show.plot.color import SERIES, Color

OTHER = "other"


def by_position(
    table: pl.DataFrame,
    value: str,
    *,
    position: str,
    group: str | None = None,
    shown: Sequence[str],
    colored_by: str | None = None,
) -> figure:
    """Return a bar for each row, side by side in their order.

    Args:
        table: The table of an analysis.
        value: Column of the heights.
        position: Column of the places, whole numbers.
        group: Column of groups; those with the largest sums have a color each.
        shown: Columns shown when the pointer rests on a bar.
        colored_by: Column by whose sums groups get their colors, the same in several charts of
            one table; None: that of the heights.
    """
    colors = _colors(table, group, colored_by or value) if group else {}
    table, note = largest(table, value)
    scale = scale_of(value, table[value])
    drawn = canvas(scale_of(position).label(position) + note, scale.label(value))
    source = source_of(
        table,
        shown,
        x=table[position].to_numpy(),
        top=scale.of(table[value]),
        **_groups(table, group, colors),
    )
    bars = drawn.vbar(
        x="x",
        top="top",
        width=0.9 if table.height < 400 else 1.0,
        fill_color="color",
        line_color=None,
        source=source,
    )
    if group:
        # A figure a legend of the groups of its bars, the largest group first.
        groups, colors = bars.data_source.data["group"], bars.data_source.data["color"]
        order = [color.light for color in SERIES]
        first = {
            group: (order.index(colors[at]), at) for at, group in reversed([*enumerate(groups)])
        }
        items = [
            LegendItem(label=constant(group), renderers=[bars], index=first[group][1])
            for group in sorted(first, key=first.__getitem__)
        ]
        drawn.add_layout(Legend(items=items), "above")
    hover(drawn, table, shown, bars)
    drawn.y_range.start = 0
    drawn.x_range.range_padding = 0.01
    drawn.xgrid.visible = False
    legend_of(drawn)
    return drawn


def _colors(table: pl.DataFrame, group: str, value: str) -> dict[str, str]:
    """Return a color for each of the groups with the largest sums."""
    sums = table.select(name=table[group].fill_null("—"), value=value)
    ordered = (
        sums.group_by("name", maintain_order=True)
        .sum()
        .sort("value", descending=True, nulls_last=True, maintain_order=True)
    )
    large = ordered["name"][: len(SERIES) - 1].to_list()
    return {name: SERIES[at].light for at, name in enumerate(large)}


def _groups(table: pl.DataFrame, group: str | None, colors: dict[str, str]) -> dict[str, list[str]]:
    """Return the group of each row, and its color: the gray is that of all small ones."""
    if group is None:
        return {"color": [SERIES[0].light] * table.height}
    names = table[group].fill_null("—")
    shown = [name if name in colors else OTHER for name in names]
    return {"group": shown, "color": [colors.get(name, SERIES[-1].light) for name in shown]}


class Part(NamedTuple):
    """A part of stacked bars: the column of its sizes, its name and its color."""

    column: str
    said: str
    color: Color


def stacked(
    table: pl.DataFrame,
    parts: Sequence[Part],
    *,
    position: str,
    unit: str,
    shown: Sequence[str],
) -> figure:
    """Return a bar for each row, side by side in their order, of parts on top of each other.

    Args:
        table: The table of an analysis.
        parts: The parts, from the bottom up.
        position: Column of the places, whole numbers.
        unit: What the axis of sizes says, as the name of a column that ends in a unit.
        shown: Columns shown when the pointer rests on a bar.
    """
    whole = pl.sum_horizontal(part.column for part in parts)
    table, note = largest(table.with_columns(_whole=whole), "_whole")
    scale, ends = ends_of_parts(table, parts, unit)
    drawn = canvas(scale_of(position).label(position) + note, scale.label(unit))
    source = source_of(table, shown, place=table[position].to_numpy(), **ends)
    for at, part in enumerate(parts):
        drawn.vbar(
            x="place",
            bottom=f"end_{at}",
            top=f"end_{at + 1}",
            width=0.9,
            source=source,
            fill_color=part.color.light,
            line_color=None,
            legend_label=part.said,
        )
    hover(drawn, table, shown, *drawn.renderers)
    drawn.y_range.start = 0
    drawn.x_range.range_padding = 0.01
    drawn.xgrid.visible = False
    legend_of(drawn)
    return drawn


def ends_of_parts(
    table: pl.DataFrame, parts: Sequence[Part], unit: str
) -> tuple[Scale, dict[str, Floats]]:
    """Return the unit of stacked bars, and where each of their parts begins and ends."""
    scale = scale_of(unit, table.select(sum=pl.sum_horizontal(p.column for p in parts))["sum"])
    sizes = [np.nan_to_num(scale.of(table[part.column])) for part in parts]
    ends = np.cumsum([np.zeros(table.height), *sizes], axis=0)
    return scale, {f"end_{at}": row for at, row in enumerate(ends)}
