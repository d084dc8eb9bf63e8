"""The critical path: known answers, random timelines, a slow reference, real recordings."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from device_samples import Row, call, host, random_timeline, timeline, work
from hypothesis import given
from hypothesis import strategies as st

import xsp
from xsp.analyses import critical_path
from xsp.answer.analyses.device.path.graph import graph_of
from xsp.answer.analyses.device.path.longest_path import Points, condensed, in_order, reached
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
NAMES = sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("kineto/*.json.gz"))


def kinds(trace: Trace) -> dict[str, tuple[int, float]]:
    """Return time on the path and gain of each kind."""
    table = critical_path(trace)
    table = table.filter(table["name"].is_null())
    return {kind: (time, gain) for kind, time, gain in table["kind", "time_ns", "gain_ns"].rows()}


def synchronize(start: int, end: int, **more: int) -> Row:
    return call(start, end, 99, "cudaDeviceSynchronize", **more)


def test_of_one_thread_it_is_all_spans_self_time() -> None:
    inner = host("op", "aten::mm", 20, 50, inside=1)
    trace = timeline(100, host("layer", "fc", 10, 60), inner)
    assert kinds(trace) == {"region": (50, 50.0), "op": (30, 30.0), "layer": (20, 20.0)}


def test_it_leads_through_launch_and_kernel_to_the_synchronization() -> None:
    trace = timeline(100, call(10, 15, 1), work(18, 80, 1), synchronize(30, 82))
    # Without the kernel the host would reach the synchronization at 30, and return 2 later.
    # Without launches the host waits for the same kernel: only 5 + 2 are saved.
    assert kinds(trace) == {
        "kernel": (62, 50.0),
        "region": (28, 28.0),
        "launch": (7, 7.0),
        "latency": (3, 3.0),
    }


def node(start: int, end: int, name: str, *inputs: str, thread: int = 1) -> Row:
    told = {"node": name, "inputs": list(inputs), "thread": thread}
    return host("op", f"Gemm {name}", start, end, **told)


def test_an_operator_of_a_graph_waits_for_its_last_input_on_another_thread() -> None:
    operators = [
        node(0, 40, "a", thread=2),
        node(0, 30, "b", thread=3),
        node(45, 90, "c", "a", "b", thread=3),
    ]
    found = kinds(timeline(100, *operators))
    assert found == {"op": (85, 85.0), "region": (10, 10.0), "data": (5, 5.0)}


def test_an_operator_whose_inputs_were_there_waits_for_its_thread_and_the_executor() -> None:
    operators = [
        node(0, 40, "a", thread=2),
        node(0, 10, "b", thread=3),
        node(43, 90, "c", "b", thread=2),
    ]
    found = kinds(timeline(100, *operators))
    assert found == {"op": (87, 87.0), "region": (10, 10.0), "executor": (3, 3.0)}


def test_between_operators_of_one_thread_lies_the_executor_also_where_layers_begin() -> None:
    layer = [host("layer", "fc", 5, 20), host("layer", "act", 24, 60)]
    inside = [node(5, 20, "a") | {"inside": 1}, node(24, 60, "b", "a") | {"inside": 2}]
    found = kinds(timeline(70, *layer, *inside))
    assert found == {"op": (51, 51.0), "region": (15, 15.0), "executor": (4, 4.0)}


def test_what_runs_beside_it_limits_the_gain() -> None:
    calls = [call(0, 5, 1), call(5, 10, 2), synchronize(10, 90)]
    reduce = work(10, 70, 2, stream=8, name="ncclDevKernel_AllReduce")
    found = kinds(timeline(90, *calls, work(5, 90, 1), reduce))
    assert found["kernel"] == (85, 20.0)
    assert "communication" not in found


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


@pytest.mark.parametrize("name", ["sem_wait", "poll", "pthread_cond_timedwait", "epoll_wait"])
def test_a_thread_that_only_waits_in_the_background_determines_nothing(name: str) -> None:
    # A driver's thread waits all the time, and writes something in between.
    beside = [
        host("syscall", name, 5, 60, thread=2),
        host("syscall", "write", 60, 61, thread=2),
        host("syscall", name, 61, 99, thread=2),
    ]
    found = kinds(timeline(100, call(10, 15, 1), work(18, 30, 1), *beside))
    assert found == {"region": (94, 80.0), "launch": (5, 5.0), "syscall": (1, 1.0)}


def test_a_wait_of_the_thread_itself_is_on_the_path() -> None:
    assert kinds(timeline(100, host("syscall", "sem_wait", 10, 60)))["syscall"] == (50, 50.0)
