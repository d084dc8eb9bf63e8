from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest
from drawn import source

from xsp.plot.roofline import Axes, roofline


@dataclass(frozen=True)
class V100:
    """Table VII of the paper."""

    flops_per_s: float = 15.7e12
    bytes_per_s: float = 900e9
    source: str = "its vendor"


# Tables III and IV of the paper, and a copy, of which no operations are known.
KERNELS = pl.DataFrame(
    {
        "name": ["volta_cgemm_32x32_tn", "scalar_product_op", "memcpy"],
        "flops_per_byte": [876.97, 0.26, None],
        "flops_per_s": [12.82e12, 0.1e12, None],
        "latency_ns": [6.04e6, 28.43e6, 1e6],
        "memory_bound": [False, True, None],
    }
)


def test_points_lie_where_their_work_says_and_what_is_not_known_is_counted() -> None:
    drawn = roofline(KERNELS, V100(), Axes(), shown=("name",))
    data = source(drawn, "bound")
    assert data["x"].tolist() == [876.97, 0.26]
    assert data["y"].tolist() == [12.82e12, 0.1e12]
    assert data["bound"] == ["compute-bound", "memory-bound"]
    assert data["name"] == ["volta_cgemm_32x32_tn", "scalar_product_op"]
    assert "1 without known work" in drawn.xaxis.axis_label


def test_the_area_of_a_point_is_in_proportion_to_its_time() -> None:
    small, large = source(roofline(KERNELS, None, Axes(), shown=()), "bound")["size"]
    assert (small / large) ** 2 == pytest.approx(6.04 / 28.43)


def test_the_roof_has_its_ridge_at_the_ideal_intensity() -> None:
    drawn = roofline(KERNELS, V100(), Axes(), shown=())
    (line,) = (one for one in drawn.renderers if type(one.glyph).__name__ == "Line")
    x, y = line.data_source.data["x"], line.data_source.data["y"]
    assert x[1] == pytest.approx(17.44, abs=0.01)
    assert y == [pytest.approx(900e9 * x[0]), 15.7e12, 15.7e12]
    assert x[0] < 0.26
    assert x[2] > 876.97


def test_without_a_roof_there_are_points_alone() -> None:
    drawn = roofline(KERNELS, None, Axes(), shown=())
    assert [type(one.glyph).__name__ for one in drawn.renderers] == ["Scatter"]
