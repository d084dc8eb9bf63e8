"""Launches: timelines with known answers, and a real recording of a graph."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from device_samples import call, rows_of, timeline, work

import xsp
from xsp.analyses import launch_overhead

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
GRAPH = TRACES / "kineto" / "mi300-vllm-decode-graph.json.gz"


def test_work_shorter_than_its_call_is_counted() -> None:
    calls = [call(0, 10, 1), call(20, 30, 2), call(40, 50, 3)]
    trace = timeline(100, *calls, work(12, 14, 1), work(33, 60, 2), work(60, 61, 3))
    columns = ("call", "work", "launches", "call_ns", "work_ns", "short")
    assert rows_of(launch_overhead(trace), *columns) == [("cudaLaunchKernel", "gemm", 3, 30, 30, 2)]


def test_latency_is_from_the_return_and_the_sum_from_the_beginning_of_the_call() -> None:
    trace = timeline(100, call(0, 10, 1), call(20, 30, 2), work(5, 9, 1), work(37, 60, 2))
    columns = ("latency_median_ns", "launch_to_start_ns")
    assert rows_of(launch_overhead(trace), *columns) == [(3.5, 22)]


def test_what_is_launched_and_not_done_on_its_stream_is_ahead() -> None:
    calls = [call(at, at + 2, number) for number, at in enumerate((0, 2, 4, 50))]
    beside = [call(6, 7, 9), work(8, 90, 9, stream=8)]
    queued = [work(10, 20, 0), work(20, 30, 1), work(30, 40, 2), work(60, 70, 3)]
    table = launch_overhead(timeline(100, *calls, *queued, *beside))
    assert rows_of(table, "launches", "ahead_mean", "ahead_max") == [(5, 0.6, 2)]


def test_a_graph_is_one_launch_of_several() -> None:
    calls = [call(0, 10, 1, "cudaGraphLaunch"), call(50, 52, 2)]
    nodes = [work(12, 15, 1), work(15, 25, 1, name="softmax"), work(55, 60, 2)]
    columns = ("call", "work", "launches", "work_ns", "short")
    assert rows_of(launch_overhead(timeline(100, *calls, *nodes)), *columns) == [
        ("cudaGraphLaunch", None, 1, 13, 0),
        ("cudaLaunchKernel", "gemm", 1, 5, 0),
    ]


@pytest.mark.skipif(not GRAPH.is_file(), reason="needs the real traces (XSP_TRACES)")
def test_a_recorded_graph_hides_its_launch() -> None:
    (graph,) = launch_overhead(xsp.read(GRAPH)).filter(call="hipGraphLaunch").to_dicts()
    assert (graph["launches"], graph["work"], graph["short"]) == (1, None, 0)
    assert graph["work_ns"] > 10 * graph["call_ns"]
