from __future__ import annotations

import numpy as np
import polars as pl
from bokeh.models import Band, Span
from drawn import marks, source, told

from xsp.show.plot.curve import curve, steps

BATCHES = pl.DataFrame(
    {
        "batch": [8, 1, 64],
        "threads": [1, 1, 2],
        "latency_ns": [8e6, 2e6, 4e7],
        "latency_low_ns": [7e6, 1e6, None],
        "latency_high_ns": [9e6, 3e6, None],
    }
)


def test_a_curve_goes_from_left_to_right_with_its_intervals() -> None:
    drawn = curve(BATCHES, "batch", "latency_ns", shown=("batch", "latency_ns"))
    assert source(drawn, "y")["x"].tolist() == [1, 8, 64]
    assert source(drawn, "y")["y"].tolist() == [2, 8, 40]
    assert source(drawn, "lower")["upper"].tolist() == [3, 9]
    assert len(drawn.select({"type": Band})) == 1
    assert drawn.xaxis.ticker.ticks == [1, 8, 64]
    assert told(drawn) == {"batch": "1", "latency": "2.00 ms ± 50 %"}


def test_the_best_place_is_marked() -> None:
    drawn = curve(BATCHES, "batch", "latency_ns", shown=(), marked=8)
    assert [span.location for span in drawn.select({"type": Span})] == [8]


def test_steps_stay_at_a_height_until_the_next_and_their_peak_is_marked() -> None:
    table = pl.DataFrame({"at_ns": [0, 1_000, 3_000], "held_bytes": [0, 2048, 1024]})
    drawn = steps(table, "at_ns", "held_bytes", shown=("held_bytes",))
    edge = next(mark.data_source.data for mark in marks(drawn) if mark.glyph.name is None)
    np.testing.assert_array_equal(edge["x"], [0, 1, 1, 3, 3])
    np.testing.assert_array_equal(edge["y"], [0, 0, 2, 2, 1])
    assert [span.location for span in drawn.select({"type": Span})] == [1.0]
    assert drawn.yaxis.axis_label == "held (KiB)"
