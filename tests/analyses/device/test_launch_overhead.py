"""Launches: timelines with known answers, and a real recording of a graph."""

from __future__ import annotations

from device_samples import call, rows_of, timeline, work

from xsp.analyses import launch_overhead


def test_work_shorter_than_its_call_is_counted() -> None:
    calls = [call(0, 10, 1), call(20, 30, 2), call(40, 50, 3)]
    trace = timeline(100, *calls, work(12, 14, 1), work(33, 60, 2), work(60, 61, 3))
    columns = ("call", "work", "launches", "call_ns", "work_ns", "short")
    assert rows_of(launch_overhead(trace), *columns) == [("cudaLaunchKernel", "gemm", 3, 30, 30, 2)]


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
