from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from drawn import marks, source, told

from xsp.plot.bar import Part, by_position, stacked
from xsp.plot.colour import SERIES
from xsp.plot.lying import by_name, by_size, difference, wide

LAYERS = pl.DataFrame(
    {
        "index": [1, 2, 3],
        "path": ["net/a", "net/b", "net/c"],
        "type": ["Conv2d", "ReLU", "Conv2d"],
        "own_ns": [3_000_000.0, 500_000.0, None],
    }
)


def test_bars_stand_at_their_positions_in_a_unit_that_people_read() -> None:
    drawn = by_position(LAYERS, "own_ns", position="index", shown=("type", "own_ns"))
    data = source(drawn, "top")
    assert data["x"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(data["top"], [3.0, 0.5, np.nan])
    assert drawn.yaxis.axis_label == "own time (ms)"


def test_each_mark_knows_the_path_of_its_span_and_tells_its_numbers() -> None:
    drawn = by_position(LAYERS, "own_ns", position="index", shown=("type", "own_ns"))
    assert source(drawn, "top")["path"] == ["net/a", "net/b", "net/c"]
    assert told(drawn) == {"type": "Conv2d", "own": "3.00 ms"}


def test_identifiers_of_spans_are_texts_for_javascript_has_no_such_numbers() -> None:
    ids = LAYERS.with_columns(span_id=pl.Series([2**64 - 1, 2, 3], dtype=pl.UInt64))
    drawn = by_position(ids, "own_ns", position="index", shown=())
    assert source(drawn, "top")["span_id"] == ["18446744073709551615", "2", "3"]


def test_groups_with_most_time_have_colours_and_the_rest_is_other() -> None:
    types = [f"T{at}" for at in range(9)]
    many = pl.DataFrame(
        {"index": range(9), "type": types, "own_ns": [float(at) for at in range(9)]}
    )
    drawn = by_position(many, "own_ns", position="index", group="type", shown=())
    (legend,) = drawn.legend
    labels = [item.label.value for item in legend.items]
    assert labels == ["T8", "T7", "T6", "T5", "T4", "T3", "other"]
    colours = source(drawn, "top")["colour"]
    assert [colours[item.index] for item in legend.items] == [one.light for one in SERIES]


def test_of_more_bars_than_a_figure_can_show_the_largest_are_drawn() -> None:
    table = pl.DataFrame({"index": range(6_000), "own_ns": np.arange(6_000.0)})
    drawn = by_position(table, "own_ns", position="index", shown=())
    assert source(drawn, "top")["x"].tolist() == list(range(1_000, 6_000))
    assert "the 5,000 largest of 6,000 are drawn" in drawn.xaxis.axis_label


def test_sizes_are_sorted_and_small_ones_summed_up() -> None:
    table = pl.DataFrame(
        {"operator": [f"op{at}" for at in range(20)], "own_ns": [1e3 * at for at in range(20)]}
    )
    drawn = by_size(table, "own_ns", name="operator", shown=("operator",))
    data = source(drawn, "right")
    assert data["y"][:2] == ["op19", "op18"]
    assert data["y"][-1] == "other (7)"
    assert data["said"][-1] == "28.0 µs"
    assert sum(data["right"]) == pytest.approx(190.0)
    assert drawn.y_range.factors[-1] == "op19"  # on top


def test_names_that_are_equal_when_shortened_have_a_bar_each() -> None:
    table = pl.DataFrame({"module": ["x" * 60 + "y" * 60] * 3, "own_ns": [1.0, 2.0, 3.0]})
    drawn = by_size(table, "own_ns", name="module", shown=("module",))
    assert len(set(drawn.y_range.factors)) == 3
    assert source(drawn, "right")["module"] == table["module"].to_list()


def test_parts_of_stacked_bars_lie_on_each_other() -> None:
    table = pl.DataFrame({"index": [1, 2], "gpu": [3e6, 1e6], "cpu": [1e6, None]})
    parts = (Part("gpu", "GPU", SERIES[0]), Part("cpu", "CPU", SERIES[1]))
    drawn = stacked(table, parts, position="index", unit="latency_ns", shown=())
    data = source(drawn, "end_0")
    ends = [data[f"end_{at}"].tolist() for at in range(3)]
    assert ends == [[0, 0], [3, 1], [4, 1]]
    assert [item.label.value for item in drawn.legend[0].items] == ["GPU", "CPU"]
    assert len(marks(drawn)) == 2


def test_long_tables_become_bars_with_a_part_for_each_value() -> None:
    table = pl.DataFrame(
        {"device": [0, 0, 1], "part": ["busy", "idle", "busy"], "time_ns": [1.0, 2.0, 3.0]}
    )
    bars = wide(table, ["device"], "part", "time_ns")
    assert bars.to_dict(as_series=False) == {
        "device": [0, 1],
        "busy": [1.0, 3.0],
        "idle": [2.0, 0.0],
    }
    drawn = by_name(
        bars,
        [Part("busy", "busy", SERIES[0]), Part("idle", "idle", SERIES[1])],
        name="device",
        unit="time_ns",
        shown=("device",),
    )
    assert source(drawn, "end_0")["end_2"].tolist() == [3.0, 3.0]


def test_differences_are_sorted_by_size_whatever_their_sign() -> None:
    table = pl.DataFrame(
        {
            "path_a": ["m/a", "m/b", None, "m/d"],
            "path_b": ["m/a", None, "m/c", "m/d"],
            "change": ["same", "removed", "added", "same"],
            "verdict": ["slower", None, None, "faster"],
            "own_difference_ns": [2e3, -9e3, 4e3, 0.0],
            "difference_ns": [2e3, -9e3, 4e3, 0.0],
            "ratio": [1.5, None, None, 1.0],
        }
    )
    drawn = difference(table)
    data = source(drawn, "right")
    assert data["path"] == ["m/b", "m/c", "m/a"]
    assert list(data["right"]) == [-9.0, 4.0, 2.0]
    assert data["colour"][2] == SERIES[1].light
