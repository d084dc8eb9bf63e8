"""Pictures of zoos: each model its mark, and counts where there are too many marks."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from bokeh.models import ColumnDataSource, Label
from synthetic_results import frame as synthetic
from zoo_frames import frame, row

from xsp import plot

ALL = (
    plot.zoo_accuracy,
    plot.zoo_roofline,
    plot.zoo_throughput,
    plot.zoo_layer_types,
    plot.zoo_primitives,
    plot.zoo_thirds,
)


def columns(drawn: Any, name: str) -> list[Any]:
    """Return the values of a column of all sources of a plot, in order."""
    sources = drawn.figure.select({"type": ColumnDataSource})
    return sorted(value for source in sources if name in source.data for value in source.data[name])


@pytest.fixture(scope="module")
def few() -> pl.DataFrame:
    return synthetic(80)  # ten models


def test_each_model_is_a_bubble_and_a_point(few: pl.DataFrame) -> None:
    for picture in (plot.zoo_accuracy, plot.zoo_roofline):
        assert columns(picture(few), "entry") == list(range(10))


def test_each_machine_has_its_roof_and_its_color() -> None:
    rows = [
        row("a", latency_ns=1e6, host=host, machine=host, flops_per_byte=10.0, flops_per_s=1e10,
            peak_flops_per_s=peak, peak_bytes_per_s=1e10, roof_source="measured")
        for host, peak in (("crane", 1e12), ("heron", 2e12))
    ]  # fmt: skip
    drawn = plot.zoo_roofline(frame(*rows)).figure
    texts = [label.text for label in drawn.select({"type": Label})]
    assert sorted(text.partition(":")[0] for text in texts) == ["crane", "heron"]
    assert [item.label.value for item in drawn.legend[0].items] == ["crane", "heron"]


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.__name__)
def test_without_numbers_there_is_nothing_to_draw(picture: Any) -> None:
    assert not picture(frame()).has_marks
    assert not picture(frame(row("a", status="failed", reason="no such model"))).has_marks


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.__name__)
def test_pictures_have_marks_where_there_are_numbers(picture: Any, few: pl.DataFrame) -> None:
    assert picture(few).has_marks
