"""Advice: each rule fires on its case and not on the opposite, and none on noise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from device_samples import call as launching_call
from device_samples import random_timeline, timeline, work
from samples import Node, frame, layer, op, pipeline, trace

import xsp
from xsp.analyses import advice, verdict
from xsp.answer.analyses.advice.advice import RULES
from xsp.answer.analyses.advice.finding import Case
from xsp.trace import Trace

KINETO = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
KINETO = KINETO / "kineto"


def call(name: str, own_ns: int, **about: Any) -> Node:
    return Node("call", name, own_ns, [], {"library": "oneDNN 3.4", **about})


def kernel(name: str, own_ns: int, launch: int | None = None, **about: Any) -> Node:
    where = {"device": 0, "stream": 7, "correlation_id": launch}
    return Node("kernel", name, own_ns, [], about, where)


def rules(*traces: Trace) -> list[str]:
    """List the findings, without those that only repeat the verdict."""
    by_verdict = pl.col("evidence").str.starts_with("the verdict is ")
    return advice(*traces).filter(~by_verdict)["rule"].to_list()


def row(rule: str, *traces: Trace) -> dict[str, Any]:
    found = advice(*traces).filter(rule=rule)
    assert found.height == 1, rules(*traces)
    return found.row(0, named=True)


def convolving(*calls: Node, **about: Any) -> Trace:
    convolution = op("aten::conv2d", *calls, own_ns=1_000)
    conv = layer("conv1", "Conv2d", convolution, own_ns=1_000, module_path="conv1")
    return trace(pipeline("predict", conv, own_ns=1_000), **about)


def test_reference_implementations_are_found_and_compared_with_others() -> None:
    slow = call("convolution", 80_000, implementation="ref:any", flops=1_000)
    quick = call("convolution", 10_000, implementation="jit:avx2", flops=1_000)
    found = row("reference implementation", convolving(slow, quick))
    assert found["gain_ns"] == pytest.approx(70_000)
    assert found["gain_low_ns"] == pytest.approx(70_000 - 800)
    assert "conv1 (80.0 µs)" in found["evidence"]
    assert rules(convolving(quick, quick)) == []


ACTIVATIONS = {"formats": "src f32 abcd, dst f32 aBcd16b", "implementation": "jit:blk"}
WEIGHTS = {"formats": "src f32 abcd, dst f32 ABcd16b16a", "implementation": "jit:blk"}


def test_conversions_of_activations_and_of_weights_are_told_apart() -> None:
    conv = call("convolution", 50_000, implementation="jit:avx2")
    reorder = call("reorder", 20_000, **ACTIVATIONS, tensor_bytes=1 << 20)
    packing = call("reorder", 30_000, **WEIGHTS)
    measured = convolving(reorder, packing, conv)
    found = row("layout conversion", measured)
    assert found["gain_ns"] == 20_000
    assert "channels_last" in found["advice"]
    assert "1.00 MiB" in found["evidence"]
    assert row("weights packed in each call", measured)["gain_ns"] == 30_000


def test_chains_of_element_wise_operators_gain_all_but_the_longest() -> None:
    chain = [op(name, own_ns=time) for name, time in (("aten::mul", 30_000), ("aten::add", 20_000))]
    for each in chain:
        each.attributes["input_shapes"] = [[8, 8]]
    found = row("element-wise operators to fuse", trace(pipeline("predict", *chain)))
    assert found["gain_ns"] == 20_000
    assert "mul → add (50.0 µs)" in found["evidence"]
    between = [chain[0], op("aten::mm", own_ns=1_000), chain[1]]
    assert rules(trace(pipeline("predict", *between))) == []


def test_overhead_of_the_framework_shows_where_it_exceeds_computing() -> None:
    tiny = [op("aten::linear", op("aten::t", own_ns=4_000), op("aten::addmm", own_ns=2_000),
               own_ns=5_000) for _ in range(20)]  # fmt: skip
    net = layer("net", "Net", *tiny, own_ns=100_000)
    found = row("framework overhead", trace(pipeline("predict", net)))
    assert found["gain_ns"] == 100_000 + 20 * 9_000
    assert "60 operators" in found["evidence"]
    large = [op("aten::linear", op("aten::addmm", own_ns=90_000), own_ns=5_000)]
    assert rules(trace(pipeline("predict", layer("net", "Net", *large, own_ns=10_000)))) == []
    compiles = pipeline("compile Net.forward", own_ns=200_000)
    whole = layer("net", "Net", compiles, *large, own_ns=10_000)
    assert "framework overhead" not in rules(trace(pipeline("predict", whole)))


def launching(kernel_ns: int, host_ns: int, *, count: int = 10, **about: Any) -> Node:
    """Return operators that launch a kernel each."""

    def one(index: int) -> Node:
        launch = Node("launch", "cudaLaunchKernel", 2_000, [], {}, {"correlation_id": index})
        return op("aten::mm", launch, kernel(f"gemm_{index % 2}", kernel_ns, index, **about),
                  own_ns=host_ns)  # fmt: skip

    root = pipeline("predict", *(one(index) for index in range(count)))
    root.columns["device_ns"] = float(count * kernel_ns)
    return root


def test_a_device_that_waits_for_launches_is_host_bound() -> None:
    found = row("host-bound", trace(launching(2_000, 20_000)))
    # The device idles for 202 µs, and the operators take all but 2 µs of the host's time.
    assert found["gain_ns"] == pytest.approx(222_000 - 20_000)
    assert "10 kernels of 2.00 µs" in found["evidence"]
    assert "host-bound" not in rules(trace(launching(20_000, 20_000)))


def test_advice_and_verdict_call_the_wait_for_the_host_the_same_and_give_one_size() -> None:
    measured = trace(launching(2_000, 20_000))
    (first, *_) = verdict(measured).to_dicts()
    found = row("host-bound", measured)
    assert first["candidate"] == "host-bound"
    told = verdict(measured).filter(pl.col("candidate").is_in(["host-bound", "launch-bound"]))
    assert found["gain_ns"] == pytest.approx(told["time_ns"].sum())
    assert found["gain_pct"] == pytest.approx(told["share_pct"].sum())


def test_kernels_without_counters_deserve_them() -> None:
    found = row("kernels to count", trace(launching(20_000, 18_000)))
    assert found["gain_ns"] == pytest.approx(200_000)
    assert found["verify"] == "xsp counters FILE python …"
    counted = launching(20_000, 18_000, dram_read_bytes=1_000)
    assert rules(trace(counted)) == []


def waiting(inside: Callable[..., Node]) -> Trace:
    wait = Node("launch", "cudaStreamSynchronize", 40_000, [])
    return trace(pipeline("predict", inside("aten::item", wait), own_ns=60_000))


def test_waits_within_operators_are_found_and_those_at_the_end_are_not() -> None:
    found = row("synchronization", waiting(op))
    assert found["gain_ns"] == 40_000
    assert "aten::item (40.0 µs)" in found["evidence"]
    assert rules(waiting(pipeline)) == []


def loading(load_ns: int, workers: int) -> Trace:
    load = Node("region", "data loading", load_ns, [], {"workers": workers, "calls": 12})
    step = pipeline("training step", op("aten::mm", own_ns=90_000))
    return trace(pipeline("train", load, step))


def test_waiting_for_data_is_found_and_says_whether_workers_load_it() -> None:
    found = row("data loading", loading(30_000, 0))
    assert found["gain_ns"] == 30_000
    assert "12 times, and no worker process does it" in found["evidence"]
    assert "4 workers" in row("data loading", loading(30_000, 4))["evidence"]
    assert rules(loading(100, 0)) == []


def test_first_calls_that_were_longer_are_found() -> None:
    first = pipeline("first call of Net 8×3: more than the others", own_ns=50_000)
    found = row("first calls", trace(pipeline("serve", first, op("aten::mm", own_ns=90_000))))
    assert found["gain_ns"] == 50_000


def test_recompilations_are_found_from_a_twentieth_of_the_time_on() -> None:
    def compiling(ns: int) -> Trace:
        again = pipeline("recompile Net.forward", own_ns=ns)
        again.attributes["recompile_reason"] = "expected 4, actual 6"
        return trace(pipeline("serve", again, op("aten::mm", own_ns=100_000 - ns)))

    found = row("recompilations", compiling(8_000))
    assert found["gain_ns"] == 8_000
    assert found["evidence"].endswith(": expected 4, actual 6")
    assert "recompilations" not in rules(compiling(4_000))


def threaded(threads: int, *, others: int = 0) -> Trace:
    beside = [
        Node("op", "aten::mm", 90_000, [], {}, {"thread": 2 + index}) for index in range(others)
    ]
    environment = {"usable_cores": 4.0, "threads": {"operators": threads}}
    root = pipeline("predict", *beside, op("aten::mm", own_ns=90_000))
    return trace(root, environment=environment)


def test_more_threads_than_cores_fight() -> None:
    found = row("threads that fight", threaded(8))
    assert found["gain_ns"] == pytest.approx(45_000)
    assert "8 threads each, on 4 cores" in found["evidence"]
    assert found["verify"].endswith("--threads 4,8")
    assert rules(threaded(4)) == []


def batch(size: int, latency_ns: int, *, margin: float = 0.01, kind: str = "Net") -> Trace:
    net = layer("net", kind, op("aten::mm", own_ns=latency_ns - 10_000), own_ns=10_000,
                input_shapes=[[size, 3, 32, 32]])  # fmt: skip
    root = pipeline("predict", net, own_ns=0)
    known = {"name": f"batch {size}", "warnings": [], "levels": {"model": "measured"}}
    return Trace(frame(root, margin=margin), known)


def test_a_batch_far_from_the_best_is_found_between_several_traces() -> None:
    found = row("batch size", batch(1, 100_000), batch(8, 200_000))
    assert found["trace"] == "batch 1"
    assert found["gain_ns"] == pytest.approx(75_000)
    assert "100 µs per input in batches of 1, 25.0 µs in batches of 8" in found["evidence"]
    assert rules(batch(1, 100_000)) == []


def test_the_largest_gain_comes_first_and_every_row_has_a_number() -> None:
    table = advice(loading(30_000, 0), trace(launching(2_000, 20_000)))
    assert table["gain_pct"].is_sorted(descending=True)
    assert table["gain_ns"].null_count() == 0
    assert table["evidence"].str.contains(r"\d").all()
    assert (table["gain_pct"] <= 100).all()


def test_advice_on_a_real_model_with_written_out_attention() -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return (x @ x.transpose(-1, -2)).softmax(-1) @ x

    x = torch.randn(4, 256, 32)
    with torch.inference_mode():
        measured = xsp.measure(Attention(), x, levels=2, runs=8)
    eager = [rule for rule in _all_rules(measured) if rule == "attention written out"]
    assert eager == ["attention written out"]


def _all_rules(measured: Trace) -> list[str]:
    """List the findings of the rules, whether they exceed noise or not."""
    return [finding.rule for rule in RULES for finding in rule(Case(measured))]


@pytest.mark.skipif(not KINETO.is_dir(), reason="needs real traces (XSP_TRACES)")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100-bert-small", ["host-bound", "kernels to count"]),
        ("mi300-compiled", ["kernels to count"]),
        ("v100-resnet50-training-2021", ["data loading", "kernels to count", "pageable copies"]),
        ("a100-queue", ["synchronization", "kernels to count"]),
    ],
)
def test_advice_on_recordings(name: str, expected: list[str]) -> None:
    table = advice(xsp.read(KINETO / f"{name}.json.gz"))
    assert sorted(table["rule"]) == sorted(expected)
    assert (table.filter(pl.col("gain_pct") > 0)["gain_pct"] >= 1).all()


def test_functions_that_run_within_a_training_step_are_found() -> None:
    ran = {"self_functions": ["reward"], "self_lines": ["game.py:9"], "self_shares": [0.9]}
    backward = pipeline("backward", op("aten::mm", own_ns=10_000), own_ns=5_000)
    step = pipeline("Net training step", backward, own_ns=60_000)
    root = pipeline("game.py:1", step, own_ns=1_000)
    step.attributes.update(ran, self_samples=100, calls=1)
    backward.attributes.update(ran, self_samples=100, calls=1)
    root.attributes.update(whole_block=True, calls=1)
    groups = [{"name": "Net training step", "phase": "training step"}]
    found = row("program's own code", trace(root, groups=groups))
    assert found["gain_ns"] == pytest.approx(0.9 * 60_000)
    inference = [{"name": "Net training step", "phase": "inference"}]
    assert "program's own code" not in rules(trace(root, groups=inference))


@pytest.mark.parametrize(("busy_ns", "gain_ns"), [(None, 18_000), (30_000, 30_000)])
def test_a_thread_that_waits_for_what_others_evaluate_runs_no_code_of_its_own(
    busy_ns: float | None, gain_ns: float
) -> None:
    model = pipeline("Net 8×3", op("aten::mm", own_ns=40_000))
    model.columns["thread"] = 8
    if busy_ns is not None:  # several of them at once
        model.attributes["busy_ns"] = busy_ns
    root = pipeline("server.py:1", model, own_ns=60_000)
    ran = {"self_functions": ["wait"], "self_lines": ["threading.py:327"], "self_shares": [1.0]}
    root.attributes.update(ran, self_samples=100, calls=1, whole_block=True)
    found = row("program's own code", trace(root, groups=[{"name": "Net 8×3"}]))
    assert found["gain_ns"] == pytest.approx(gain_ns)


COPY = {"kind": "memcpy", "name": "memcpy HtoD"}
REDUCE = {"name": "ncclDevKernel_AllReduce_Sum"}


@pytest.mark.parametrize(
    ("more", "said"),
    [(COPY, "copy-bound"), (REDUCE, "communication-bound"), ({}, "kernels to count")],
)
def test_advice_agrees_with_the_verdict(more: dict[str, Any], said: str) -> None:
    busy = timeline(1_000, launching_call(0, 5, 1), work(10, 990, 1, **more))
    found = advice(busy).row(0, named=True)
    assert found["rule"] == said
    assert found["gain_ns"] == 980


@pytest.mark.parametrize("seed", range(20))
def test_whatever_limits_a_device_most_there_is_advice_of_that_size(seed: int) -> None:
    drawn = random_timeline(seed)
    limit = verdict(drawn).filter(pl.col("verdict")).row(0, named=True)
    assert advice(drawn)["gain_ns"].max() >= limit["time_ns"] / 2


def test_nothing_is_advised_twice_where_a_rule_says_what_the_verdict_says() -> None:
    pageable = COPY | {"source": "pageable", "destination": "device", "transfer_bytes": 1 << 20}
    copies = timeline(1_000, launching_call(0, 5, 1), work(10, 990, 1, **pageable))
    assert "pageable copies" in advice(copies)["rule"].to_list()
    assert "copy-bound" not in advice(copies)["rule"].to_list()
