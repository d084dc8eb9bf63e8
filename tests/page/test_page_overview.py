from __future__ import annotations

import polars as pl
import pytest
from samples import Node, conv, layer, op, pipeline, resnet, trace

from xsp.analyses import level_latency, verdict
from xsp.show.page.overview import Overview, limits_of, overview_of
from xsp.trace import Trace


def with_shapes() -> Node:
    shapes = {"input_shapes": [[8, 3, 224, 224]]}
    net = layer("Net", "Net", conv("conv", 500_000), own_ns=500_000, **shapes)
    return pipeline("predict", net, own_ns=1_000_000)


def shown(made: Trace) -> Overview:
    return overview_of(made, level_latency(made))


def tiles(made: Trace) -> dict[str, str]:
    return {tile.label: tile.value for tile in shown(made).tiles}


def test_latency_throughput_and_depth_are_told() -> None:
    made = trace(with_shapes())
    latency = made.root.latency_ns
    assert latency is not None
    assert tiles(made) == {
        "latency of one step": f"{latency / 1e6:.2f} ms",
        "throughput": f"{8e9 / latency:,.0f} samples/s",
        "spans": "8",
    }
    first, *_ = shown(made).tiles
    assert first.margin.endswith("ms")


def test_the_parts_of_a_bar_make_the_whole() -> None:
    (bar,) = shown(trace(with_shapes())).bars
    assert sum(part.share_pct for part in bar.parts) == pytest.approx(100, abs=0.01)
    assert [part.kind for part in bar.parts] == ["region", "layer", "op"]
    assert bar.parts[0].time == "1.00 ms"


def test_time_by_level_is_that_of_the_analysis_and_makes_the_latency() -> None:
    made = trace(resnet())
    (bar,) = shown(made).bars
    table = level_latency(made).filter(pl.col("own_ns") > 0)
    assert [part.share_pct for part in bar.parts] == pytest.approx(
        table["share_pct"].to_list(), abs=0.001
    )


def test_the_verdict_stands_first_and_what_cannot_be_told_is_left_out() -> None:
    table = pl.DataFrame(
        {
            "candidate": ["library-bound", "compute-bound", "thread-bound"],
            "verdict": [False, True, False],
            "share_pct": [69.5, 50.3, None],
            "time_ns": [59.1e6, 42.9e6, None],
            "evidence": ["212 library calls", "53 above the ridge", "cannot tell"],
        }
    )
    first, second = limits_of(table)
    assert (first.candidate, first.share, first.time) == ("compute-bound", "50.3 %", "42.9 ms")
    assert second.evidence == "212 library calls"
    assert limits_of(verdict(trace(resnet())))


def test_device_time_has_a_bar_with_what_is_idle() -> None:
    kernel = Node("kernel", "gemm", 600_000)
    made = trace(pipeline("predict", op("aten::mm", own_ns=400_000), kernel, own_ns=0))
    spans = made.spans.with_columns(
        device=pl.when(pl.col("kind") == "kernel").then(0).cast(pl.Int32),
        device_ns=pl.when(pl.col("kind") == "kernel").then(600_000.0).otherwise(600_000.0),
    )
    host, device = shown(Trace(spans, made.metadata)).bars
    assert [(part.words, part.share) for part in device.parts] == [
        ("kernels", "60.0 %"),
        ("idle", "40.0 %"),
    ]
    assert "kernels" not in [part.words for part in host.parts]


def test_warnings_machine_and_plan_are_told_as_they_are() -> None:
    warnings = [
        {"code": "noisy", "message": "another process ran"},
        {"code": "note", "message": "nodes are those of a second session"},
    ]
    environment = {"cpu": "AMD EPYC", "logical_cores": 2, "python": "3.11.7"}
    began = {"began_unix_ns": 1_752_830_083_332_972_313}
    made = trace(resnet(), warnings=warnings, environment=environment, plan={"runs": 30}, **began)
    said = shown(made)
    assert said.doubts == "1 warning: noisy"
    assert said.warnings == (("noisy", "another process ran"),)
    assert said.notes == ("nodes are those of a second session",)
    assert said.measured == (
        "measured by xsp on AMD EPYC, 2 cores · 2025-07-18 09:14 UTC · Python 3.11.7"
    )
    assert ("plan: runs", "30") in said.facts
    assert any("overhead removed" in claim for claim in said.exact)
