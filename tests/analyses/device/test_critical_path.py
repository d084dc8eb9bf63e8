"""The critical path: known answers, random timelines, a slow reference, real recordings."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from device_samples import Row, call, host, random_timeline, timeline, work
from hypothesis import given
from hypothesis import strategies as st

import xsp
from xsp.analyses import critical_path
from xsp.analyses.device.path.graph import graph_of
from xsp.analyses.device.path.longest_path import Points, condensed, in_order, reached
from xsp.analyses.tree import Tree
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
NAMES = sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("kineto/*.json.gz"))


def kinds(trace: Trace) -> dict[str, tuple[int, float]]:
    """Return time on the path and gain of each kind."""
    table = critical_path(trace)
    table = table.filter(table["name"].is_null())
    return {kind: (time, gain) for kind, time, gain in table["kind", "time_ns", "gain_ns"].rows()}


def synchronise(start: int, end: int, **more: int) -> Row:
    return call(start, end, 99, "cudaDeviceSynchronize", **more)


def test_of_one_thread_it_is_all_spans_own_time() -> None:
    inner = host("op", "aten::mm", 20, 50, inside=1)
    trace = timeline(100, host("layer", "fc", 10, 60), inner)
    assert kinds(trace) == {"pipeline": (50, 50.0), "op": (30, 30.0), "layer": (20, 20.0)}


def test_it_leads_through_launch_and_kernel_to_the_synchronisation() -> None:
    trace = timeline(100, call(10, 15, 1), work(18, 80, 1), synchronise(30, 82))
    # Without the kernel the host would reach the synchronisation at 30, and return 2 later.
    # Without launches the host waits for the same kernel: only 5 + 2 are saved.
    assert kinds(trace) == {
        "kernel": (62, 50.0),
        "pipeline": (28, 28.0),
        "launch": (7, 7.0),
        "latency": (3, 3.0),
    }


def test_work_that_the_host_does_not_wait_for_is_not_on_it() -> None:
    trace = timeline(100, call(10, 15, 1), work(18, 60, 1), synchronise(70, 72))
    assert kinds(trace) == {"pipeline": (93, 48.0), "launch": (7, 7.0)}


def test_it_ends_with_the_last_work() -> None:
    trace = timeline(50, call(10, 15, 1), work(20, 80, 1), host("op", "print", 30, 50))
    assert kinds(trace)["kernel"] == (60, 30.0)
    assert sum(time for time, _ in kinds(trace).values()) == 80


def test_what_runs_beside_it_limits_the_gain() -> None:
    calls = [call(0, 5, 1), call(5, 10, 2), synchronise(10, 90)]
    reduce = work(10, 70, 2, stream=8, name="ncclDevKernel_AllReduce")
    found = kinds(timeline(90, *calls, work(5, 90, 1), reduce))
    assert found["kernel"] == (85, 20.0)
    assert "communication" not in found


def test_queued_work_is_bound_by_the_work_before() -> None:
    calls = [call(0, 5, 1), call(5, 10, 2), synchronise(10, 90)]
    found = kinds(timeline(90, *calls, work(6, 40, 1), work(42, 90, 2, name="softmax")))
    assert found["kernel"] == (82, 79.0)
    assert found["queue"] == (2, 2.0)


def test_a_stream_that_was_told_to_wait_is_bound_by_the_other() -> None:
    wait = call(10, 11, 98, "cudaStreamWaitEvent")
    calls = [call(0, 5, 1), wait, call(11, 13, 2), synchronise(13, 95)]
    side = work(62, 95, 2, stream=8, name="softmax")
    told = kinds(timeline(95, *calls, work(6, 60, 1), side))
    assert told["kernel"][0] == 87
    calls.remove(wait)
    assert kinds(timeline(95, *calls, work(6, 60, 1), side))["kernel"][0] == 33


def test_a_copy_that_blocks_its_call_is_waited_for() -> None:
    copy = work(60, 70, 2, kind="memcpy", name="memcpy DtoH")
    calls = [call(0, 5, 1), call(10, 72, 2, "cudaMemcpyAsync")]
    found = kinds(timeline(100, *calls, work(8, 60, 1), copy))
    assert found == {
        "kernel": (52, 47.0),  # a copy takes 3 to begin, as the kernel did
        "pipeline": (28, 28.0),
        "memcpy": (10, 10.0),
        "launch": (7, 7.0),
        "latency": (3, 3.0),
    }


def test_a_span_waits_for_what_it_began_on_another_thread() -> None:
    backward = host("op", "MmBackward", 30, 80, thread=2, inside=1)
    trace = timeline(100, host("pipeline", "loss.backward", 20, 85), backward)
    assert kinds(trace) == {"op": (50, 50.0), "pipeline": (50, 50.0)}


def test_what_another_thread_does_meanwhile_is_not_on_it() -> None:
    beside = host("call", "load", 30, 65, thread=2, inside=1)
    ops = host("op", "aten::mm", 10, 70, inside=1)
    trace = timeline(100, host("pipeline", "predict", 0, 100), beside, ops)
    table = critical_path(trace)
    assert "load" not in table["name"].to_list()
    assert kinds(trace)["op"] == (60, 55.0)  # "load" takes 35 after 10


def test_the_stream_that_a_call_waits_for_is_the_one_told() -> None:
    told = {"kind": "sync", "name": "synchronize stream", "start_ns": 10, "end_ns": 50}
    told |= {"device": 0, "stream": 7, "correlation_id": 99}
    waits = call(10, 52, 99, "cudaStreamSynchronize")
    calls = [call(0, 5, 1), call(5, 8, 2), waits]
    streams = [work(6, 50, 1), work(9, 51, 2, stream=8, name="softmax")]
    table = critical_path(timeline(60, *calls, *streams, told))
    assert "softmax" not in table["name"].to_list()


def test_without_a_device_at_the_end_the_wait_that_was_measured_is_for_it() -> None:
    trace = timeline(100, call(10, 15, 1), work(18, 96, 1))
    field = pl.col("attributes").struct.with_fields(device_wait_ns=pl.lit(70.0))
    trace = Trace(trace.spans.with_columns(field), trace.metadata)
    assert kinds(trace)["kernel"] == (78, 66.0)


@given(st.integers(0, 10_000))
def test_kinds_sum_to_the_whole_and_nothing_gains_more_than_it_takes(seed: int) -> None:
    trace = random_timeline(seed)
    table = critical_path(trace)
    kind = table.filter(table["name"].is_null())
    assert kind["time_ns"].sum() == max(trace.spans["end_ns"])
    assert table.filter(table["name"].is_not_null())["time_ns"].sum() == kind["time_ns"].sum()
    gained = table.drop_nulls("gain_ns")
    assert (gained["gain_ns"] >= 0).all()
    assert (gained["gain_ns"] <= gained["time_ns"]).all()


@given(st.integers(0, 10_000))
def test_every_point_of_a_random_timeline_is_reached_when_it_was(seed: int) -> None:
    _all_reached(random_timeline(seed))


def _all_reached(trace: Trace) -> None:
    graph = graph_of(Tree.of(trace))
    points, order = in_order(graph.points)
    assert np.array_equal(points.cross, graph.points.cross)
    times = (each[:, None].astype(np.float64) for each in (points.weight, points.delay))
    assert np.array_equal(reached(points, order, *times)[:, 0], points.time)


def random_points(seed: int) -> Points:
    """Return points on four lanes, each of which may wait for any that came before."""
    chance = random.Random(seed)
    drawn = sorted((chance.randrange(4), chance.randrange(60)) for _ in range(40))
    lane, time = np.array(drawn).T
    cross = np.full(len(lane), -1)
    for at, when in enumerate(time):
        before = np.flatnonzero((time < when) & (lane != lane[at]))
        if len(before) and chance.random() < 0.5:
            cross[at] = chance.choice(before.tolist())
    weight = np.array([chance.randrange(9) for _ in lane])
    return Points(lane, lane < 2, time, weight, cross, weight[::-1].copy())


@given(st.integers(0, 10_000))
def test_points_are_reached_as_in_a_slow_reference(seed: int) -> None:
    points, order = in_order(random_points(seed))
    known = np.full(len(order), -np.inf)
    for at in order:
        ways = [] if points.first[at] else [known[at - 1] + points.weight[at]]
        if points.cross[at] >= 0:
            ways.append(known[points.cross[at]] + points.delay[at])
        known[at] = max(ways, default=points.time[at])
    times = (each[:, None].astype(np.float64) for each in (points.weight, points.delay))
    assert np.array_equal(reached(points, order, *times)[:, 0], known)
    fewer, leads = condensed(points)
    times = (each[:, None].astype(np.float64) for each in (fewer.weight, fewer.delay))
    kept = np.flatnonzero(np.diff(leads, append=-1))
    assert np.array_equal(reached(*in_order(fewer), *times)[:, 0], known[kept])


@pytest.mark.skipif(not NAMES, reason="needs the real traces (XSP_TRACES)")
@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_a_recording_is_reached_when_it_was(name: str) -> None:
    trace = xsp.read(TRACES / "kineto" / f"{name}.json.gz")
    _all_reached(trace)
    table = critical_path(trace)
    whole = max(trace.spans["end_ns"])
    assert table.filter(table["name"].is_null())["time_ns"].sum() == whole
