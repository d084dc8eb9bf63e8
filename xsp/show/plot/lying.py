"""Draws the rows of a table as horizontal bars with names, sorted by size or divided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from xsp.answer.analyses import text_of
from xsp.show.plot.axis import scale_of
from xsp.show.plot.bar import OTHER, Part, ends_of_parts
from xsp.show.plot.canvas import canvas, hover, labels, legend_of, source_of
from xsp.show.plot.color import SERIES, Color
from xsp.show.plot.theme import INK

_ROW_PX = 24
MOST_NAMED = 12
_GREY = SERIES[-1]
# Colors of what differs; what may be chance, or is only in one of the traces, is gray.
_VERDICTS = {"slower": SERIES[1], "faster": SERIES[2]}


def by_size(
    table: pl.DataFrame,
    value: str,
    *,
    name: str,
    shown: Sequence[str],
    colors: Sequence[Color] = (),
) -> figure:
    """Return a horizontal bar for each row, the largest on top, small ones summed up as `other`.

    Args:
        table: The table of an analysis.
        value: Column of the lengths, which may be summed up.
        name: Column of the names.
        shown: Columns shown when the pointer rests on a bar.
        colors: Color of each row of the table; without, all have the same.
    """
    hues = [color.light for color in colors or SERIES[:1] * table.height]
    ranked = table.with_columns(pl.Series("_color", hues, dtype=pl.String)).sort(
        value, descending=True, nulls_last=True, maintain_order=True
    )
    kept, rest = ranked[:MOST_NAMED], ranked[MOST_NAMED:].filter(pl.col(value) > 0)
    if ranked.height > MOST_NAMED:
        kept = kept.filter(pl.col(value) > 0)
    if rest.height:
        said = f"{OTHER} ({rest.height})"
        kept = pl.concat(
            [kept, pl.DataFrame({name: [said], value: [rest[value].sum()]})], how="diagonal_relaxed"
        )
    drawn, source = _rows(kept, value, name, shown, kept["_color"].fill_null(_GREY.light))
    source.data["said"] = [
        text_of(value, one) + " %" * value.endswith("_pct") for one in kept[value]
    ]
    look = {"text_baseline": "middle", "text_font_size": "11px", "text_color": INK.light}
    drawn.text(x="right", y="y", text="said", x_offset=4, source=source, **look)
    drawn.x_range.start = 0
    drawn.x_range.end = float(np.nanmax(source.data["right"], initial=0.0)) * 1.15 or 1.0
    return drawn


def _rows(
    kept: pl.DataFrame, value: str, name: str, shown: Sequence[str], colors: pl.Series
) -> tuple[figure, ColumnDataSource]:
    """Return a figure of a lying bar for each row, and the source of these bars."""
    names = labels(kept[name].cast(pl.String).to_list())
    scale = scale_of(value, kept[value])
    height = 70 + _ROW_PX * len(names)
    drawn = canvas(scale.label(value), "", height=height, y_range=names[::-1])
    lengths = scale.of(kept[value])
    source = source_of(kept, shown, y=names, right=lengths, color=colors.to_list())
    look = {"height": 0.75, "fill_color": "color", "line_color": None}
    hover(drawn, kept, shown, drawn.hbar(y="y", right="right", source=source, **look))
    drawn.ygrid.visible = False
    return drawn, source


def difference(table: pl.DataFrame) -> figure:
    """Return a lying bar for each of the largest differences, to the right what costs more.

    Args:
        table: Columns of a comparison (`xsp.compare`): `own_difference_ns`, `verdict`, `change`,
            `path_a`, `path_b`.
    """
    size = pl.col("own_difference_ns")
    kept = table.filter(size != 0).sort(size.abs(), descending=True)[:MOST_NAMED]
    kept = kept.with_columns(path=pl.coalesce("path_b", "path_a"))
    looks = [_VERDICTS.get(verdict, _GREY).light for verdict in kept["verdict"]]
    shown = ("path", "change", "verdict", "own_difference_ns", "difference_ns", "ratio")
    colors = pl.Series(looks, dtype=pl.String)
    return _rows(kept, "own_difference_ns", "path", shown, colors)[0]


def by_name(
    table: pl.DataFrame, parts: Sequence[Part], *, name: str, unit: str, shown: Sequence[str]
) -> figure:
    """Return a lying bar for each row, with its name, of parts beside each other.

    Args:
        table: The table of an analysis.
        parts: The parts, from left to right.
        name: Column of the names.
        unit: What the axis of sizes says, as the name of a column that ends in a unit.
        shown: Columns shown when the pointer rests on a bar.
    """
    scale, ends = ends_of_parts(table, parts, unit)
    names = labels(table[name].cast(pl.String).to_list())
    height = 110 + _ROW_PX * len(names)
    drawn = canvas(scale.label(unit), "", height=height, y_range=names[::-1])
    source = source_of(table, shown, place=names, **ends)
    for at, part in enumerate(parts):
        drawn.hbar(
            y="place",
            left=f"end_{at}",
            right=f"end_{at + 1}",
            height=0.75,
            source=source,
            fill_color=part.color.light,
            line_color=None,
            legend_label=part.said,
        )
    hover(drawn, table, shown, *drawn.renderers)
    drawn.x_range.start = 0
    drawn.ygrid.visible = False
    legend_of(drawn)
    return drawn


def wide(table: pl.DataFrame, rows: Sequence[str], part: str, value: str) -> pl.DataFrame:
    """Return a table with a column for each value of one of its columns, as `lying` takes it.

    Args:
        table: Rows with the size of one part each.
        rows: Columns that say which bar a part is of.
        part: Column of the names of parts.
        value: Column of their sizes; where a bar has a part twice, they are added up.
    """
    return table.pivot(part, index=list(rows), values=value, aggregate_function="sum")
