"""The verdict on traces of a host: what counts as the framework's time, how often, how surely."""

from __future__ import annotations

import polars as pl
import pytest
from hand_made import row, trace_of

from xsp.analyses import verdict


def test_an_operator_that_computes_and_makes_room_for_its_result_is_no_framework() -> None:
    shapes = {"input_shapes": [[1, 3, 8, 8], [4, 3, 1, 1]], "input_dtypes": ["float32"] * 2}
    convolution = row(2, "op", "aten::convolution", 90) | shapes
    rows = [
        row(None, "pipeline", "predict", 100),
        row(0, "layer", "conv", 95, output_shapes=[[1, 4, 8, 8]]),
        row(1, "op", "aten::conv2d", 93) | shapes,
        convolution,
        row(3, "op", "aten::mkldnn_convolution", 80) | shapes,
        row(4, "op", "aten::empty", 5),
    ]
    found = verdict(trace_of(rows))
    times = dict(found.select("candidate", "time_ns").iter_rows())
    assert times["operator-bound"] == 75
    assert times["framework-bound"] == 2 + 3 + 10 + 5
    (evidence,) = found.filter(candidate="framework-bound")["evidence"]
    assert evidence.startswith("own time of 1 layer and 3 operators that ")


def test_rows_that_stand_for_several_calls_count_as_often() -> None:
    rows = [
        row(None, "pipeline", "predict", 100),
        row(0, "layer", "fc", 90, calls=4),
        row(1, "op", "aten::relu", 80, calls=8),
    ]
    evidence = dict(verdict(trace_of(rows)).select("candidate", "evidence").iter_rows())
    assert evidence["framework-bound"].startswith("own time of 4 layers and 0 operators")
    assert evidence["operator-bound"].startswith("own time of 8 operators")


@pytest.mark.parametrize("reach", [10, 60])
def test_a_verdict_within_the_noise_says_so(reach: int) -> None:
    root = row(None, "pipeline", "predict", 100)
    root |= {"latency_low_ns": 100.0 - reach, "latency_high_ns": 100.0 + reach}
    table = verdict(trace_of([root, row(0, "op", "aten::relu", 70)]))
    said = "; hardly told from program-bound, for the latency is known to ± 60 % only"
    (evidence,) = table.filter(pl.col("verdict"))["evidence"]
    assert evidence.endswith(said) == (reach == 60)
