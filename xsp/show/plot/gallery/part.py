"""Parts: names of rows, parts of bars and layouts, which several pictures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
from bokeh.layouts import column
from bokeh.models import Column
from bokeh.plotting import figure

from xsp.show.plot.bar import Part
from xsp.show.plot.canvas import nothing
from xsp.show.plot.color import SERIES
from xsp.show.plot.theme import GRID

_GREY = SERIES[6]
_NONE = GRID  # of time in which nothing happens
# What is told of work when the pointer rests on it.
WORK = ("flops_per_byte", "flops_per_s", "bytes_per_s", "work_source", "reached_pct")


def under_each_other(figures: Iterable[figure]) -> Column:
    """Return figures under each other, as wide as their page, or one that says that none is."""
    return column(list(figures) or [nothing()], sizing_mode="stretch_width")


def known(table: pl.DataFrame, column: str) -> bool:
    """Return whether a table has a column with anything but nulls and zeros in it."""
    return column in table.columns and bool((table[column] != 0).any())


def named_by_device(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the name of each row's rank, device and stream, as far as it has them."""
    words = [
        pl.format(f"{name} {{}}", name).alias(name)
        for name in ("rank", "device", "stream")
        if name in table.columns
    ]
    name = pl.concat_str(words, separator=", ", ignore_nulls=True)
    return table.with_columns(name=name)


def named_by(table: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return a table with a name for each row, of those columns that vary."""
    varied = [pl.col(name) for name in columns if table[name].n_unique() > 1]
    return table.with_columns(
        name=pl.concat_str(varied or [pl.lit("")], separator=" ", ignore_nulls=True)
    )


def largest_names(table: pl.DataFrame, column: str, value: str, none: str) -> pl.Series:
    """Return a column's names, `other` in place of those whose values sum to little."""
    names = table[column].fill_null(none)
    sums = table.select(names.alias("name"), value=value).group_by("name").agg(pl.sum("value"))
    first = sums.sort("value", "name", descending=[True, False])["name"]
    large = first[: len(SERIES) - 1]
    return pl.select(pl.when(names.is_in(large.implode())).then(names).otherwise(pl.lit("other")))[
        names.name
    ]


def parts_of(bars: pl.DataFrame, rows: Sequence[str]) -> list[Part]:
    """Return the parts that `wide` made columns of, in colors of their order; `other` is gray."""
    columns = [name for name in bars.columns if name not in rows]
    colors = {"other": _GREY, "no layer": _NONE}
    ordered = [name for name in columns if name not in colors]
    colors |= dict(zip(ordered, SERIES, strict=False))
    return [
        Part(name, name, colors[name])
        for name in sorted(columns, key=lambda name: name in ("no layer", "other"))
    ]
