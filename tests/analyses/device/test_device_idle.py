"""Causes of idle times: timelines with known answers, and random ones."""

from __future__ import annotations

from device_samples import call, random_timeline, rows_of, timeline, work
from hypothesis import given
from hypothesis import strategies as st

from xsp.analyses import device_idle, device_time
from xsp.trace import Trace


def causes(trace: Trace, stream: int | None = None) -> dict[str, int]:
    table = device_idle(trace)
    table = table.filter(table["stream"].is_null() if stream is None else table["stream"] == stream)
    return dict(table.select("cause", "idle_ns").iter_rows())


def test_an_idle_time_is_the_hosts_then_the_launchs_then_the_queues() -> None:
    trace = timeline(200, call(0, 5, 1), work(10, 50, 1), call(80, 88, 2), work(95, 120, 2))
    assert causes(trace) == {"host": 30, "launch": 8, "queue": 7}


def test_what_was_launched_long_ago_waits_for_the_queue_alone() -> None:
    trace = timeline(200, call(0, 5, 1), call(6, 9, 2), work(10, 50, 1), work(53, 80, 2))
    assert causes(trace) == {"queue": 3}


def test_a_stream_waits_for_another_while_that_works() -> None:
    other = work(20, 70, 2, stream=8)
    calls = [call(0, 2, 1), call(2, 4, 2), call(4, 6, 3)]
    trace = timeline(200, *calls, work(10, 30, 1), other, work(75, 90, 3))
    assert causes(trace, stream=7) == {"stream": 40, "queue": 5}
    assert causes(trace) == {"queue": 5}


def test_a_call_that_returns_after_its_work_began_leaves_nothing_for_the_queue() -> None:
    trace = timeline(200, call(0, 5, 1), work(10, 50, 1), call(60, 99, 2), work(70, 80, 2))
    assert causes(trace) == {"host": 10, "launch": 10}


def test_without_a_call_the_cause_is_unknown() -> None:
    trace = timeline(200, work(10, 50), work(60, 80), work(90, 95, name="softmax"))
    assert causes(trace) == {"unknown": 20}
    (row,) = rows_of(device_idle(trace).filter(stream=7), "count", "longest_ns", "whole_pct")
    assert row == (2, 10, 100 * 20 / 85)


def test_the_work_in_front_of_which_most_is_lost_is_named() -> None:
    late = [work(10, 20, 1), work(40, 50, 2, name="softmax"), work(55, 60, 3)]
    calls = [call(0, 2, 1), call(35, 40, 2), call(53, 55, 3)]
    table = device_idle(timeline(100, *calls, *late)).filter(cause="host", stream=7)
    assert rows_of(table, "before", "idle_ns", "share_pct") == [("softmax", 18, 72.0)]


@given(st.integers(0, 10_000))
def test_causes_sum_to_the_idle_time(seed: int) -> None:
    trace = random_timeline(seed)
    times = device_time(trace).filter(part="idle")
    found = device_idle(trace)
    for device, idle in times.select("device", "time_ns").iter_rows():
        own = found.filter(found["stream"].is_null(), device=device)
        assert own["idle_ns"].sum() == idle
        assert not own["cause"].is_in(["stream"]).any()
