"""Bars: tables in, bars by position, bars sorted by size, and stacked bars out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from bokeh.core.properties import value as constant
from bokeh.models import ColumnDataSource, GlyphRenderer, Legend, LegendItem, Whisker
from bokeh.plotting import figure

from xsp.analyses import text_of
from xsp.plot.axis import Scale, scale_of
from xsp.plot.canvas import canvas, hover, labels, legend_of, source_of
from xsp.plot.colour import SERIES, Colour
from xsp.plot.theme import INK

# More bars than this have no whiskers: they would hide the bars.
_MOST_WHISKERS = 120
_OTHER = "other"
_ROW_PX = 24


def by_position(
    table: pl.DataFrame,
    value: str,
    *,
    position: str,
    places_said: str,
    group: str | None = None,
    interval: tuple[str, str] | None = None,
    shown: Sequence[str],
) -> figure:
    """Return a bar for each row, side by side in their order.

    Args:
        table: The table of an analysis.
        value: Column of the heights.
        position: Column of the places, whole numbers.
        places_said: What the places are.
        group: Column of groups; those with the largest sums have a colour each.
        interval: Columns of the ends of the values' intervals.
        shown: Columns shown when the pointer rests on a bar.
    """
    scale = scale_of(value, table[value])
    places = table[position]
    drawn = canvas(places_said, scale.label(value), marks=table.height)
    source = source_of(
        table,
        shown,
        x=places.to_numpy(),
        top=scale.of(table[value]),
        **_groups(table, group, value),
    )
    bars = drawn.vbar(
        x="x",
        top="top",
        width=0.9 if table.height < 400 else 1.0,
        fill_color="colour",
        line_color=None,
        source=source,
    )
    if group:
        _explain(drawn, bars)
    if interval and table.height <= _MOST_WHISKERS:
        _whiskers(drawn, table, interval, scale, places)
    hover(drawn, table, shown, bars)
    drawn.y_range.start = 0
    drawn.x_range.range_padding = 0.01
    drawn.xgrid.visible = False
    legend_of(drawn)
    return drawn


def _groups(table: pl.DataFrame, group: str | None, value: str) -> dict[str, list[str]]:
    """Return the group of each row, and its colour: the gray is that of all small ones."""
    if group is None:
        return {"colour": [SERIES[0].light] * table.height}
    names = table[group].fill_null("—")
    sums = table.select(name=names, value=value).group_by("name", maintain_order=True).sum()
    first = sums.sort("value", descending=True, nulls_last=True, maintain_order=True)["name"]
    large = first[: len(SERIES) - 1].to_list()
    colours = {name: SERIES[at].light for at, name in enumerate(large)}
    shown = [name if name in colours else _OTHER for name in names]
    return {"group": shown, "colour": [colours.get(name, SERIES[-1].light) for name in shown]}


def _explain(drawn: figure, bars: GlyphRenderer) -> None:
    """Give a figure a legend of the groups of its bars, the largest group first."""
    groups, colours = bars.data_source.data["group"], bars.data_source.data["colour"]
    order = [colour.light for colour in SERIES]
    first = {group: (order.index(colours[at]), at) for at, group in reversed([*enumerate(groups)])}
    items = [
        LegendItem(label=constant(group), renderers=[bars], index=first[group][1])
        for group in sorted(first, key=first.__getitem__)
    ]
    drawn.add_layout(Legend(items=items), "above")


def _whiskers(
    drawn: figure,
    table: pl.DataFrame,
    interval: tuple[str, str],
    scale: Scale,
    places: pl.Series,
) -> None:
    lower, upper = (scale.of(table[name]) for name in interval)
    known = ~np.isnan(lower) & ~np.isnan(upper)
    ends = {"x": places.to_numpy()[known], "lower": lower[known], "upper": upper[known]}
    whisker = Whisker(
        base="x", lower="lower", upper="upper", source=ColumnDataSource(ends), line_color=INK.light
    )
    for head in (whisker.lower_head, whisker.upper_head):
        head.size = 4
        head.line_color = INK.light
    drawn.add_layout(whisker)


def by_size(
    table: pl.DataFrame,
    value: str,
    *,
    name: str,
    shown: Sequence[str],
    most: int = 12,
    colour: Colour = SERIES[0],
    colours: Sequence[Colour] | None = None,
) -> figure:
    """Return a horizontal bar for each row, the largest on top, small ones summed up as `other`.

    Args:
        table: The table of an analysis.
        value: Column of the lengths, which may be summed up.
        name: Column of the names.
        shown: Columns shown when the pointer rests on a bar.
        most: How many bars have a name.
        colour: Colour of all bars.
        colours: Colour of each row of the table instead.
    """
    hues = [colour.light] * table.height if colours is None else [one.light for one in colours]
    ranked = table.with_columns(pl.Series("_colour", hues, dtype=pl.String)).sort(
        value, descending=True, nulls_last=True, maintain_order=True
    )
    kept, rest = ranked[:most], ranked[most:]
    if rest.height:
        said = f"{_OTHER} ({rest.height})"
        kept = pl.concat(
            [kept, pl.DataFrame({name: [said], value: [rest[value].sum()]})], how="diagonal_relaxed"
        )
    names = labels(kept[name].cast(pl.String).to_list())
    scale = scale_of(value, kept[value])
    drawn = canvas(scale.label(value), "", height=70 + _ROW_PX * len(names), y_range=names[::-1])
    lengths = scale.of(kept[value])
    source = source_of(
        kept,
        shown,
        y=names,
        right=lengths,
        colour=kept["_colour"].fill_null(SERIES[-1].light).to_list(),
        said=[text_of(value, one) for one in kept[value]],
    )
    bars = drawn.hbar(
        y="y", right="right", height=0.75, fill_color="colour", line_color=None, source=source
    )
    drawn.text(
        x="right",
        y="y",
        text="said",
        x_offset=4,
        text_baseline="middle",
        text_font_size="11px",
        text_color=INK.light,
        source=source,
    )
    hover(drawn, kept, shown, bars)
    drawn.x_range.start = 0
    drawn.x_range.end = float(np.nanmax(lengths, initial=0.0)) * 1.15 or 1.0
    drawn.ygrid.visible = False
    return drawn


def stacked(
    table: pl.DataFrame,
    parts: Mapping[str, tuple[str, Colour]],
    *,
    name: str,
    shown: Sequence[str],
    unit: str = "part_ns",
    horizontal: bool = False,
) -> figure:
    """Return a bar for each row, made of several columns on top of each other.

    Args:
        table: The table of an analysis.
        parts: Columns, and name and colour of each, from the bottom up.
        name: Column of the places: whole numbers, or with `horizontal` names.
        shown: Columns shown when the pointer rests on a bar.
        unit: What the values' axis says, as a column's name with its unit.
        horizontal: Whether bars lie, with their names beside them.
    """
    sums = table.select(pl.sum_horizontal(*parts).alias("sum"))["sum"]
    scale = scale_of(unit, sums)
    ends = np.cumsum([np.nan_to_num(scale.of(table[part])) for part in parts], axis=0)
    starts = np.vstack([np.zeros(table.height), ends[:-1]])
    if horizontal:
        places = labels(table[name].cast(pl.String).to_list())
        height = 110 + _ROW_PX * len(places)
        drawn = canvas(scale.label(unit), "", height=height, y_range=places[::-1])
    else:
        places = table[name].to_list()
        drawn = canvas(name, scale.label(unit), marks=table.height * len(parts))
    source = source_of(
        table,
        shown,
        place=places,
        **{f"from_{at}": starts[at] for at in range(len(parts))},
        **{f"to_{at}": ends[at] for at in range(len(parts))},
    )
    marks = []
    for at, (said, colour) in enumerate(parts.values()):
        look = {"fill_color": colour.light, "line_color": None, "legend_label": said}
        if horizontal:
            bar = drawn.hbar(
                y="place", left=f"from_{at}", right=f"to_{at}", height=0.75, source=source, **look
            )
        else:
            bar = drawn.vbar(
                x="place", bottom=f"from_{at}", top=f"to_{at}", width=0.9, source=source, **look
            )
        marks.append(bar)
    hover(drawn, table, shown, *marks)
    values = drawn.x_range if horizontal else drawn.y_range
    values.start = 0
    (drawn.ygrid if horizontal else drawn.xgrid).visible = False
    legend_of(drawn)
    return drawn
