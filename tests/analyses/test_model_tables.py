"""Tables of models: batch sizes, throughput, the best batch size, the roofline."""

from __future__ import annotations

import pytest
from samples import Node, layer, op, pipeline, trace

import xsp
from xsp.analyses import model_information, model_roofline, optimal_batch
from xsp.trace import Trace


def at(batch: int, per_s: float, **settings: object) -> Trace:
    """Return the trace of a model that takes so many samples per second at a batch size."""
    latency = round(1e9 * batch / per_s)
    root = pipeline("Net", layer("Net", "Net", own_ns=latency), own_ns=0)
    return trace(root, settings={"batch": batch, **settings})


def test_the_batch_size_is_that_of_the_settings_or_of_the_first_input() -> None:
    shaped = {"input_shapes": [[16, 3, 32, 32], [4, 4]]}
    inner = layer("conv", "Conv2d", input_shapes=[[2, 2]])
    net = layer("Net", "Net", inner, own_ns=2_000, phase="forward", **shaped)
    backward = layer("Net", "Net", phase="backward")
    assert model_information(trace(pipeline("step", net, backward)))["batch"].item() == 16
    assert model_information(trace(pipeline("step", net, net)))["batch"].item() is None
    flat = layer("Net", "Net", input_shapes=[[16]])
    assert model_information(trace(pipeline("predict", flat)))["batch"].item() is None
    settings = {"batch": 8, "threads": 2, "compiled": False, "precision": "float32"}
    told = model_information(trace(pipeline("predict", net), settings=settings))
    assert told["batch"].item() == 8
    assert told["settings"].item() == "threads 2, precision float32"


def test_information_counts_what_an_evaluation_holds() -> None:
    kernels = [Node("kernel", "gemm", 700, columns={"device": 0, "device_ns": 700.0})] * 2
    inner = layer("0", "Linear", op("aten::mm", *kernels), parameter_bytes=100, peak_bytes=9)
    net = layer("Net", "Net", inner, parameter_bytes=100, peak_bytes=30, own_ns=2_000)
    root = pipeline("predict", net, net, own_ns=0)
    root.columns["device_ns"] = 0.25 * root.latency_ns
    [row] = model_information(trace(root)).iter_rows(named=True)
    assert (row["layers"], row["kernels"]) == (4, 4)
    assert (row["parameter_bytes"], row["peak_bytes"]) == (100, 30)  # one module, called twice
    assert row["device_pct"] == pytest.approx(25)


def test_the_best_batch_size_is_the_smallest_whose_doubling_gains_little() -> None:
    traces = [at(8, 360.0), at(1, 100.0), at(2, 190.0), at(4, 350.0)]
    table = optimal_batch(*traces)
    assert table["batch"].to_list() == [1, 2, 4, 8]
    assert table["gain_pct"].to_list()[:3] == pytest.approx([90, 84.2, 2.86], rel=1e-2)
    assert table["optimal"].to_list() == [False, False, True, False]
    assert optimal_batch(*traces, threshold_pct=1.0)["optimal"].to_list()[-1]


def test_under_a_latency_target_the_quickest_batch_within_counts() -> None:
    traces = [at(1, 100.0), at(2, 190.0), at(4, 350.0)]  # 10 ms, 10.5 ms, 11.4 ms
    table = optimal_batch(*traces, latency_target_ns=10.7e6)
    assert table["within_target"].to_list() == [True, True, False]
    assert table["optimal"].to_list() == [False, True, False]
    # The end of the interval has to be within: 10.53 ms may be 10.63 ms.
    table = optimal_batch(*traces, latency_target_ns=10.6e6)
    assert table["within_target"].to_list() == [True, False, False]
    none = optimal_batch(*traces, latency_target_ns=1e6)
    assert not none["optimal"].any()


def test_without_any_batch_size_it_is_said_what_to_do() -> None:
    with pytest.raises(xsp.AnalysisError, match="no batch size is known of adder: measure with"):
        optimal_batch(trace(pipeline("adder", op("aten::add"))))


def test_the_roofline_takes_the_time_of_the_deepest_spans() -> None:
    sizes = {"flops": 640, "problem": "TN m10 n4 k8"}
    product = op("xsp::product", Node("call", "SGEMM", 400, [], sizes))
    root = pipeline("predict", layer("Net", "Net", product, op("xsp::other")))
    [row] = model_roofline(trace(root)).iter_rows(named=True)
    assert row["kernel_ns"] == pytest.approx(400 + 1_000)  # the call, and the other operator
    assert row["kernel_low_ns"] == pytest.approx(0.99 * 1_400)
    assert (row["read_bytes"], row["write_bytes"]) == (448, 160)
    assert row["flops_per_byte"] == pytest.approx(640 / 608)
    assert row["flops_per_s"] == pytest.approx(640 / 1_400e-9)
    assert row["flops_high_per_s"] == pytest.approx(row["flops_per_s"] / 0.99)
    assert row["work_source"] == "library"


def test_the_roofline_of_a_group_is_that_of_one_evaluation() -> None:
    sizes = {"flops": 640, "problem": "TN m10 n4 k8", "calls": 10}
    call = Node("call", "SGEMM", 4_000, [], sizes)
    often = pipeline("Net 8", layer("Net", "Net", op("aten::mm", call), calls=10))
    often.attributes["calls"] = 10
    groups = [{"name": "Net 8", "model": "Net", "samples": 8, "latency_ns": 800.0}]
    [row] = model_roofline(trace(pipeline("block", often), groups=groups)).iter_rows(named=True)
    assert (row["flops"], row["read_bytes"], row["write_bytes"]) == (640, 448, 160)
    # All calls took 9,000 ns, 900 each; one that is repeated takes 800.
    assert row["kernel_ns"] == pytest.approx(400 * 800 / 900)
    assert row["kernel_pct"] == pytest.approx(100 * 400 / 900)
