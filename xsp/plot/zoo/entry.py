"""Entries: the table of a zoo's models in, what pictures say and colour of each of them out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl
from bokeh.core.properties import value as constant
from bokeh.models import GlyphRenderer, Legend, LegendItem
from bokeh.plotting import figure

from xsp.plot.colour import SERIES
from xsp.zoo import labels_of, varying

Colours = Mapping[str, str]  # by group

_OTHER = "other"


def named(models: pl.DataFrame) -> pl.DataFrame:
    """Return the table of models with `entry`, its row, `label`, what to call it, and `group`."""
    labels, group = distinct_labels(models), group_of(models)
    said = pl.lit("") if group is None else _largest_groups(models, group)
    return models.with_row_index("entry").with_columns(label=labels, group=said)


def distinct_labels(entries: pl.DataFrame) -> pl.Series:
    """Return what to call each entry: where several are called the same, with what differs.

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
    """Return the column by which models have colours: what varies first, else their family."""
    names = [*varying(models), "family"]
    return next((name for name in names if models[name].drop_nulls().n_unique() > 1), None)


def colours_of(named_models: pl.DataFrame) -> dict[str, str]:
    """Return the colour of each group, the gray that of all small ones."""
    groups = named_models["group"].unique(maintain_order=True).to_list()
    large = [group for group in groups if group != _OTHER]
    colours = {group: SERIES[at].light for at, group in enumerate(large)}
    return colours | ({_OTHER: SERIES[-1].light} if _OTHER in groups else {})


def explain(drawn: figure, marks: GlyphRenderer, groups: Sequence[str], known: Colours) -> None:
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
    values = models[column].cast(pl.String).fill_null(_OTHER)
    counted = values.value_counts(sort=True)[column]
    large = [name for name in counted if name != _OTHER]
    if len(large) > len(SERIES) - 1:
        large = large[: len(SERIES) - 1]
    kept = values.is_in(large)
    return values.zip_with(kept, pl.Series([_OTHER])).alias("group")
