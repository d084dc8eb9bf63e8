"""Throughput over the batch: the frame of results in, a line for each model out."""

from __future__ import annotations

import polars as pl
from bokeh.models import Band, BasicTickFormatter, ColumnDataSource, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

from xsp.plot.canvas import MOST_MARKS, canvas, legend_of, nothing
from xsp.plot.colour import SERIES
from xsp.plot.document import Plot
from xsp.plot.theme import INK
from xsp.plot.zoo.entry import colours_of, explain, named
from xsp.text import counted
from xsp.zoo import entry_rows, is_measured, models

_QUESTION = "What do larger batches bring?"
_RATE = "throughput_per_s"
_BANDS = ((0.05, 0.95, 0.12), (0.25, 0.75, 0.3))


def zoo_throughput(results: pl.DataFrame) -> Plot:
    """Return the throughput of each model over its batch; of many models the middle and bands.

    Args:
        results: The frame of a zoo's results.
    """
    rows = entry_rows(results).filter(is_measured()).drop_nulls(["batch", _RATE])
    if rows["batch"].n_unique() < 2:  # a curve needs two places
        return Plot(nothing(), _QUESTION)
    drawn = _lines(rows, named(models(results))) if rows.height <= MOST_MARKS else _bands(rows)
    return Plot(drawn, _QUESTION)


def _canvas(rows: pl.DataFrame, y: str, note: str) -> figure:
    drawn = canvas(f"batch{note}", y, height=420, x_axis_type="log", y_axis_type="log")
    places = sorted(rows["batch"].unique().to_list())
    drawn.xaxis.ticker = FixedTicker(ticks=places)
    drawn.xaxis.formatter = drawn.yaxis.formatter = BasicTickFormatter(use_scientific=False)
    drawn.xgrid.visible = False
    return drawn


def _lines(rows: pl.DataFrame, known: pl.DataFrame) -> figure:
    number = counted(rows["entry"].n_unique(), "line")
    drawn = _canvas(rows, "throughput (per second)", f"; {number}")
    lines = rows.group_by("entry", maintain_order=True).agg("batch", _RATE)
    lines = lines.join(known.select("entry", "label", "group"), on="entry", maintain_order="left")
    hues = colours_of(known)
    lines = lines.with_columns(colour=pl.col("group").replace_strict(hues))
    data = {name: lines[name].to_list() for name in ("batch", _RATE, "label", "entry", "colour")}
    marks = drawn.multi_line(
        "batch",
        _RATE,
        source=ColumnDataSource(data),
        line_color="colour",
        line_width=1.6,
        line_alpha=0.7,
        hover_line_width=3.5,
        nonselection_line_alpha=0.1,
    )
    dots = lines.select("batch", _RATE, "label", "entry", "colour").explode("batch", _RATE)
    spots = ColumnDataSource({name: dots[name].to_list() for name in dots.columns})
    drawn.scatter("batch", _RATE, source=spots, size=5, color="colour", alpha=0.7)
    tooltips = [("model", "@label"), ("batch", "$x{0}"), ("throughput", "$y{0.0}/s")]
    drawn.add_tools(HoverTool(tooltips=tooltips, renderers=[marks]))
    explain(drawn, marks, lines["group"].to_list(), hues)
    legend_of(drawn)
    return drawn


def _bands(rows: pl.DataFrame) -> figure:
    """Draw by how much the throughput is above that of each model's smallest batch."""
    first = pl.col(_RATE).first().over("entry")
    gains = rows.with_columns(gain=pl.col(_RATE) / first)
    ends = sorted({end for low, high, _ in _BANDS for end in (low, high)} | {0.5})
    table = gains.group_by("batch").agg(
        *(pl.col("gain").quantile(end).alias(f"q{end}") for end in ends), models=pl.len()
    )
    table = table.sort("batch")
    note = (
        f"; {rows['entry'].n_unique():,} entries: the median, and where half and 90 % of them are"
    )
    drawn = _canvas(rows, "throughput, relative to the smallest batch", note)
    source = ColumnDataSource({name: table[name].to_list() for name in table.columns})
    for low, high, alpha in _BANDS:
        fill = {"fill_color": SERIES[0].light, "fill_alpha": alpha, "line_color": None}
        drawn.add_layout(
            Band(base="batch", lower=f"q{low}", upper=f"q{high}", source=source, **fill)
        )
    drawn.y_range = Range1d(
        0.95 * min(table[f"q{ends[0]}"].to_list()), 1.05 * max(table[f"q{ends[-1]}"].to_list())
    )
    drawn.line("batch", "q0.5", source=source, line_color=INK.light, line_width=2)
    spots = drawn.scatter("batch", "q0.5", source=source, color=INK.light, size=7)
    tooltips = [("batch", "@batch"), ("median", "@{q0.5}{0.00}"), ("models", "@models{0,0}")]
    drawn.add_tools(HoverTool(tooltips=tooltips, renderers=[spots]))
    return drawn
