"""Tables of kernels and of layers by their kernels, on traces of every depth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hand_made import row, trace_of

import xsp
from xsp.analyses import (
    kernel_by_name,
    kernel_information,
    kernel_roofline,
    layer_device_time,
    layer_kernel_metrics,
    layer_kernels,
    layer_roofline,
)
from xsp.machine import peak
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
PRODUCT = {"input_shapes": [[4, 8], [8, 16]], "input_dtypes": ["float32", "float32"]}
FLOPS = 2 * 4 * 8 * 16
READ, WRITTEN = (4 * 8 + 8 * 16) * 4, 4 * 16 * 4
T4 = {"devices": ["Tesla T4"]}


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "state_folder", lambda: tmp_path)


def on_device(*kernels: Any) -> Trace:
    """Return a layer with a matrix product and its kernels, on a T4."""
    rows = [row(None, "pipeline", "predict", 1_000), row(0, "layer", "fc", 900, module_path="fc")]
    rows.append(row(1, "op", "aten::mm", 800, **PRODUCT))
    return trace_of([*rows, *kernels], environment=T4)


def gemm(name: str = "gemm", ns: float = 100, **more: Any) -> Any:
    return row(2, "kernel", name, ns, full_name=f"void {name}<float>(int)", **more)


def test_the_work_of_an_operator_is_that_of_its_only_kernel() -> None:
    (found,) = kernel_information(on_device(gemm())).to_dicts()
    assert (found["kernel"], found["full_name"]) == ("gemm", "void gemm<float>(int)")
    assert (found["flops"], found["read_bytes"], found["write_bytes"]) == (FLOPS, READ, WRITTEN)
    assert found["work_source"] == "analytical"
    assert found["flops_per_byte"] == FLOPS / (READ + WRITTEN)
    assert found["flops_per_s"] == pytest.approx(FLOPS / 100e-9)
    assert found["memory_bound"] is True
    assert (found["layer"], found["layer_index"]) == ("fc", 1)


def test_of_an_operator_with_two_kernels_neither_has_the_work_but_their_layer_has() -> None:
    trace = on_device(gemm(), gemm("reduce", 50))
    assert kernel_information(trace)["flops"].to_list() == [None, None]
    (found,) = layer_kernels(trace).to_dicts()
    assert (found["flops"], found["count"], found["kernel_ns"]) == (FLOPS, 2, 150.0)
    assert found["flops_per_s"] == pytest.approx(FLOPS / 150e-9)
    assert found["known_pct"] == 100.0


def test_throughput_is_of_the_kernels_whose_work_is_known() -> None:
    trace = on_device(gemm(), row(1, "kernel", "gemm", 300))
    (found,) = kernel_by_name(trace).filter(pl.col("full_name").str.contains("void")).to_dicts()
    assert found["known_pct"] == 100.0
    (layer,) = layer_kernels(trace).to_dicts()
    assert layer["known_pct"] == 25.0
    assert layer["flops_per_s"] == pytest.approx(FLOPS / 100e-9)


def test_kernels_of_one_name_are_counted_and_summed_up() -> None:
    times = [100.0, 300.0]
    ends: dict[str, Any] = {"latency_low_ns": 90.0, "latency_high_ns": 110.0}
    kernels = [
        gemm(ns=ns, flops=10, dram_read_bytes=2, dram_write_bytes=3, **ends)
        | {"achieved_occupancy_pct": occupancy}
        for ns, occupancy in zip(times, (20.0, 60.0), strict=True)
    ]
    (found,) = kernel_by_name(on_device(*kernels)).to_dicts()
    assert (found["count"], found["latency_ns"], found["flops"]) == (2, 400.0, 20)
    assert (found["latency_low_ns"], found["latency_high_ns"]) == (180.0, 220.0)
    assert (found["read_bytes"], found["write_bytes"]) == (4, 6)
    assert found["occupancy_pct"] == pytest.approx((100 * 20 + 300 * 60) / 400)
    assert found["share_pct"] == pytest.approx(40.0)
    assert found["work_source"] == "counted"


def test_a_sum_of_latencies_of_which_one_has_no_interval_has_none() -> None:
    ends: dict[str, Any] = {"latency_low_ns": 90.0, "latency_high_ns": 110.0}
    (found,) = kernel_by_name(on_device(gemm(**ends), gemm())).to_dicts()
    assert (found["latency_ns"], found["latency_low_ns"]) == (200.0, None)


def test_kernels_of_one_short_name_but_other_arguments_are_others() -> None:
    kernels = [row(2, "kernel", "copy", 10, full_name=f"void copy<{kind}>()") for kind in "fd"]
    assert kernel_by_name(on_device(*kernels))["count"].to_list() == [1, 1]


def test_an_occupancy_of_0_is_not_known() -> None:
    kernels = [gemm(occupancy_pct=0.0), gemm("other", occupancy_pct=25.0)]
    table = kernel_information(on_device(*kernels))
    assert table["occupancy_pct"].to_list() == [None, 25.0]
    assert table["occupancy_source"].to_list() == [None, "theoretical"]


def test_rows_of_several_calls_count_as_many_kernels() -> None:
    (found,) = kernel_by_name(on_device(gemm(calls=7, flops=3))).to_dicts()
    assert (found["count"], found["flops"]) == (7, 21)


def test_library_calls_are_the_kernels_where_no_device_worked() -> None:
    rows = [row(None, "pipeline", "predict", 1_000), row(0, "layer", "fc", 900)]
    rows.append(row(1, "op", "aten::mm", 800, **PRODUCT))
    rows += [row(2, "call", "SGEMM", 600, problem="NN m16 n4 k8", flops=FLOPS)]
    rows += [row(1, "op", "aten::relu", 50)]
    trace = trace_of(rows)
    (found,) = kernel_information(trace).to_dicts()
    assert (found["kernel"], found["flops"], found["work_source"]) == ("SGEMM", FLOPS, "library")
    assert (found["read_bytes"], found["write_bytes"]) == (READ, WRITTEN)
    assert (found["full_name"], found["memory_bound"]) == (None, None)
    (layer,) = layer_device_time(trace).to_dicts()
    assert (layer["own_ns"], layer["kernel_ns"], layer["outside_ns"]) == (900.0, 600.0, 300.0)
    assert layer["outside_pct"] == pytest.approx(100 / 3)


def test_operators_are_the_kernels_where_there_are_no_calls_with_their_own_times() -> None:
    rows = [row(None, "pipeline", "predict", 1_000)]
    rows += [row(0, "op", "aten::matmul", 900, latency_low_ns=880.0, latency_high_ns=920.0)]
    rows += [row(1, "op", "aten::mm", 800, **PRODUCT)]
    table = kernel_by_name(trace_of(rows))
    assert table["kernel"].to_list() == ["aten::mm", "aten::matmul"]
    assert table["latency_ns"].to_list() == [800.0, 100.0]
    assert table["latency_low_ns"].to_list() == [None, 80.0]
    assert table["latency_high_ns"].to_list() == [None, 120.0]
    assert table["flops"].to_list() == [FLOPS, 0]


def test_where_kernels_outlast_the_layer_nothing_is_said_of_its_time_outside() -> None:
    (found,) = layer_device_time(on_device(gemm(ns=5_000))).to_dicts()
    assert (found["kernel_ns"], found["outside_ns"], found["kernel_pct"]) == (5_000.0, None, None)


def test_a_serialised_latency_is_that_of_a_layer_that_waits_for_its_kernels() -> None:
    trace = on_device(gemm(ns=5_000))
    spans = trace.spans.with_columns(
        pl.col("attributes").struct.with_fields(
            serialised_ns=pl.when(pl.col("kind") == "layer").then(6_000.0)
        )
    )
    (found,) = layer_device_time(Trace(spans, trace.metadata)).to_dicts()
    assert (found["own_ns"], found["outside_ns"]) == (6_000.0, 1_000.0)


def test_a_kernel_stands_below_the_roof_at_its_intensity() -> None:
    (found,) = kernel_roofline(on_device(gemm(ns=1_000))).to_dicts()
    ideal = FLOPS / (READ + WRITTEN) * 320e9
    assert found["roof_flops_per_s"] == pytest.approx(ideal)
    assert found["reached_pct"] == pytest.approx(100 * (FLOPS / 1e-6) / ideal)
    assert found["bytes_per_s"] == pytest.approx((READ + WRITTEN) / 1e-6)
    assert (found["peak_flops_per_s"], found["peak_bytes_per_s"]) == (8.1e12, 320e9)
    (layer,) = layer_roofline(on_device(gemm(ns=1_000))).to_dicts()
    assert layer["reached_pct"] == found["reached_pct"]


def test_a_kernel_that_only_moves_reaches_a_share_of_the_bandwidth() -> None:
    copy = row(2, "memcpy", "memcpy DtoD", 1_000, transfer_bytes=16_000, direction="DtoD")
    found = kernel_roofline(on_device(copy)).to_dicts()[0]
    assert (found["flops_per_byte"], found["flops_per_s"]) == (0.0, 0.0)
    assert found["reached_pct"] == pytest.approx(10.0)


def test_kernels_of_unknown_work_have_no_place_below_the_roof() -> None:
    assert kernel_roofline(on_device(row(1, "kernel", "other", 5))).height == 0


def test_without_a_roof_a_roofline_still_has_intensities() -> None:
    trace = on_device(gemm())
    found = kernel_roofline(Trace(trace.spans, {**trace.metadata, "environment": {}})).to_dicts()[0]
    assert found["flops_per_byte"] == FLOPS / (READ + WRITTEN)
    assert (found["reached_pct"], found["roof_source"], found["memory_bound"]) == (None,) * 3


def test_metrics_of_layers_are_of_all_that_is_known_of_them() -> None:
    rows = [row(None, "pipeline", "predict", 1_000), row(0, "layer", "net", 900)]
    rows += [row(1, "layer", "fc", 500), row(2, "op", "aten::mm", 400, **PRODUCT)]
    rows += [row(1, "layer", "norm", 100), row(4, "op", "aten::native_batch_norm", 90)]
    rows[-1] |= {"input_shapes": [[4, 16], [16]], "input_dtypes": ["float32"] * 2}
    table = layer_kernel_metrics(trace_of(rows))
    assert table["path"].str.split("/").list.last().to_list() == ["net#1", "fc#2", "norm#4"]
    assert table["flops"].to_list() == [None, FLOPS, None]
    assert table["flops_pct"].to_list() == [None, 100.0, None]
    assert table["write_bytes"].to_list() == [None, WRITTEN, 4 * 16 * 4]
    assert table["bytes_pct"].drop_nulls().sum() == pytest.approx(100.0)


def test_kernels_are_of_the_innermost_layer() -> None:
    rows = [row(None, "pipeline", "predict", 1_000), row(0, "layer", "net", 900)]
    rows += [row(1, "layer", "fc", 500), row(2, "call", "SGEMM", 400), row(1, "call", "SCAL", 7)]
    table = layer_kernels(trace_of(rows))
    assert table["kernel_ns"].to_list() == [7.0, 400.0]
    assert table["own_ns"].to_list() == [400.0, 500.0]


@pytest.mark.parametrize("analysis", [layer_kernels, layer_kernel_metrics, layer_roofline])
def test_what_is_of_layers_says_what_to_do_without_layers(analysis: Any) -> None:
    with pytest.raises(xsp.AnalysisError, match="has no layers: measure with levels=2"):
        analysis(trace_of([row(None, "pipeline", "predict", 10)]))


def test_a_trace_of_one_span_has_tables() -> None:
    trace = trace_of([row(None, "pipeline", "predict", 10)])
    assert kernel_information(trace)["kernel"].to_list() == ["predict"]
    assert kernel_roofline(trace).height == 0


def recorded(name: str) -> Trace:
    if not (TRACES / name).exists():
        pytest.skip(f"needs the real traces {name} (XSP_TRACES)")
    return xsp.read(TRACES / name)


def test_counters_of_profiler_ranges_are_the_work_of_kernels_without_times() -> None:
    table = kernel_by_name(recorded("kineto/counters.json.gz"))
    assert set(table["work_source"]) == {"counted"}
    assert table["latency_ns"].null_count() == table.height
    assert table["count"].sum() == 76
    (found,) = table.filter(pl.col("kernel") == "implicit_convolve_sgemm").to_dicts()
    # From the file: 2 · ffma + fadd + fmul of its one launch.
    assert found["flops"] == 18_263_449_600


def test_a_recorded_copy_with_counters_has_its_occupancy_and_duration() -> None:
    (found,) = kernel_information(recorded("ncu/t4-copy.csv")).to_dicts()
    assert found["occupancy_source"] == "counted"
    assert 0 < found["occupancy_pct"] <= 100


def test_a_recorded_vision_transformer_has_the_operations_of_its_architecture() -> None:
    """ViT-B/16 multiplies and adds 17.56e9 times for an image, as torchvision has it."""
    table = layer_kernel_metrics(recorded("kineto/h100-vit.json.gz"))
    assert table["flops"].sum() / 4 == pytest.approx(2 * 17.56e9, rel=0.01)
    kernels = kernel_roofline(recorded("kineto/h100-vit.json.gz"))
    assert kernels.filter(pl.col("reached_pct") >= 100).height == 0
