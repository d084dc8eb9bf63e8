"""The gallery: the table of each analysis in, the picture of that table out.

Each picture bears the name of its analysis: `xsp.plot.layer_latency(trace)` is the picture of
`xsp.analyses.layer_latency(trace)`. `ALL` lists them, in the order of the analyses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl
from bokeh.layouts import column
from bokeh.models import Column
from bokeh.plotting import figure

from xsp import analyses
from xsp.level import Kind
from xsp.plot.bar import Part, by_position, stacked
from xsp.plot.colour import KINDS, SERIES, Colour
from xsp.plot.curve import steps
from xsp.plot.document import Picture
from xsp.plot.lying import MOST_NAMED, by_name, by_size, wide
from xsp.plot.roofline import roofline
from xsp.plot.several import batch_curves

_BLUE, _ORANGE, _GREEN, _PINK, _YELLOW, _SKY, _GREY = SERIES
# Share of the whole below which a part is left out.
_SMALL = 0.002
_LAYER = ("layer", "type", "group", "phase")
_WORK = ("flops_per_byte", "flops_per_s", "bytes_per_s", "work_source", "reached_pct")
_NONE = Colour("#e6e9ee", "#2b3038")  # of time in which nothing happens


# Models


def _model_information(table: pl.DataFrame) -> Column:
    return batch_curves(table, _varied(table))


def _optimal_batch(table: pl.DataFrame) -> Column:
    return batch_curves(table, _varied(table))


def _model_roofline(table: pl.DataFrame) -> figure:
    # What is reached, as a share of the roof at this intensity, says where the roof is.
    roof = 100 * pl.col("flops_per_s") / pl.col("roof_pct")
    memory = pl.col("bound") == "memory"
    slope = roof / pl.when(memory).then("flops_per_byte").otherwise("ideal_flops_per_byte")
    known = table.with_columns(
        memory_bound=memory,
        peak_bytes_per_s=slope,
        peak_flops_per_s=slope * pl.col("ideal_flops_per_byte"),
    )
    shown = ("model", "settings", "batch", "latency_ns", "kernel_ns", *_WORK, "roof_pct")
    return roofline(known, size="kernel_ns", shown=shown, label="batch")


def _varied(table: pl.DataFrame) -> list[str]:
    """Return what tells the lines of batch sizes apart: model and settings, where they vary."""
    return [name for name in ("model", "settings") if table[name].n_unique() > 1]


model_information = Picture("model-information", _model_information)
optimal_batch = Picture("optimal-batch", _optimal_batch)
model_roofline = Picture("model-roofline", _model_roofline)


# Layers


def _layer_latency(table: pl.DataFrame) -> figure:
    shown = (*_LAYER, "own_ns", "share_pct", "latency_ns", "calls", "path")
    return by_position(table, "own_ns", position="index", group="type", shown=shown)


def _layer_memory_allocation(table: pl.DataFrame) -> figure:
    shown = (*_LAYER, "own_allocated_bytes", "share_pct", "kept_bytes", "peak_bytes", "path")
    return by_position(table, "own_allocated_bytes", position="index", group="type", shown=shown)


def _layer_type_distribution(table: pl.DataFrame) -> figure:
    return _by_type(table, "count")


def _layer_latency_by_type(table: pl.DataFrame) -> figure:
    return _by_type(table, "own_ns")


def _layer_memory_by_type(table: pl.DataFrame) -> figure:
    return _by_type(table, "own_allocated_bytes")


def _by_type(table: pl.DataFrame, value: str) -> figure:
    """Return the share of each type, of all groups and phases together."""
    summed = dict.fromkeys(("count", value, "share_pct"))
    types = table.group_by("type", maintain_order=True).agg(pl.col(*summed).sum())
    return by_size(types, "share_pct", name="type", shown=("type", *summed))


def _layer_thirds(table: pl.DataFrame) -> figure:
    measures = ("latency_pct", "allocated_pct", "flops_pct", "accessed_pct")
    parted = _named_by(table, ("group", "phase"))
    long = parted.unpivot(measures, index=["name", "third"], variable_name="measure")
    said = pl.col("measure").str.strip_suffix("_pct")
    long = long.drop_nulls("value").with_columns(
        name=pl.concat_str(
            said, pl.col("name").replace("", None), separator=", ", ignore_nulls=True
        )
    )
    bars = wide(long, ["name"], "third", "value")
    return by_name(bars, _parts_of(bars, ["name"]), name="name", unit="share_pct", shown=("name",))


layer_latency = Picture("layer-latency", _layer_latency)
layer_memory_allocation = Picture("layer-memory-allocation", _layer_memory_allocation)
layer_type_distribution = Picture("layer-type-distribution", _layer_type_distribution)
layer_latency_by_type = Picture("layer-latency-by-type", _layer_latency_by_type)
layer_memory_by_type = Picture("layer-memory-by-type", _layer_memory_by_type)
layer_thirds = Picture("layer-thirds", _layer_thirds)


# Kernels


def _kernel_roofline(table: pl.DataFrame) -> figure:
    shown = ("kernel", "latency_ns", *_WORK, "path")
    return roofline(table, size="latency_ns", shown=shown)


def _kernel_by_name(table: pl.DataFrame) -> figure:
    shown = ("kernel", "count", "latency_ns", "share_pct", *_WORK[:-1])
    colours = [KINDS[Kind.KERNEL]] * table.height
    return by_size(table, "latency_ns", name="kernel", shown=shown, colours=colours)


def _layer_kernel_metrics(table: pl.DataFrame) -> Column:
    shown = ("layer", "type", "flops", "read_bytes", "write_bytes", "work_source", "path")
    return _under_each_other(
        by_position(table, value, position="index", group="type", shown=shown)
        for value in ("flops", "read_bytes", "write_bytes")
    )


def _layer_device_time(table: pl.DataFrame) -> figure:
    parts = (
        Part("kernel_pct", "in kernels", KINDS[Kind.KERNEL]),
        Part("outside_pct", "outside of them", KINDS[Kind.LAYER]),
    )
    shown = ("layer", "type", "own_ns", "kernel_ns", "outside_ns", "kernel_pct", "path")
    return stacked(table, parts, position="index", unit="share_pct", shown=shown)


def _layer_roofline(table: pl.DataFrame) -> figure:
    shown = ("layer", "type", "kernel_ns", *_WORK, "path")
    return roofline(table, size="kernel_ns", shown=shown)


kernel_roofline = Picture("kernel-roofline", _kernel_roofline)
kernel_by_name = Picture("kernel-by-name", _kernel_by_name)
layer_kernel_metrics = Picture("layer-kernel-metrics", _layer_kernel_metrics)
layer_device_time = Picture("layer-device-time", _layer_device_time)
layer_roofline = Picture("layer-roofline", _layer_roofline)


# Structure


def _time_by_level(table: pl.DataFrame) -> figure:
    known = {kind.value: colour for kind, colour in KINDS.items()}
    colours = [known.get(kind, KINDS[Kind.SYNC]) for kind in table["kind"]]
    shown = ("level", "kind", "calls", "own_ns", "share_pct", "latency_ns")
    return by_size(table, "own_ns", name="kind", shown=shown, colours=colours)


def _by_module(table: pl.DataFrame) -> figure:
    named = table.with_columns(module=pl.col("module").replace("", "(the model itself)"))
    shown = ("module", "type", "part", "calls", "own_ns", "own_share_pct", "latency_ns")
    return by_size(named, "own_ns", name="module", shown=shown)


def _by_operator(table: pl.DataFrame) -> figure:
    shown = ("operator", "shapes", "calls", "own_ns", "share_pct", "latency_ns", "kernel_ns")
    colours = [KINDS[Kind.OP]] * table.height
    return by_size(table, "own_ns", name="operator", shown=shown, colours=colours)


def _by_primitive(table: pl.DataFrame) -> figure:
    implementation = pl.col("implementation").fill_null("")
    name = (pl.col("primitive") + " " + implementation).str.strip_chars().alias("name")
    shown = ("primitive", "implementation", "library", "calls", "own_ns", "share_pct")
    colours = [KINDS[Kind.CALL]] * table.height
    shown = (*shown, "flops_per_s", "bytes_per_s")
    return by_size(table.with_columns(name), "own_ns", name="name", shown=shown, colours=colours)


def _side_by_side(table: pl.DataFrame) -> Column:
    large = table.filter(pl.sum("own_ns").over("part") >= _SMALL * pl.sum("own_ns"))
    typed = large.with_columns(type=_largest(large, "type", "trace_share_pct", "no layer"))
    divided = typed.filter((pl.col("type") != "no layer").any().over("part"))
    drawn = []
    for rows, value in ((typed, "own_ns"), (divided, "share_pct")):
        bars = wide(rows, ["part"], "type", value)
        parts = _parts_of(bars, ["part"])
        drawn.append(by_name(bars, parts, name="part", unit=value, shown=("part",)))
    return _under_each_other(drawn)


def _attribution(table: pl.DataFrame) -> figure:
    sums = table.filter(pl.col("name").is_null())
    said = sums.with_columns(share=pl.col("time") + " under " + pl.col("under"))
    shown = ("time", "under", "calls", "latency_ns", "share_pct")
    colours = [_GREY if under == "nothing" else _BLUE for under in sums["under"]]
    return by_size(said, "share_pct", name="share", shown=shown, colours=colours)


time_by_level = Picture("time-by-level", _time_by_level)
by_module = Picture("by-module", _by_module)
by_operator = Picture("by-operator", _by_operator)
by_primitive = Picture("by-primitive", _by_primitive)
side_by_side = Picture("side-by-side", _side_by_side)
attribution = Picture("attribution", _attribution)


# Devices


def _device_time(table: pl.DataFrame) -> figure:
    parts = (
        Part("computing", "computing", KINDS[Kind.KERNEL]),
        Part("exposed communication", "exposed communication", _GREEN),
        Part("exposed copies", "exposed copies", KINDS[Kind.MEMCPY]),
        Part("idle", "idle", _NONE),
    )
    bars = _named_by_device(wide(table, ["rank", "device"], "part", "time_ns"))
    return by_name(bars, parts, name="name", unit="time_ns", shown=("name",))


def _device_idle(table: pl.DataFrame) -> figure:
    bars = _named_by_device(wide(table, ["rank", "device", "stream"], "cause", "idle_ns"))
    causes = {"host": _BLUE, "launch": _YELLOW, "stream": _ORANGE, "queue": _SKY, "unknown": _GREY}
    parts = [
        Part(cause, cause, colour) for cause, colour in causes.items() if cause in bars.columns
    ]
    return by_name(bars, parts, name="name", unit="idle_ns", shown=("name",))


def _communication(table: pl.DataFrame) -> figure:
    bars = _named_by_device(table.with_columns(hidden_ns=pl.col("time_ns") - pl.col("exposed_ns")))
    bars = bars.with_columns(name=pl.col("collective") + ", " + pl.col("name"))
    parts = (
        Part("exposed_ns", "exposed", _ORANGE),
        Part("hidden_ns", "hidden behind computing", _SKY),
    )
    shown = ("collective", "name", "group", "count", "time_ns", "exposed_ns", "bus_bytes_per_s")
    return by_name(bars, parts, name="name", unit="time_ns", shown=shown)


def _rank_imbalance(table: pl.DataFrame) -> figure:
    shown = ("name", "made_wait_ns", "waiting_ns", "last", "collectives", "late_median_ns")
    return by_size(_named_by_device(table), "made_wait_ns", name="name", shown=shown)


device_time = Picture("device-time", _device_time)
device_idle = Picture("device-idle", _device_idle)
communication = Picture("communication", _communication)
rank_imbalance = Picture("rank-imbalance", _rank_imbalance)


# Memory


def _memory_peak(table: pl.DataFrame) -> figure:
    named = table.with_columns(layer=pl.col("layer").replace("", "(the model)").fill_null("(none)"))
    shown = ("layer", "type", "operator", "alive_bytes", "share_pct", "part", "at")
    return by_size(named, "alive_bytes", name="layer", shown=shown)


def _memory_timeline(table: pl.DataFrame) -> figure:
    told = ("path", "layer", "operator")
    during = table.select(*told, at_ns="start_ns", held_bytes="highest_bytes")
    after = table.select(*told, at_ns="end_ns", held_bytes="after_bytes")
    order = pl.concat([during, after]).sort("at_ns", maintain_order=True)
    return steps(order, "at_ns", "held_bytes", shown=("layer", "operator", "held_bytes", "path"))


def _memory_by_layer(table: pl.DataFrame) -> figure:
    parts = (
        Part("parameter_bytes", "parameters", _BLUE),
        Part("buffer_bytes", "buffers", _SKY),
        Part("activation_bytes", "activations left behind", _ORANGE),
    )
    named = table.with_columns(
        layer=pl.col("layer").replace("", "(the model itself)"),
        activation_bytes=pl.col("kept_bytes").clip(lower_bound=0),
    )
    size = pl.sum_horizontal(part.column for part in parts)
    largest = named.sort(size, descending=True)[:MOST_NAMED]
    shown = ("layer", "type", "calls", "parameter_bytes", "buffer_bytes", "kept_bytes")
    return by_name(largest, parts, name="layer", unit="held_bytes", shown=shown)


def _allocations_by_operator(table: pl.DataFrame) -> figure:
    shown = ("operator", "calls", "temporary_bytes", "temporary_share_pct", "allocated_bytes")
    colours = [KINDS[Kind.OP]] * table.height
    return by_size(table, "temporary_bytes", name="operator", shown=shown, colours=colours)


memory_peak = Picture("memory-peak", _memory_peak)
memory_timeline = Picture("memory-timeline", _memory_timeline)
memory_by_layer = Picture("memory-by-layer", _memory_by_layer)
allocations_by_operator = Picture("allocations-by-operator", _allocations_by_operator)


# Layouts, and names and parts of bars


def _under_each_other(figures: Iterable[figure]) -> Column:
    return column(list(figures), sizing_mode="stretch_width")


def _named_by_device(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the name of each row's rank, device and stream, as far as it has them."""
    words = [
        pl.format(f"{name} {{}}", name).alias(name)
        for name in ("rank", "device", "stream")
        if name in table.columns
    ]
    name = pl.concat_str(words, separator=", ", ignore_nulls=True)
    return table.with_columns(name=name)


def _named_by(table: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return a table with a name for each row, of those columns that vary."""
    varied = [name for name in columns if table[name].n_unique() > 1] or [pl.lit("")]
    return table.with_columns(name=pl.concat_str(varied, separator=" ", ignore_nulls=True))


def _largest(table: pl.DataFrame, column: str, value: str, none: str) -> pl.Series:
    """Return a column's names, `other` in place of those whose values sum to little."""
    names = table[column].fill_null(none)
    sums = table.select(names.alias("name"), value=value).group_by("name").agg(pl.sum("value"))
    first = sums.sort("value", "name", descending=[True, False])["name"]
    large = first[: len(SERIES) - 1]
    return pl.select(pl.when(names.is_in(large.implode())).then(names).otherwise(pl.lit("other")))[
        names.name
    ]


def _parts_of(bars: pl.DataFrame, rows: Sequence[str]) -> list[Part]:
    """Return the parts that `wide` made columns of, in colours of their order; `other` is gray."""
    columns = [name for name in bars.columns if name not in rows]
    ordered = [name for name in columns if name != "other"]
    parts = [Part(name, name, SERIES[at]) for at, name in enumerate(ordered)]
    return parts + [Part(name, name, _GREY) for name in columns if name == "other"]


ALL: tuple[Picture, ...] = (
    model_information,
    optimal_batch,
    model_roofline,
    layer_latency,
    layer_memory_allocation,
    layer_type_distribution,
    layer_latency_by_type,
    layer_memory_by_type,
    layer_thirds,
    kernel_roofline,
    kernel_by_name,
    layer_kernel_metrics,
    layer_device_time,
    layer_roofline,
    time_by_level,
    by_module,
    by_operator,
    by_primitive,
    side_by_side,
    attribution,
    device_time,
    device_idle,
    communication,
    rank_imbalance,
    memory_peak,
    memory_timeline,
    memory_by_layer,
    allocations_by_operator,
)


def picture_of(analysis: analyses.Analysis[Any]) -> Picture | None:
    """Return the picture of an analysis, None where its table says more than a picture would."""
    return next((picture for picture in ALL if picture.name == analysis.name), None)
