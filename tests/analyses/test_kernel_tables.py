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
    verdict,
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
    rows = [row(None, "region", "predict", 1_000), row(0, "layer", "fc", 900, module_path="fc")]
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


def test_a_synchronous_latency_is_that_of_a_layer_that_waits_for_its_kernels() -> None:
    trace = on_device(gemm(ns=5_000))
    spans = trace.spans.with_columns(
        pl.col("attributes").struct.with_fields(
            synchronous_ns=pl.when(pl.col("kind") == "layer").then(6_000.0)
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


def test_kernels_of_unknown_work_have_no_place_below_the_roof() -> None:
    assert kernel_roofline(on_device(row(1, "kernel", "other", 5))).height == 0


def test_kernels_are_of_the_innermost_layer() -> None:
    rows = [row(None, "region", "predict", 1_000), row(0, "layer", "net", 900)]
    rows += [row(1, "layer", "fc", 500), row(2, "call", "SGEMM", 400), row(1, "call", "SCAL", 7)]
    table = layer_kernels(trace_of(rows))
    assert table["kernel_ns"].to_list() == [7.0, 400.0]
    assert table["own_ns"].to_list() == [400.0, 500.0]


@pytest.mark.parametrize("analysis", [layer_kernels, layer_kernel_metrics, layer_roofline])
def test_what_is_of_layers_says_what_to_do_without_layers(analysis: Any) -> None:
    with pytest.raises(xsp.AnalysisError, match="has no layers: measure with levels=2"):
        analysis(trace_of([row(None, "region", "predict", 10)]))


def test_a_trace_of_one_span_has_tables() -> None:
    trace = trace_of([row(None, "region", "predict", 10)])
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


def test_copies_and_sets_are_not_measured_against_the_peak_of_the_memory() -> None:
    copy = row(2, "memcpy", "memcpy HtoD", 90, transfer_bytes=1 << 20)
    clear = row(2, "memset", "memset", 10, transfer_bytes=512)
    counted: dict[str, Any] = {"flops": 1_000, "dram_read_bytes": 4_000, "dram_write_bytes": 4_000}
    made = on_device(copy, clear, gemm(**counted))
    table = kernel_by_name(made)
    bound = dict(zip(table["kernel"], table["memory_bound"], strict=True))
    assert bound == {"memcpy HtoD": None, "memset": None, "gemm": True}
    assert kernel_roofline(made)["kernel"].to_list() == ["gemm"]
    (memory,) = verdict(made).filter(pl.col("candidate") == "memory-bound")["evidence"].to_list()
    assert memory.startswith("1 kernel with fewer than")
