"""Times of devices: timelines with known answers, random ones, and real recordings."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from device_samples import call, random_timeline, timeline, work
from hypothesis import given
from hypothesis import strategies as st

import xsp
from xsp.analyses import device_time
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
EXPECTED = TRACES / "kineto" / "expected"
NAMES = sorted(path.name.split(".")[0] for path in EXPECTED.glob("*.gpu_timeline.csv"))


def times(trace: Trace, device: int = 0) -> dict[str, float]:
    table = device_time(trace).filter(device=device)
    return dict(table.select("part", "time_ns").iter_rows())


def test_streams_side_by_side_count_once() -> None:
    found = times(timeline(100, work(10, 40), work(30, 50, stream=8), work(70, 80)))
    assert found["whole"] == 70
    assert found["busy"] == found["computing"] == 50
    assert found["idle"] == 20
    assert (found["idle before the first work"], found["idle after the last work"]) == (10, 20)


def test_communication_hides_behind_computing_and_hides_copies() -> None:
    reduce = work(30, 60, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=8)
    copy = work(50, 70, kind="memcpy", stream=9)
    found = times(timeline(100, work(10, 40), reduce, copy))
    assert (found["communicating"], found["exposed communication"]) == (30, 20)
    assert found["exposed copies"] == 10


def test_devices_are_apart_and_those_of_processes_bear_their_rank() -> None:
    ranks = [
        {"kind": "region", "name": f"rank {n}", "start_ns": 0, "end_ns": 90, "thread": n}
        | {"process": n, "rank": 4 + n}
        for n in (0, 1)
    ]
    table = device_time(
        timeline(100, *ranks, work(0, 10, inside=1), work(5, 50, inside=2, device=0))
    )
    whole = table.filter(part="whole").select("rank", "device", "time_ns").rows()
    assert whole == [(4, 0, 10.0), (5, 0, 45.0)]


@given(st.integers(0, 10_000))
def test_busy_and_idle_are_the_whole_and_what_is_exposed_is_a_part(seed: int) -> None:
    trace = random_timeline(seed)
    for device in device_time(trace)["device"].unique():
        found = times(trace, device)
        assert found["busy"] + found["idle"] == found["whole"]
        parts = ("computing", "exposed communication", "exposed copies")
        assert sum(found[part] for part in parts) == found["busy"]
        assert found["exposed communication"] <= found["communicating"]
        assert found["exposed copies"] <= found["copying"]


def test_without_a_device_it_says_what_to_do() -> None:
    with pytest.raises(xsp.AnalysisError, match="no work of a device: measure with levels=4"):
        device_time(timeline(100, call(10, 20, 1)))


@pytest.mark.skipif(not NAMES, reason="needs the real traces (XSP_TRACES)")
@pytest.mark.parametrize("name", NAMES)
def test_times_are_those_of_another_tool(name: str) -> None:
    trace = xsp.read(TRACES / "kineto" / f"{name}.json.gz", steps=False)
    with (EXPECTED / f"{name}.gpu_timeline.csv").open() as file:
        told = {line["type"]: float(line["time ms"]) for line in csv.DictReader(file)}
    (device,) = device_time(trace)["device"].unique()
    found = {part: ns / 1e6 for part, ns in times(trace, device).items()}
    names = {
        "computation_time": "computing",
        "exposed_comm_time": "exposed communication",
        "exposed_memcpy_time": "exposed copies",
        "busy_time": "busy",
        "total_time": "whole",
        "total_comm_time": "communicating",
        "total_memcpy_time": "copying",
    }
    assert {theirs: found[ours] for theirs, ours in names.items()} == pytest.approx(
        {theirs: told[theirs] for theirs in names}, rel=1e-3, abs=1e-5
    )
    # The other tool's times are 64-bit floats of µs since 1970, exact to a quarter of a µs only.
    assert found["idle"] == pytest.approx(told["idle_time"], rel=1e-3, abs=5e-4)
