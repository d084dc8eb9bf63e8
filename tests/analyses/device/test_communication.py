"""Communication: timelines with known answers, and random ones."""

from __future__ import annotations

from typing import Any

import pytest
from device_samples import Row, random_timeline, rows_of, timeline, work
from hypothesis import given
from hypothesis import strategies as st

from xsp.analyses import communication, device_time

TIMES = ("collective", "count", "time_ns", "exposed_ns", "hidden_pct")


def reduce(start: int, end: int, **more: Any) -> Row:
    sizes: Row = {"in_elements": 1_000, "out_elements": 1_000, "element_type": "Float"}
    told: Row = {"collective": "allreduce", "collective_group": "0", "group_size": 4} | sizes
    return work(start, end, name="ncclDevKernel_Generic", stream=8, **(told | more))


def test_what_a_kernel_runs_beside_is_hidden() -> None:
    trace = timeline(100, work(0, 30), work(35, 40), reduce(20, 50), reduce(60, 70))
    assert rows_of(communication(trace), *TIMES) == [("allreduce", 2, 40, 25, 37.5)]


def test_the_bus_carries_a_reduced_byte_nearly_twice_and_a_gathered_one_nearly_once() -> None:
    gather = reduce(50, 75, collective="_allgather_base", in_elements=250)
    table = communication(timeline(100, reduce(0, 40), gather))
    found = dict(table.select("collective", "bus_bytes_per_s").iter_rows())
    assert found["allreduce"] == pytest.approx(2 * 3 / 4 * 4_000 / 40e-9)
    assert found["_allgather_base"] == pytest.approx(3 / 4 * 4_000 / 25e-9)
    assert table["payload_bytes"].to_list() == [4_000, 4_000]


def test_without_sizes_nothing_is_said_of_bandwidth_and_groups_are_apart() -> None:
    by_name = work(0, 10, name="ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t")
    table = communication(
        timeline(100, by_name, reduce(20, 30), reduce(30, 40, collective_group="1"))
    )
    named = table.filter(table["group"].is_null())
    assert rows_of(named, "collective", "payload_bytes", "bus_bytes_per_s") == [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", None, None)
    ]
    assert table["group"].drop_nulls().sort().to_list() == ["0", "1"]


@given(st.integers(0, 10_000))
def test_exposed_time_is_that_of_the_devices_where_there_is_one_kind(seed: int) -> None:
    trace = random_timeline(seed)
    times = device_time(trace)
    table = communication(trace)
    for column, part in (("time_ns", "communicating"), ("exposed_ns", "exposed communication")):
        told = times.filter(times["part"] == part, times["time_ns"] > 0).select("device", "time_ns")
        found = table.filter(table[column] > 0).select("device", column)
        assert [tuple(map(int, row)) for row in told.rows()] == found.sort("device").rows()
