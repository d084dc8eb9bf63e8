"""Pictures of zoos: each model its mark, and counts where there are too many marks."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def many() -> pl.DataFrame:
    return synthetic(48_000).filter(pl.col("batch") < 4)  # six thousand models


def test_each_model_is_a_bubble_and_a_point(few: pl.DataFrame) -> None:
    for picture in (plot.zoo_accuracy, plot.zoo_roofline):
        assert columns(picture(few), "entry") == list(range(10))


def test_the_area_of_a_bubble_is_in_proportion_to_the_parameters() -> None:
    rows = [
        row(name, latency_ns=1e6, accuracy_pct=70.0, parameter_bytes=size)
        for name, size in (("large", 4_000_000), ("small", 1_000_000))
    ]
    small, large = columns(plot.zoo_accuracy(frame(*rows)), "size")
    assert large == 2 * small


def test_lines_are_counted_that_are_drawn() -> None:
    rows = [row("a", batch, latency_ns=1e6) for batch in (1, 2)]
    drawn = plot.zoo_throughput(frame(*rows, row("b", status="failed", reason="lost")))
    assert drawn.figure.xaxis[0].axis_label == "batch; 1 line"


def test_of_thousands_of_models_is_counted_how_many_lie_where(many: pl.DataFrame) -> None:
    for picture in (plot.zoo_accuracy, plot.zoo_roofline):
        drawn = picture(many)
        counts = [int(text.replace(",", "")) for text in columns(drawn, "models")]
        assert sum(counts) == 6_000
        assert "6,000 entries, counted" in drawn.figure.xaxis[0].axis_label


def test_of_thousands_of_curves_the_median_is_drawn(many: pl.DataFrame) -> None:
    drawn = plot.zoo_throughput(many)
    assert columns(drawn, "entry") == []
    assert columns(drawn, "q0.5")[0] == 1.0  # relative to the smallest batch


def test_each_machine_has_its_roof_and_its_colour() -> None:
    rows = [
        row("a", latency_ns=1e6, host=host, machine=host, flops_per_byte=10.0, flops_per_s=1e10,
            peak_flops_per_s=peak, peak_bytes_per_s=1e10, roof_source="measured")
        for host, peak in (("crane", 1e12), ("heron", 2e12))
    ]  # fmt: skip
    drawn = plot.zoo_roofline(frame(*rows)).figure
    texts = [label.text for label in drawn.select({"type": Label})]
    assert sorted(text.partition(":")[0] for text in texts) == ["crane", "heron"]
    assert [item.label.value for item in drawn.legend[0].items] == ["crane", "heron"]


def test_many_models_are_rows_by_family(few: pl.DataFrame) -> None:
    rows = list(plot.zoo_layer_types(few).figure.y_range.factors)
    assert len(rows) == 10
    families = plot.zoo_layer_types(synthetic(8 * 80)).figure
    assert len(families.y_range.factors) == 8
    assert all(name.endswith(" (10)") for name in families.y_range.factors)
    assert "each family" in families.xaxis[0].axis_label


def test_families_that_no_zoo_gives_are_read_off_the_names() -> None:
    names = ("torchvision:resnet", "timm:ResNet_", "onnx:vit-b")
    shares: dict[str, Any] = {"time.matmul_pct": 90.0}
    rows = [row(f"{names[n % 3]}{n}", latency_ns=1e6, **shares) for n in range(63)]
    drawn = plot.zoo_layer_types(frame(*rows)).figure
    assert sorted(drawn.y_range.factors) == ["resnet (42)", "vit (21)"]


def test_entries_that_differ_in_a_further_setting_are_rows_of_their_own() -> None:
    shares: dict[str, Any] = {"time.matmul_pct": 90.0}
    settings = [json.dumps({"batch": 1, "sequence": sequence}) for sequence in (128, 512)]
    rows = [row("a", latency_ns=1e6, settings=each, **shares) for each in settings]
    drawn = plot.zoo_layer_types(frame(*rows))
    assert sorted(drawn.figure.y_range.factors) == ["a, sequence 128", "a, sequence 512"]
    assert columns(drawn, "text_share_pct") == ["90.0", "90.0"]


def test_shares_of_a_family_are_means_over_its_models() -> None:
    rows = []
    for number in range(62):
        shares: dict[str, Any] = {"time.convolution_pct": 90.0 if number == 1 else 30.0}
        rows.append(row(f"m{number}", latency_ns=1e6, family="yx"[number % 2], **shares))
    source = next(
        one
        for one in plot.zoo_layer_types(frame(*rows)).figure.select({"type": ColumnDataSource})
        if "alpha" in one.data
    )
    shares = dict(zip(source.data["row"], source.data["text_share_pct"], strict=True))
    assert shares == {"x (31)": f"{30 + 60 / 31:.1f}", "y (31)": "30.0"}


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.__name__)
def test_without_numbers_there_is_nothing_to_draw(picture: Any) -> None:
    assert not picture(frame()).has_marks
    assert not picture(frame(row("a", status="failed", reason="no such model"))).has_marks


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.__name__)
def test_pictures_have_marks_where_there_are_numbers(picture: Any, few: pl.DataFrame) -> None:
    assert picture(few).has_marks
