from __future__ import annotations

import polars as pl
import pytest
from drawn import source, told

from xsp.show.plot.roofline import roofline

# Tables III and IV of the paper, and a copy, of which no operations are known.
KERNELS = pl.DataFrame(
    {
        "name": ["volta_cgemm_32x32_tn", "scalar_product_op", "memcpy"],
        "flops_per_byte": [876.97, 0.26, None],
        "flops_per_s": [12.82e12, 0.1e12, None],
        "latency_ns": [6.04e6, 28.43e6, 1e6],
        "memory_bound": [False, True, None],
        "peak_flops_per_s": 15.7e12,  # Table VII
        "peak_bytes_per_s": 900e9,
        "roof_source": "Tesla V100: its vendor",
    }
)


def test_points_lie_where_their_work_says_and_what_is_not_known_is_counted() -> None:
    drawn = roofline(KERNELS, size="latency_ns", shown=("name",))
    data = source(drawn, "bound")
    assert data["x"].tolist() == [876.97, 0.26]
    assert data["y"].tolist() == [12.82, 0.1]
    assert drawn.yaxis.axis_label == "throughput (TFLOP/s)"
    assert data["bound"] == ["compute-bound", "memory-bound"]
    assert data["name"] == ["volta_cgemm_32x32_tn", "scalar_product_op"]
    assert "1 without computing" in drawn.xaxis.axis_label


def test_the_roof_has_its_ridge_at_the_ideal_intensity() -> None:
    drawn = roofline(KERNELS, size="latency_ns", shown=())
    (line,) = (one for one in drawn.renderers if type(one.glyph).__name__ == "Line")
    x, y = line.data_source.data["x"], line.data_source.data["y"]
    assert x[1] == pytest.approx(17.44, abs=0.01)
    assert y == [pytest.approx(0.9 * x[0]), 15.7, 15.7]
    assert x[0] < 0.26
    assert x[2] > 876.97


def test_a_mark_shows_intervals_and_no_column_without_a_value() -> None:
    ends = KERNELS.with_columns(latency_low_ns=pl.col("latency_ns") * 0.9, group=pl.lit(None))
    ends = ends.with_columns(latency_high_ns=pl.col("latency_ns") * 1.1)
    drawn = roofline(ends, size="latency_ns", shown=("name", "latency_ns", "group"))
    assert told(drawn) == {"name": "volta_cgemm_32x32_tn", "latency": "6.04 ms ± 10 %"}
