"""The verdict: timelines that are bound by one thing, and one that cannot tell."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from device_samples import Row, call, host, random_timeline, timeline, work
from hypothesis import given
from hypothesis import strategies as st

from xsp.analyses import verdict
from xsp.answer.analyses.device import verdict as module
from xsp.answer.analyses.work import Roof
from xsp.trace import Trace

ROOF = Roof(1e12, 1e11, "a device of ten operations per byte")


def shares(trace: Trace) -> dict[str, float | None]:
    return dict(verdict(trace).select("candidate", "share_pct").iter_rows())


def chosen(trace: Trace) -> str:
    (row,) = verdict(trace).filter(pl.col("verdict"))["candidate"].to_list()
    return str(row)


def test_a_device_that_waits_for_launches_to_come_is_host_bound() -> None:
    trace = timeline(100, call(20, 24, 1), work(25, 30, 1), call(70, 74, 2), work(76, 80, 2))
    found = shares(trace)
    assert chosen(trace) == "host-bound"
    assert found["host-bound"] == 25 + 40 + 20  # before, between and after
    assert (found["launch-bound"], found["unexplained"], found["device-bound"]) == (4, 2, 9)


def test_a_device_that_waits_while_calls_launch_is_launch_bound() -> None:
    calls = [call(at, at + 9, at) for at in range(0, 100, 10)]
    trace = timeline(102, *calls, *(work(at + 9, at + 11, at) for at in range(0, 100, 10)))
    assert chosen(trace) == "launch-bound"


def test_communication_that_nothing_hides_is_what_limits() -> None:
    reduce = work(20, 90, 2, name="ncclDevKernel_AllReduce", stream=8)
    trace = timeline(100, call(0, 2, 1), call(2, 4, 2), work(3, 30, 1), reduce)
    assert chosen(trace) == "communication-bound"
    assert shares(trace)["communication-bound"] == 60


@pytest.mark.parametrize(
    ("flops", "expected"),
    [(100, "memory-bound"), (10_000, "compute-bound"), (None, "device-bound")],
)
def test_computing_is_bound_by_memory_or_by_arithmetic_where_that_is_known(
    monkeypatch: pytest.MonkeyPatch, flops: int | None, expected: str
) -> None:
    def work_of(tree: Any) -> pl.DataFrame:
        rows = tree.spans.height
        types = dict.fromkeys(("flops", "read_bytes", "write_bytes"), pl.Int64)
        values = {"flops": flops, "read_bytes": 60, "write_bytes": 40}
        return pl.DataFrame({name: [value] * rows for name, value in values.items()}, schema=types)

    monkeypatch.setattr(module, "roof_of", lambda trace: ROOF)
    monkeypatch.setattr(module, "work_of", work_of)
    trace = timeline(100, call(0, 2, 1), work(2, 98, 1))
    assert chosen(trace) == expected
    known = {name: shares(trace)[name] for name in ("memory-bound", "compute-bound")}
    assert known == {name: None if flops is None else 96 * (name == expected) for name in known}


def test_a_host_divides_into_library_operators_framework_and_program() -> None:
    rows: list[Row] = [
        host("layer", "fc", 10, 90, inside=0),
        host("op", "aten::linear", 12, 88, inside=1),
        host("call", "SGEMM", 18, 80, inside=2),
        host("op", "aten::relu", 90, 95, inside=0),
    ]
    found = shares(timeline(100, *rows))
    assert chosen(timeline(100, *rows)) == "library-bound"
    assert found["library-bound"] == 62
    assert found["operator-bound"] == 5
    assert found["framework-bound"] == 4 + 14
    assert found["program-bound"] == 15
    assert found["thread-bound"] is None


def test_collectives_of_a_host_limit_what_they_run_beside_unless_that_computes() -> None:
    reduce = {"inside": 0, "collective": "allreduce"}
    rows: list[Row] = [
        host("layer", "fc", 10, 90, inside=0),
        host("op", "aten::linear", 12, 30, inside=1),
        host("op", "c10d::allreduce_", 30, 32, inside=1),
        host("op", "gloo:all_reduce", 20, 70, thread=2, **reduce),
        host("op", "gloo:all_reduce", 40, 80, thread=3, **reduce),
    ]
    found = shares(timeline(100, *rows))
    assert chosen(timeline(100, *rows)) == "communication-bound"
    assert found["communication-bound"] == 80 - 30
    assert found["operator-bound"] == 18
    assert found["framework-bound"] == 2 + 10
    assert found["program-bound"] == 20


@given(st.integers(0, 10_000))
def test_of_one_device_the_candidates_are_the_whole(seed: int) -> None:
    trace = random_timeline(seed)
    keep = trace.spans["device"].fill_null(0) == 0
    found = shares(Trace(trace.spans.filter(keep), trace.metadata))
    limits = {"memory-bound", "compute-bound"}
    if "device-bound" in found:
        told = [share for name, share in found.items() if name not in limits]
        assert sum(share or 0.0 for share in told) == pytest.approx(100)


def test_work_whose_call_is_not_known_is_not_moved() -> None:
    # A kernel runs on after the end of the step; nothing tells when it was launched.
    late = timeline(100, work(20, 150))
    found = {row["candidate"]: row["time_ns"] for row in verdict(late).iter_rows(named=True)}
    assert (found["device-bound"], found["host-bound"]) == (80, 20)
