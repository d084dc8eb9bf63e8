"""Draws analyses by level, module, operator and part as horizontal bars."""

from __future__ import annotations

import polars as pl
from bokeh.models import Column
from bokeh.plotting import figure

from xsp.level import Kind
from xsp.show.plot.color import KINDS, SERIES
from xsp.show.plot.document import Picture
from xsp.show.plot.gallery.part import largest_names, parts_of, under_each_other
from xsp.show.plot.lying import by_name, by_size, wide

_BLUE = SERIES[0]
_GREY = SERIES[6]
# Share of the whole below which a part is left out.
_SMALL = 0.002


def _level_latency(table: pl.DataFrame) -> figure:
    known = {kind.value: color for kind, color in KINDS.items()}
    colors = [known.get(kind, KINDS[Kind.SYNC]) for kind in table["kind"]]
    shown = ("level", "kind", "calls", "own_ns", "share_pct", "latency_ns")
    return by_size(table, "own_ns", name="kind", shown=shown, colors=colors)


def _layer_type_work(table: pl.DataFrame) -> figure:
    named = table.with_columns(pl.col("layer_type").fill_null("not known"))
    shown = ("layer_type", "calls", "own_ns", "share_pct", "flops", "flops_per_s", "classes")
    return by_size(named, "own_ns", name="layer_type", shown=shown)


def _module_latency(table: pl.DataFrame) -> figure:
    named = table.with_columns(module=pl.col("module").replace("", "(the model itself)"))
    shown = ("module", "type", "part", "calls", "own_ns", "own_share_pct", "latency_ns")
    return by_size(named, "own_ns", name="module", shown=shown)


def _operator_latency(table: pl.DataFrame) -> figure:
    shown = ("operator", "shapes", "calls", "own_ns", "share_pct", "latency_ns", "kernel_ns")
    colors = [KINDS[Kind.OP]] * table.height
    return by_size(table, "own_ns", name="operator", shown=shown, colors=colors)


def _primitive_latency(table: pl.DataFrame) -> figure:
    implementation = pl.col("implementation").fill_null("")
    name = (pl.col("primitive") + " " + implementation).str.strip_chars().alias("name")
    told = ("primitive", "implementation", "library", "calls", "own_ns", "share_pct")
    colors = [KINDS[Kind.CALL]] * table.height
    shown = (*told, "flops_per_s", "bytes_per_s")
    return by_size(table.with_columns(name), "own_ns", name="name", shown=shown, colors=colors)


def _side_by_side(table: pl.DataFrame) -> Column:
    large = table.filter(pl.sum("own_ns").over("part") >= _SMALL * pl.sum("own_ns"))
    typed = large.with_columns(type=largest_names(large, "type", "trace_share_pct", "no layer"))
    divided = typed.filter((pl.col("type") != "no layer").any().over("part"))
    parts = parts_of(wide(typed, ["part"], "type", "own_ns"), ["part"])
    drawn = []
    for rows, value in ((typed, "own_ns"), (divided, "share_pct")):
        bars = wide(rows, ["part"], "type", value)
        there = [part for part in parts if part.column in bars.columns]
        if there:  # no part has layers where devices alone were recorded
            drawn.append(by_name(bars, there, name="part", unit=value, shown=("part",)))
    return under_each_other(drawn)


def _attribution(table: pl.DataFrame) -> figure:
    sums = table.filter(pl.col("name").is_null())
    said = sums.with_columns(share=pl.col("time") + " under " + pl.col("under"))
    shown = ("time", "under", "calls", "latency_ns", "share_pct")
    colors = [_GREY if under == "nothing" else _BLUE for under in sums["under"]]
    return by_size(said, "share_pct", name="share", shown=shown, colors=colors)


def _advice(table: pl.DataFrame) -> figure:
    shown = ("rule", "advice", "gain_ns", "gain_pct", "estimate", "evidence")
    return by_size(table, "gain_ns", name="rule", shown=shown)


level_latency = Picture("level-latency", _level_latency)
layer_type_work = Picture("layer-type-work", _layer_type_work)
module_latency = Picture("module-latency", _module_latency)
operator_latency = Picture("operator-latency", _operator_latency)
primitive_latency = Picture("primitive-latency", _primitive_latency)
side_by_side = Picture("side-by-side", _side_by_side)
attribution = Picture("attribution", _attribution)
advice = Picture("advice", _advice)
