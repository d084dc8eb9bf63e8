from __future__ import annotations

import time

import gpu
import numpy as np
import polars as pl
import pytest
from gpu import Gpu, Step, Work, launch
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching.run import Pass, Run
from xsp.reading.merge.assembly import Merged, merge
from xsp.trace import integrity
from xsp.trace.outline import outline

WORKING = [kind.value for kind in DEVICE_ACTIVITIES]


def merged(device: Gpu, rounds: int = 1) -> Merged:
    result = merge(device.measure(rounds))
    integrity.check(result.spans)
    return result


def covered(intervals: list[tuple[int, int]]) -> int:
    """Return how much time the intervals cover, nanosecond by nanosecond."""
    return len({ns for start, end in intervals for ns in range(start, end)})


def below(spans: pl.DataFrame, span_id: int) -> list[tuple[int, int]]:
    """Return the measured intervals of all device activities anywhere below a span."""
    found = []
    for child in spans.filter(pl.col("parent_id") == span_id).iter_rows(named=True):
        if child["kind"] in WORKING:
            found.append((child["measured_start_ns"], child["measured_end_ns"]))
        found += below(spans, child["span_id"])
    return found


@unhurried
@given(gpu.models(), st.booleans())
def test_device_time_is_the_union_of_all_that_is_below(
    model: tuple[Step, ...], drain: bool
) -> None:
    spans = merged(Gpu(model, drain=drain)).spans
    rows = spans.filter(~pl.col("kind").is_in(["launch", "sync", *WORKING]))
    expected = [covered(below(spans, span_id)) for span_id in rows["span_id"]]
    worked = spans["kind"].is_in(WORKING).any()
    assert rows["device_ns"].to_list() == (expected if worked else [None] * rows.height)


def two_streams() -> Gpu:
    works = (Work("a", 1_000), Work("b", 1_000, stream=9), Work("c", 400, device=1))
    op = Step(Kind.OP, "mm", tuple(launch(work, own_ns=4) for work in works), own_ns=8)
    idle = Step(Kind.OP, "idle")
    return Gpu([Step(Kind.LAYER, "net", (op, idle))])


def test_what_streams_and_devices_do_at_one_time_counts_once() -> None:
    spans = merged(two_streams()).spans
    device = dict(spans.select("name", "device_ns").iter_rows())
    assert device["mm"] == device["net"] == device["predict"] == 1_006
    assert (device["a"], device["c"]) == (1_000, 400)
    assert device["idle"] == 0


def test_a_launch_has_the_device_time_of_what_it_launched() -> None:
    nodes = [Work(f"n{i}", 100, node=i) for i in range(3)]
    model = [
        launch(*nodes, name="cudaGraphLaunch"),
        launch(Work(length_ns=70)),
        launch(name="free"),
    ]
    spans = merged(Gpu(model)).spans.filter(pl.col("kind") == "launch")
    assert dict(spans.select("name", "device_ns").iter_rows()) == {
        "cudaGraphLaunch": 300,
        "cudaLaunchKernel": 70,
        "free": 0,
    }


def test_waiting_for_a_device_is_no_device_time() -> None:
    model = [launch(Work("wait", 500, Kind.SYNC)), launch(Work("gemm", 100))]
    device = dict(merged(Gpu(model)).spans.select("name", "device_ns").iter_rows())
    assert (device["predict"], device["wait"], device["gemm"]) == (100, 0, 100)


@pytest.mark.parametrize("drain", [True, False])
def test_kernels_have_the_devices_own_latency_and_hosts_lose_their_overhead(*, drain: bool) -> None:
    quiet, costly = (
        merged(Gpu(gpu.transformer(), cost_ns=cost, drain=drain), rounds=5).spans
        for cost in (0, 4_000)
    )
    assert quiet["path"].to_list() == costly["path"].to_list()
    on_device = quiet["device"].is_not_null()
    latency = costly["latency_ns"].filter(on_device)
    assert latency.to_list() == quiet["latency_ns"].filter(on_device).to_list()
    assert costly["overhead_ns"].filter(on_device).unique().to_list() == [0]
    assert costly.filter(on_device)["attributes"].struct.field("exact").all()
    host = ~on_device & (quiet["kind"] != "region")
    apart = (costly["latency_ns"] - quiet["latency_ns"]).filter(host).abs().to_numpy()
    assert apart.max() <= 4
    assert (costly["overhead_ns"] > 20_000).any()


def codes(result: Merged) -> dict[str, str]:
    return {warning.code: warning.message for warning in result.warnings}


def test_a_launch_without_its_kernel_is_told() -> None:
    runs = Gpu(gpu.transformer()).measure(3)
    whole = codes(merge(runs))
    assert "idle-launches" not in whole
    assert "executions-vary" not in whole
    found = codes(merge([*runs[:-1], without_kernels(runs[-1], 2)]))
    assert "2 of 27 calls of cudaLaunchKernel" in found["idle-launches"]
    assert "19 to 21 kernels and copies" in found["executions-vary"]


def without_kernels(run: Run, count: int) -> Run:
    assert run.rows is not None
    last = np.flatnonzero(run.rows["kind"] == "kernel")[-count:]
    kept = np.setdiff1d(np.arange(run.rows.height), last)
    new = np.cumsum(np.isin(np.arange(run.rows.height), kept)) - 1
    parent = run.rows["parent"].to_numpy()[kept]
    rows = run.rows[kept].with_columns(parent=pl.Series(np.where(parent < 0, -1, new[parent])))
    return Run(run.pass_, run.latency_ns, rows, run.process, run.round)


@pytest.mark.timing
def test_a_million_rows_are_merged_within_seconds() -> None:
    played = Gpu([gpu.repeated(200_000)]).play()
    frame = played.correlate().frames[0]
    assert frame.height > 1_000_000
    pass_ = Pass(gpu.EVERYTHING)
    begin = time.perf_counter()
    result = merge([Run(pass_, 10**9, frame, 0, 0)])
    took = time.perf_counter() - begin
    assert result.spans["device_ns"].null_count() == 0
    assert took < 120


def test_what_the_host_waits_for_devices_is_told_apart_from_its_self_time() -> None:
    device = Gpu(gpu.transformer(2), cost_ns=300)
    runs = device.measure(4)
    bare = [run for run in runs if run.pass_.order == 0]
    spans = merge(runs).spans
    (wait, *others) = spans["attributes"].struct.field("device_wait_ns")
    assert wait == bare[0].latency_ns - (bare[0].host_ns or 0) > 100_000
    assert others == [None] * (spans.height - 1)
    rows = outline(spans, rows=200).rows
    own = {row.name: row.latency_ns for row in rows if row.kind == "own" and row.depth == 1}
    assert own["waiting for devices"] == wait
    assert sum(latency or 0.0 for latency in own.values()) <= spans["self_ns"][0]
