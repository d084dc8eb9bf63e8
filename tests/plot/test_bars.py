from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from drawn import marks, source, told

from xsp.show.plot.bar import Part, by_position, stacked
from xsp.show.plot.color import SERIES
from xsp.show.plot.lying import by_size, difference

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
    assert drawn.yaxis.axis_label == "self time (ms)"


def test_each_mark_knows_the_path_of_its_span_and_tells_its_numbers() -> None:
    drawn = by_position(LAYERS, "own_ns", position="index", shown=("type", "own_ns"))
    assert source(drawn, "top")["path"] == ["net/a", "net/b", "net/c"]
    assert told(drawn) == {"type": "Conv2d", "own": "3.00 ms"}


def test_groups_with_most_time_have_colors_and_the_rest_is_other() -> None:
    types = [f"T{at}" for at in range(9)]
    many = pl.DataFrame(
        {"index": range(9), "type": types, "own_ns": [float(at) for at in range(9)]}
    )
    drawn = by_position(many, "own_ns", position="index", group="type", shown=())
    (legend,) = drawn.legend
    labels = [item.label.value for item in legend.items]
    assert labels == ["T8", "T7", "T6", "T5", "T4", "T3", "other"]
    colors = source(drawn, "top")["color"]
    assert [colors[item.index] for item in legend.items] == [one.light for one in SERIES]


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


def test_parts_of_stacked_bars_lie_on_each_other() -> None:
    table = pl.DataFrame({"index": [1, 2], "gpu": [3e6, 1e6], "cpu": [1e6, None]})
    parts = (Part("gpu", "GPU", SERIES[0]), Part("cpu", "CPU", SERIES[1]))
    drawn = stacked(table, parts, position="index", unit="latency_ns", shown=())
    data = source(drawn, "end_0")
    ends = [data[f"end_{at}"].tolist() for at in range(3)]
    assert ends == [[0, 0], [3, 1], [4, 1]]
    assert [item.label.value for item in drawn.legend[0].items] == ["GPU", "CPU"]
    assert len(marks(drawn)) == 2


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
    assert data["color"][2] == SERIES[1].light


def test_a_type_has_one_color_in_all_charts_of_a_table() -> None:
    table = LAYERS.with_columns(bytes=pl.Series([1.0, 9.0, 1.0]))
    colors = []
    for value in ("own_ns", "bytes"):
        drawn = by_position(
            table, value, position="index", group="type", shown=(), colored_by="own_ns"
        )
        data = source(drawn, "top")
        colors.append(dict(zip(data["group"], data["color"], strict=True)))
    assert colors[0] == colors[1]
