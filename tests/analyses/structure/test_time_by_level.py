"""Time by level and attribution, on known answers, random trees and recordings."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import TREES, Node, conv, layer, op, pipeline, resnet, trace

import xsp
from xsp.analyses import Tree, attribution, time_by_level
from xsp.analyses.structure.timeline import on_clock
from xsp.trace import Trace

KINETO = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
KINETO = KINETO / "kineto"


def called() -> Node:
    """Return a model of a layer, in it an operator, in it a library call."""
    call = Node("call", "SGEMM", 70, [], {"library": "MKL"})
    return pipeline("predict", layer("fc", "Linear", op("aten::mm", call, own_ns=15), own_ns=10),
                    own_ns=5)  # fmt: skip


def test_each_level_has_its_own_time() -> None:
    table = time_by_level(trace(called()))
    assert table["kind"].to_list() == ["pipeline", "layer", "op", "call"]
    assert table["own_ns"].to_list() == [5, 10, 15, 70]
    assert table["latency_ns"].to_list() == [100, 95, 85, 70]


@given(TREES)
def test_levels_sum_to_the_latency(node: Node) -> None:
    measured = trace(pipeline("predict", node, own_ns=100))
    table = time_by_level(measured)
    assert table["own_ns"].sum() == measured.spans["latency_ns"][0]
    assert table["share_pct"].sum() == pytest.approx(100)


def test_waiting_for_devices_is_a_row_of_its_own() -> None:
    root = pipeline("predict", op("aten::mm", own_ns=20), own_ns=80)
    root.attributes["device_wait_ns"] = 60.0
    table = time_by_level(trace(root))
    assert table.select("kind", "own_ns").rows() == [
        ("pipeline", 20), ("op", 20), ("device wait", 60),
    ]  # fmt: skip


def test_a_share_lies_under_each_kind_and_the_rest_has_names() -> None:
    outside = pipeline("post-processing", own_ns=300)
    measured = trace(pipeline("step", *called().children, outside, own_ns=5))
    rows = attribution(measured).filter(time="latency")
    sums = dict(rows.filter(pl.col("name").is_null()).select("under", "latency_ns").iter_rows())
    assert sums == {"layer": 95, "op": 85, "call": 70, "nothing": 305}
    names = rows.drop_nulls("name").select("name", "latency_ns").rows()
    assert names == [("post-processing", 300), ("step", 5)]


def test_the_operators_time_outside_of_calls_is_by_operator() -> None:
    rows = attribution(trace(called())).filter(time="operators' time")
    assert rows.select("under", "name", "latency_ns").rows() == [
        ("call", None, 70), ("nothing", None, 15), ("nothing", "aten::mm", 15),
    ]  # fmt: skip


def test_a_trace_without_devices_and_calls_says_nothing_of_them() -> None:
    assert set(attribution(trace(pipeline("p", conv("c", 100))))["time"]) == {"latency"}
    assert time_by_level(trace(resnet()))["share_pct"].sum() == pytest.approx(100)


def test_a_recording_of_devices_alone_is_idle_on_the_host() -> None:
    kernel = Node("kernel", "gemm", 70, [], {}, {"device": 0})
    root = pipeline("recording", kernel, own_ns=100)
    root.columns["thread"] = None
    table = time_by_level(trace(root))
    assert table.select("kind", "own_ns").rows() == [("pipeline", 100)]


def beside(*spans: tuple[int, int, int], root_ns: int = 1_000) -> Trace:
    """Return a root on thread 1 with an operator at each place: thread, start and end."""
    made = trace(pipeline("serve", *(op("mm") for _ in spans), own_ns=root_ns))
    thread, start, end = zip((1, 0, root_ns), *spans, strict=True)
    columns = {"thread": thread, "start_ns": start, "end_ns": end}
    return Trace(made.spans.with_columns(pl.Series(k, v) for k, v in columns.items()), {})


def test_what_another_thread_does_while_the_roots_waits_divides_the_time() -> None:
    measured = beside((2, 100, 400), (1, 500, 600), (2, 700, 1_000))
    assert time_by_level(measured)["own_ns"].to_list() == [300, 700]
    rows = attribution(measured).filter(time="latency")
    assert dict(rows.filter(pl.col("name").is_null())["under", "latency_ns"].iter_rows()) == {
        "op": 700, "nothing": 300,
    }  # fmt: skip


def test_of_what_runs_at_once_on_other_threads_the_longest_counts() -> None:
    measured = beside((3, 550, 650), (2, 0, 600), (4, 600, 800), (5, 200, 300))
    assert time_by_level(measured).select("kind", "calls", "own_ns").rows() == [
        ("pipeline", 1, 200), ("op", 2, 800),
    ]  # fmt: skip


def test_what_runs_beside_the_roots_own_work_does_not_count_twice() -> None:
    measured = beside((1, 100, 200), (2, 150, 400), (2, 400, 500), (1, 500, 900))
    assert time_by_level(measured)["own_ns"].to_list() == [400, 600]


def test_next_to_nothing_on_the_roots_thread_hides_no_work_of_another() -> None:
    for small in ((1, 500, 500), (1, 500, 510), (1, 895, 905)):
        assert time_by_level(beside((2, 100, 900), small))["own_ns"][1] == 800


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=8),
    st.lists(st.tuples(st.integers(2, 4), st.integers(0, 300), st.integers(1, 90)), max_size=12),
)
def test_whatever_runs_on_threads_nothing_counts_twice_and_all_time_counts(
    own: list[tuple[int, int]], others: list[tuple[int, int, int]]
) -> None:
    spans, clock = [], 0
    for gap, length in own:
        spans.append((1, clock + gap, clock + gap + length))
        clock += gap + length
    spans += [(thread, start, start + length) for thread, start, length in others]
    measured = beside(*spans)
    tree = Tree.of(measured)
    counted = [span for span, among in zip(spans, on_clock(tree)[1:], strict=True) if among]
    by_start = sorted(counted, key=lambda span: span[1])
    assert all(a[2] <= b[1] for a, b in itertools.pairwise(by_start))
    # Whatever does not count ran while others did, of another thread for a tenth at least.
    for thread, start, end in set(spans) - set(counted):
        ran = sum(max(min(b, end) - max(a, start), 0) for _, a, b in counted)
        longest = max((b - a for _, a, b in counted if a < end and start < b), default=0)
        assert thread == 1 or longest >= end - start or ran > 0.1 * (end - start)
        assert ran > 0
    assert time_by_level(measured)["own_ns"].sum() == 1_000


def real(name: str) -> Trace:
    if not KINETO.is_dir():
        pytest.skip("needs real traces (XSP_TRACES)")
    return xsp.read(KINETO / f"{name}.json.gz")


@pytest.mark.parametrize("name", ["h100-bert-small", "critical-path-alexnet", "mi300-compiled"])
def test_levels_of_a_recording_sum_to_its_latency(name: str) -> None:
    measured = real(name)
    table = time_by_level(measured)
    whole = measured.spans["end_ns"][0] - measured.spans["start_ns"][0]
    assert table["own_ns"].sum() == pytest.approx(whole, rel=1e-6)


def test_all_device_time_of_a_recording_without_a_host_lies_under_nothing() -> None:
    rows = attribution(real("mi210-gpu-only")).filter(time="device time")
    assert rows["under"].unique().to_list() == ["nothing"]
    assert rows["share_pct"][0] == pytest.approx(100)
    assert rows["share_pct"][1:].sum() == pytest.approx(100)
