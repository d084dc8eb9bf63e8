"""Kernels by type and in sequences, operators below a roof, and steps, on known answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from device_samples import rows_of, timeline, work
from hand_made import row, trace_of

import xsp
from xsp.analyses import (
    kernel_by_name,
    kernel_by_type,
    kernel_sequences,
    operator_roofline,
    step_latency,
    with_peak,
)
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
KINETO = TRACES / "kineto"
EXPECTED = KINETO / "expected"
T4 = {"devices": ["Tesla T4"]}


def product(rows: int) -> dict[str, Any]:
    return {"input_shapes": [[rows, 8], [8, 16]], "input_dtypes": ["float32", "float32"]}


def model() -> Trace:
    """Return matrix products of two shapes, a normalization, a copy and a collective on a T4."""
    return trace_of(
        [
            row(None, "region", "predict", 10_000),
            row(0, "op", "aten::mm", 800, **product(4)),
            row(1, "kernel", "gemm", 100),
            row(0, "op", "aten::mm", 800, **product(64)),
            row(3, "kernel", "gemm", 200),
            row(3, "kernel", "gemm_tail", 50),
            row(0, "op", "aten::native_layer_norm", 100, input_shapes=[[4, 8]]),
            row(6, "kernel", "norm", 30),
            row(0, "op", "aten::to", 100),
            row(8, "memcpy", "memcpy HtoD", 40, transfer_bytes=64),
            row(0, "kernel", "ncclDevKernel_AllReduce", 60),
            row(0, "kernel", "mystery", 5),
        ],
        environment=T4,
    )


def test_kernels_are_summed_by_what_the_operator_around_computes() -> None:
    table = kernel_by_type(model())
    assert rows_of(table, "type", "count", "latency_ns") == [
        ("matmul", 3, 350),
        ("communication", 1, 60),
        ("copy", 1, 40),
        ("normalization", 1, 30),
        (None, 1, 5),
    ]
    assert table["share_pct"].sum() == pytest.approx(100)
    flops = dict(zip(table["type"], table["flops"], strict=True))
    assert flops["matmul"] == 2 * (4 + 64) * 8 * 16
    assert flops["normalization"] is None
    assert table["operators"][0] == "aten::mm"


def test_each_shape_of_an_operator_has_its_place_below_the_roof() -> None:
    table = operator_roofline(model())
    by_shape = {shapes: row for shapes, *row in table.select("shapes", *_RATES).iter_rows()}
    assert by_shape["64×8, 8×16"] == [1, 250, 2 * 64 * 8 * 16, pytest.approx(16_384 / 250e-9)]
    assert by_shape["4×8, 8×16"][:3] == [1, 100, 2 * 4 * 8 * 16]
    assert by_shape["4×8"] == [1, 30, None, None]
    assert table.filter(pl.col("flops") > 0)["memory_bound"].all()


_RATES = ("calls", "time_ns", "flops", "flops_per_s")


def test_a_peak_of_ones_own_comes_before_the_data_sheet() -> None:
    made = operator_roofline(with_peak(model(), flops_per_s=1e12, bytes_per_s=1e15))
    known = made.filter(pl.col("flops") > 0)
    assert set(known["peak_flops_per_s"]) == {1e12}
    assert set(known["roof_source"]) == {"given"}
    assert not known["memory_bound"].any()
    half = operator_roofline(with_peak(model(), bytes_per_s=1e15)).filter(pl.col("flops") > 0)
    assert half["roof_source"][0].startswith("given, else Tesla T4")
    with pytest.raises(ValueError, match="A peak is above 0"):
        with_peak(model(), flops_per_s=0.0)


def test_sequences_that_recur_are_found_and_one_of_equal_kernels_counts_once() -> None:
    names = ["a", "b", "c", "x", "a", "b", "c", "y", "z", "z", "z", "z", "z", "z"]
    kernels = [work(10 * n, 10 * n + 4, name=name) for n, name in enumerate(names)]
    table = kernel_sequences(timeline(1_000, *kernels))
    assert rows_of(table, "sequence", "count", "time_ns", "gap_ns") == [
        ("a → b → c", 2, 24, 24),
        ("z → z → z", 2, 24, 24),
    ]
    assert kernel_sequences(timeline(1_000, *kernels), length=2).height == 3
    with pytest.raises(ValueError, match="two kernels or more"):
        kernel_sequences(timeline(1_000, *kernels), length=1)


def test_kernels_of_one_name_have_a_spread() -> None:
    kernels = [work(100 * n, 100 * n + length) for n, length in enumerate((10, 20, 60))]
    table = kernel_by_name(timeline(1_000, *kernels, work(900, 905, name="alone")))
    assert rows_of(table, "least_ns", "median_ns", "most_ns") == [(10, 20, 60), (5, 5, 5)]
    assert table["deviation_ns"].to_list() == [pytest.approx(26.4575, abs=1e-3), None]


def test_a_trace_without_steps_is_one_row() -> None:
    assert rows_of(step_latency(timeline(100)), "step", "latency_ns", "median_pct") == [
        ("step", 100, 100)
    ]


@pytest.mark.skipif(not EXPECTED.is_dir(), reason="needs the real traces (XSP_TRACES)")
@pytest.mark.parametrize("name", ["h100-vit", "h100-bert-small"])
def test_spread_and_operators_of_recordings_are_what_another_tool_finds(name: str) -> None:
    # TraceLens's tables of the same files, in µs.
    recording = xsp.load(KINETO / f"{name}.json.gz")
    theirs = pl.read_csv(EXPECTED / f"{name}.kernel_summary.csv").filter(
        pl.col("Parent cpu_op").is_not_null()
    )
    duration = "Kernel duration (µs)"
    spread = theirs.group_by(full_name="Kernel name").agg(
        pl.min(f"{duration}_min"), pl.max(f"{duration}_max")
    )
    both = kernel_by_name(recording).join(spread, on="full_name")
    assert both.height > 5
    assert both["least_ns"].to_list() == pytest.approx((both[f"{duration}_min"] * 1e3).to_list())
    assert both["most_ns"].to_list() == pytest.approx((both[f"{duration}_max"] * 1e3).to_list())
    summary = pl.read_csv(EXPECTED / f"{name}.ops_summary.csv")
    times = dict(zip(summary["name"], summary["total_direct_kernel_time_sum"] * 1e3, strict=True))
    ours = operator_roofline(recording).group_by("operator").agg(pl.sum("time_ns"))
    named = {name: ns for name, ns in ours.iter_rows() if name in times}
    assert len(named) > 5
    assert named == pytest.approx({name: times[name] for name in named}, rel=1e-3)
