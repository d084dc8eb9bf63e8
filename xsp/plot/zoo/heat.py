"""Heat maps: the frame of results in, where the time of each model goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from xsp.analyses import text_of
from xsp.plot.canvas import canvas, hover, labels, nothing, source_of
from xsp.plot.colour import SERIES
from xsp.plot.document import Plot
from xsp.plot.theme import INK, PAPER
from xsp.plot.zoo.entry import distinct_labels
from xsp.zoo import ZooTable, layer_types, primitives

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
    parts = _parts(named)
    folded = named.with_columns(
        part=pl.when(pl.col("part").is_in(parts)).then("part").otherwise(pl.lit(_OTHER))
    )
    shown = _each(folded) if few else _groups(folded)
    columns = [*parts, _OTHER] if (folded["part"] == _OTHER).any() else parts
    return _boxes(shown, columns)


def _parts(named: pl.DataFrame) -> list[str]:
    """Return the parts that take most, the first of them first."""
    sums = named.group_by("part", maintain_order=True).agg(pl.sum("share_pct"))
    return sums.sort("share_pct", descending=True)["part"].head(_COLUMNS).to_list()


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
    """Write the large shares into their boxes."""
    large = [at for at, share in enumerate(boxes["share_pct"]) if share >= _SAID_PCT]
    shares = [boxes["share_pct"][at] for at in large]
    source = ColumnDataSource(
        {
            "x": [x[at] for at in large],
            "y": [y[at] for at in large],
            "said": [text_of("", round(share)) for share in shares],
            "colour": [PAPER.light if share > _DARK_PCT else INK.light for share in shares],
        }
    )
    look = {"text_align": "center", "text_baseline": "middle", "text_font_size": "11px"}
    drawn.text(x="x", y="y", text="said", text_color="colour", source=source, **look)
