"""Pictures of zoos, which show the models of the frame of results beside each other.

Up to some thousand marks each model has its own; of more, pictures show how many models lie where,
or what the middle of them does, and say so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from bokeh.core.properties import value as constant
from bokeh.models import (
    Band,
    BasicTickFormatter,
    ColumnDataSource,
    FixedTicker,
    GlyphRenderer,
    HoverTool,
    Label,
    Legend,
    LegendItem,
    Range1d,
)
from bokeh.plotting import figure

from xsp.answer.analyses import text_of
from xsp.answer.zoo import (
    THIRDS,
    ZooTable,
    entry_rows,
    is_measured,
    labels_of,
    layer_types,
    models,
    primitives,
    roofs,
    thirds_by_quantity,
    varying,
)
from xsp.show.plot.axis import Floats, scale_of
from xsp.show.plot.bar import Part
from xsp.show.plot.canvas import MOST_MARKS, canvas, hover, labels, legend_of, nothing, source_of
from xsp.show.plot.color import SERIES
from xsp.show.plot.document import Plot
from xsp.show.plot.lying import by_name
from xsp.show.plot.roofline import ticks
from xsp.show.plot.theme import FAINT, INK, PAPER
from xsp.text import counted

Colors = Mapping[str, str]  # by group

_OTHER_GROUP = "other"


def named(models: pl.DataFrame) -> pl.DataFrame:
    """Return the table of models with `entry`, its row, `label`, what to call it, and `group`."""
    labels, group = distinct_labels(models), group_of(models)
    said = pl.lit("") if group is None else _largest_groups(models, group)
    return models.with_row_index("entry").with_columns(label=labels, group=said)


def distinct_labels(entries: pl.DataFrame) -> pl.Series:
    """Return the name of each entry: where several are called the same, with what differs.

    Args:
        entries: Columns of `xsp.zoo.IDENTITY`, a row for each entry.
    """
    labels = labels_of(entries)
    if labels.n_unique() == entries.height:
        return labels
    settings = [json.loads(text) for text in entries["variant"]]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for label, own in zip(labels, settings, strict=True):
        for name, value in own.items():
            values[label, name].add(str(value))
    said = [
        ", ".join([label, *(f"{name} {own[name]}" for name in own if len(values[label, name]) > 1)])
        for label, own in zip(labels, settings, strict=True)
    ]
    return pl.Series("label", said, dtype=pl.String)


def group_of(models: pl.DataFrame) -> str | None:
    """Return the column by which models have colors: what varies first, else their family."""
    names = [*varying(models), "family"]
    return next((name for name in names if models[name].drop_nulls().n_unique() > 1), None)


def colors_of(named_models: pl.DataFrame) -> dict[str, str]:
    """Return the color of each group, the gray that of all small ones."""
    groups = named_models["group"].unique(maintain_order=True).to_list()
    large = [group for group in groups if group != _OTHER_GROUP]
    colors = {group: SERIES[at].light for at, group in enumerate(large)}
    return colors | ({_OTHER_GROUP: SERIES[-1].light} if _OTHER_GROUP in groups else {})


def explain(drawn: figure, marks: GlyphRenderer, groups: Sequence[str], known: Colors) -> None:
    """Give a figure a legend of the groups of its marks.

    All marks have one source, so that all others fade beside one that is selected.
    """
    items = [
        LegendItem(label=constant(group), renderers=[marks], index=groups.index(group))
        for group in known
        if group and group in groups
    ]
    if items:
        drawn.add_layout(Legend(items=items), "above")


def _largest_groups(models: pl.DataFrame, column: str) -> pl.Series:
    """Return the value of a column where it is one of the most frequent, else `other`."""
    values = models[column].cast(pl.String).fill_null(_OTHER_GROUP)
    counted = values.value_counts(sort=True)[column]
    large = [name for name in counted if name != _OTHER_GROUP]
    if len(large) > len(SERIES) - 1:
        large = large[: len(SERIES) - 1]
    kept = values.is_in(large)
    return values.zip_with(kept, pl.Series([_OTHER_GROUP])).alias("group")


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


_SMALLEST_PX, _LARGEST_PX = 6.0, 42.0
_NAMED = 40  # models that have their name beside their bubble
_ACCURACY_SHOWN = (
    *("label", "family", "accuracy_pct", "online_latency_ns", "max_throughput_per_s"),
    *("parameter_bytes", "optimal_batch"),
)
_ACCURACY_QUESTION = "What does accuracy cost in latency?"


def zoo_accuracy(results: pl.DataFrame) -> Plot:
    """Return accuracy against the latency at batch 1; the area of a bubble are the parameters.

    Args:
        results: The frame of a zoo's results.
    """
    known = named(models(results)).drop_nulls(["accuracy_pct", "online_latency_ns"])
    return Plot(_bubbles(known) if known.height else nothing(), _ACCURACY_QUESTION)


def _bubbles(known: pl.DataFrame) -> figure:
    middle = known.select(pl.median("online_latency_ns")).to_series()
    scale = scale_of("online_latency_ns", middle)
    many = known.height > MOST_MARKS
    note = f"; {known.height:,} entries, counted" if many else "; area: parameters"
    label = f"latency at batch 1 ({scale.unit}){note}"
    drawn = canvas(label, "accuracy (%)", height=420, x_axis_type="log")
    drawn.min_border_right = 40  # for names beside bubbles
    x, y = scale.of(known["online_latency_ns"]), known["accuracy_pct"].to_numpy()
    drawn.xaxis.ticker, drawn.xaxis.formatter = ticks(x), BasicTickFormatter(use_scientific=False)
    if many:
        draw_density(drawn, x, y, log_y=False)
        return drawn
    known = known.with_columns(_x=pl.Series(x), _size=pl.Series(_sizes(known["parameter_bytes"])))
    _draw_bubbles(drawn, known)
    drawn.x_range.range_padding = 0.12  # for whole bubbles and names
    drawn.y_range.range_padding = 0.12
    if known.height <= _NAMED:
        source = source_of(
            known, ("model",), x=known["_x"].to_numpy(), y=known["accuracy_pct"].to_numpy(),
            off=known["_size"].to_numpy() / 2 + 3,
        )  # fmt: skip
        look = {"text_font_size": "11px", "text_color": INK.light, "text_baseline": "middle"}
        drawn.text(x="x", y="y", text="model", x_offset="off", source=source, **look)
    legend_of(drawn)
    return drawn


def _draw_bubbles(drawn: figure, known: pl.DataFrame) -> None:
    hues = colors_of(known)
    known = known.sort("_size", descending=True)  # small ones lie on large ones
    groups = known["group"].to_list()
    source = source_of(
        known,
        _ACCURACY_SHOWN,
        x=known["_x"].to_numpy(),
        y=known["accuracy_pct"].to_numpy(),
        size=known["_size"].to_numpy(),
        entry=known["entry"].to_numpy(),
        color=[hues[group] for group in groups],
    )
    look = {"fill_color": "color", "fill_alpha": 0.5, "line_color": "color"}
    marks = drawn.scatter(x="x", y="y", size="size", source=source, **look)
    hover(drawn, known, _ACCURACY_SHOWN, marks)
    explain(drawn, marks, groups, hues)


def _sizes(bytes_: pl.Series) -> Floats:
    """Return diameters whose squares are in proportion to sizes, as far as they can be seen."""
    sizes = bytes_.cast(pl.Float64).fill_null(0.0).to_numpy()
    most = float(sizes.max(initial=0.0)) or 1.0
    found: Floats = np.maximum(_LARGEST_PX * np.sqrt(sizes / most), _SMALLEST_PX)
    return found


_ROOFLINE_QUESTION = "Which models are bound by memory, and which by arithmetic?"
_ROOFLINE_SHOWN = (
    *("label", "family", "flops_per_byte", "flops_per_s", "bound", "optimal_batch", "flops"),
    "convolution_pct",
)
_MOST_ROOFS = 6


def zoo_roofline(results: pl.DataFrame) -> Plot:
    """Return each model at its best batch below the roofs of the machines.

    Args:
        results: The frame of a zoo's results.
    """
    known = named(models(results)).filter(pl.col("flops_per_byte") > 0, pl.col("flops_per_s") > 0)
    return Plot(_points(known, roofs(results)) if known.height else nothing(), _ROOFLINE_QUESTION)


def _points(known: pl.DataFrame, peaks: pl.DataFrame) -> figure:
    peaks = peaks.sort("peak_flops_per_s", descending=True).head(_MOST_ROOFS)
    scale = scale_of("flops_per_s", known["flops_per_s"], peaks["peak_flops_per_s"])
    many = known.height > MOST_MARKS
    note = f"; {known.height:,} entries, counted" if many else ""
    drawn = canvas(
        f"arithmetic intensity (FLOP/byte), at the best batch{note}",
        scale.label("throughput_flops_per_s"),
        height=420,
        x_axis_type="log",
        y_axis_type="log",
    )
    drawn.axis.formatter = BasicTickFormatter(use_scientific=False)
    x, y = known["flops_per_byte"].to_numpy(), scale.of(known["flops_per_s"])
    drawn.xaxis.ticker, drawn.yaxis.ticker = ticks(x), ticks(y)
    for peak in peaks.iter_rows(named=True):
        # Draw what the memory and arithmetic of a machine allow.
        around = (float(x.min()) / 2, float(x.max()) * 2)
        one = peaks.height == 1
        flops, moved = float(peak["peak_flops_per_s"]), float(peak["peak_bytes_per_s"])
        ridge, top = flops / moved, flops / scale.divisor
        left, right = min(around[0], ridge / 2), max(around[1], ridge * 2)
        ends = {"x": [left, ridge, right], "y": [top * left / ridge, top, top]}
        drawn.line("x", "y", source=ColumnDataSource(ends), line_color=INK.light, line_width=1.6)
        rate = text_of("peak_flops_per_s", flops).removesuffix("/s")
        said = f"{rate}FLOP/s, {text_of('peak_bytes_per_s', moved)}"
        said = f"{said}: {peak['roof_source']}" if one else f"{peak['host']}: {said}"
        text = {"text_color": FAINT.light, "text_font_size": "11px", "text_align": "right"}
        drawn.add_layout(Label(x=right, y=top, text=said, y_offset=3, **text))
    if many:
        draw_density(drawn, x, y, log_y=True)
        return drawn
    hues, groups = colors_of(known), known["group"].to_list()
    source = source_of(
        known,
        _ROOFLINE_SHOWN,
        x=known["flops_per_byte"].to_numpy(),
        y=scale.of(known["flops_per_s"]),
        entry=known["entry"].to_numpy(),
        color=[hues[group] for group in groups],
    )
    points = drawn.scatter(x="x", y="y", size=9, source=source, color="color", alpha=0.65)
    hover(drawn, known, _ROOFLINE_SHOWN, points)
    explain(drawn, points, groups, hues)
    legend_of(drawn)
    return drawn


_THROUGHPUT_QUESTION = "What do larger batches bring?"
_RATE = "throughput_per_s"
_BANDS = ((0.05, 0.95, 0.12), (0.25, 0.75, 0.3))


def zoo_throughput(results: pl.DataFrame) -> Plot:
    """Return the throughput of each model over its batch; of many models the middle and bands.

    Args:
        results: The frame of a zoo's results.
    """
    rows = entry_rows(results).filter(is_measured()).drop_nulls(["batch", _RATE])
    if rows["batch"].n_unique() < 2:  # a curve needs two places
        return Plot(nothing(), _THROUGHPUT_QUESTION)
    drawn = _lines(rows, named(models(results))) if rows.height <= MOST_MARKS else _bands(rows)
    return Plot(drawn, _THROUGHPUT_QUESTION)


def _throughput_canvas(rows: pl.DataFrame, y: str, note: str) -> figure:
    drawn = canvas(f"batch{note}", y, height=420, x_axis_type="log", y_axis_type="log")
    places = sorted(rows["batch"].unique().to_list())
    drawn.xaxis.ticker = FixedTicker(ticks=places)
    drawn.xaxis.formatter = drawn.yaxis.formatter = BasicTickFormatter(use_scientific=False)
    drawn.xgrid.visible = False
    return drawn


def _lines(rows: pl.DataFrame, known: pl.DataFrame) -> figure:
    number = counted(rows["entry"].n_unique(), "line")
    drawn = _throughput_canvas(rows, "throughput (per second)", f"; {number}")
    lines = rows.group_by("entry", maintain_order=True).agg("batch", _RATE)
    lines = lines.join(known.select("entry", "label", "group"), on="entry", maintain_order="left")
    hues = colors_of(known)
    lines = lines.with_columns(color=pl.col("group").replace_strict(hues))
    data = {name: lines[name].to_list() for name in ("batch", _RATE, "label", "entry", "color")}
    marks = drawn.multi_line(
        "batch",
        _RATE,
        source=ColumnDataSource(data),
        line_color="color",
        line_width=1.6,
        line_alpha=0.7,
        hover_line_width=3.5,
        nonselection_line_alpha=0.1,
    )
    dots = lines.select("batch", _RATE, "label", "entry", "color").explode("batch", _RATE)
    spots = ColumnDataSource({name: dots[name].to_list() for name in dots.columns})
    drawn.scatter("batch", _RATE, source=spots, size=5, color="color", alpha=0.7)
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
    drawn = _throughput_canvas(rows, "throughput, relative to the smallest batch", note)
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


def zoo_thirds(results: pl.DataFrame) -> Plot:
    """Return in how many models the first, middle and last third of the layers need most.

    Args:
        results: The frame of a zoo's results.
    """
    counts = thirds_by_quantity(results)
    names = [f"{third}_models" for third in THIRDS]
    known = counts.filter(pl.sum_horizontal(names) > 0)
    parts = [
        Part(name, third, SERIES[at])
        for at, (name, third) in enumerate(zip(names, THIRDS, strict=True))
    ]
    shown = ("quantity", *names, "unknown_models")
    drawn = by_name(known, parts, name="quantity", unit="models", shown=shown)
    return Plot(drawn if known.height else nothing(), thirds_by_quantity.question)


_ROWS, _COLUMNS = 60, 14
_ROW_PX = 20
_OTHER = "all others"
_FAMILY = r"(?:^|[:/])([A-Za-z]+)[^:/]*$"  # resnet of torchvision:resnet50, where no zoo says it
_SAID_PCT, _DARK_PCT = 9.5, 85.0  # shares that are written into their boxes, and on dark ground


class _Map(NamedTuple):
    """Boxes of a heat map, the names of its rows from the top, and what these are."""

    boxes: pl.DataFrame
    rows: list[str]
    note: str


def zoo_layer_types(results: pl.DataFrame) -> Plot:
    """Return the share of each type of layer in the latency of each model, or group of models.

    Args:
        results: The frame of a zoo's results.
    """
    return _heat(results, layer_types)


def zoo_primitives(results: pl.DataFrame) -> Plot:
    """Return the share of each library primitive in the latency of each model, or group of models.

    Args:
        results: The frame of a zoo's results.
    """
    return _heat(results, primitives)


def _heat(results: pl.DataFrame, table: ZooTable) -> Plot:
    shares = table.make(results)
    return Plot(_drawn(shares) if shares.height else nothing(), table.question)


def _drawn(shares: pl.DataFrame) -> figure:
    entries = shares.unique("entry", keep="first", maintain_order=True)
    called = entries.select("entry", label=distinct_labels(entries))
    family = pl.coalesce("family", pl.col("model").str.extract(_FAMILY).str.to_lowercase())
    slim = shares.select("entry", "part", "share_pct", family=family)
    named = slim.join(called, on="entry", how="left", maintain_order="left")
    few = entries.height <= _ROWS
    # The parts that take most, the first of them first.
    sums = named.group_by("part", maintain_order=True).agg(pl.sum("share_pct"))
    parts = sums.sort("share_pct", descending=True)["part"].head(_COLUMNS).to_list()
    folded = named.with_columns(
        part=pl.when(pl.col("part").is_in(parts)).then("part").otherwise(pl.lit(_OTHER))
    )
    shown = _each(folded) if few else _groups(folded)
    columns = [*parts, _OTHER] if (folded["part"] == _OTHER).any() else parts
    return _boxes(shown, columns)


def _each(folded: pl.DataFrame) -> _Map:
    boxes = folded.group_by("label", "part", maintain_order=True).agg(pl.sum("share_pct"))
    boxes = boxes.rename({"label": "row"})
    return _Map(boxes, _ordered(boxes), "share of the latency at the best batch (%)")


def _groups(folded: pl.DataFrame) -> _Map:
    """Return the mean of the models of each family, or else of those with the same main part."""
    by_family = folded["family"].n_unique() > 1
    first = folded.unique("entry", keep="first", maintain_order=True)  # its largest share
    of = pl.col("family").fill_null("no family") if by_family else pl.format("mostly {}", "part")
    grouped = folded.join(first.select("entry", of=of), on="entry", maintain_order="left")
    numbers = grouped.group_by("of").agg(models=pl.col("entry").n_unique())
    numbers = numbers.sort("models", descending=True).head(_ROWS)
    boxes = (
        grouped.join(numbers, on="of")
        .group_by("of", "part", "models")
        .agg(pl.sum("share_pct"))
        .with_columns(
            pl.col("share_pct") / pl.col("models"), row=pl.format("{} ({})", "of", "models")
        )
    )
    what = "family" if by_family else "group by what takes most"
    if numbers.height < grouped["of"].n_unique():
        what = f"one of the {_ROWS} largest families"
    note = (
        f"mean share of the latency at the best batch (%), of the models (how many) of each {what}"
    )
    return _Map(boxes, _ordered(boxes), note)


def _ordered(boxes: pl.DataFrame) -> list[str]:
    """Return the rows, those with the same main part together, the largest share first."""
    most = boxes.sort("share_pct", descending=True, maintain_order=True)
    rows = most.group_by("row", maintain_order=True).agg(pl.first("part"), pl.first("share_pct"))
    frequent = rows.group_by("part").agg(number=pl.len())
    rows = rows.join(frequent, on="part", maintain_order="left")
    order = rows.sort(["number", "part", "share_pct"], descending=True, maintain_order=True)
    return order["row"].to_list()


def _boxes(shown: _Map, columns: Sequence[str]) -> figure:
    names = dict(zip(shown.rows, labels(shown.rows), strict=True))
    drawn = canvas(
        shown.note,
        "",
        height=130 + _ROW_PX * len(names),
        x_range=list(columns),
        y_range=list(names.values())[::-1],
        x_axis_location="above",
    )
    drawn.xaxis.major_label_orientation = 0.7
    drawn.min_border_right = 70  # for the last of these labels
    drawn.grid.visible = False
    boxes = shown.boxes
    x, y = boxes["part"].to_list(), [names[row] for row in boxes["row"]]
    alpha = (boxes["share_pct"] / 100).clip(0, 1) * 0.96 + 0.02
    told = ("row", "part", "share_pct")
    source = source_of(boxes, told, x=x, y=y, alpha=alpha.to_numpy())
    look = {"fill_color": SERIES[0].light, "fill_alpha": "alpha", "line_color": None}
    hover(
        drawn, boxes, told, drawn.rect(x="x", y="y", width=0.97, height=0.92, source=source, **look)
    )
    _write(drawn, boxes, x, y)
    return drawn


def _write(drawn: figure, boxes: pl.DataFrame, x: list[str], y: list[str]) -> None:
    large = [at for at, share in enumerate(boxes["share_pct"]) if share >= _SAID_PCT]
    shares = [boxes["share_pct"][at] for at in large]
    source = ColumnDataSource(
        {
            "x": [x[at] for at in large],
            "y": [y[at] for at in large],
            "said": [text_of("", round(share)) for share in shares],
            "color": [PAPER.light if share > _DARK_PCT else INK.light for share in shares],
        }
    )
    look = {"text_align": "center", "text_baseline": "middle", "text_font_size": "11px"}
    drawn.text(x="x", y="y", text="said", text_color="color", source=source, **look)
