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


def test_without_a_call_the_cause_is_unknown() -> None:
    trace = timeline(200, work(10, 50), work(60, 80), work(90, 95, name="softmax"))
    assert causes(trace) == {"unknown": 20}
    (row,) = rows_of(device_idle(trace).filter(stream=7), "count", "longest_ns", "whole_pct")
    assert row == (2, 10, 100 * 20 / 85)


@given(st.integers(0, 10_000))
def test_causes_sum_to_the_idle_time(seed: int) -> None:
    trace = random_timeline(seed)
    times = device_time(trace).filter(part="idle")
    found = device_idle(trace)
    for device, idle in times.select("device", "time_ns").iter_rows():
        own = found.filter(found["stream"].is_null(), device=device)
        assert own["idle_ns"].sum() == idle
        assert not own["cause"].is_in(["stream"]).any()
