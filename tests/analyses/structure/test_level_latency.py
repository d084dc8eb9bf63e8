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
from xsp.answer.analyses import Tree, attribution, level_latency
from xsp.answer.analyses.structure.timeline import on_clock
from xsp.trace import Trace

KINETO = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
KINETO = KINETO / "kineto"


def called() -> Node:
    """Return a model of a layer, in it an operator, in it a library call."""
    call = Node("call", "SGEMM", 70, [], {"library": "MKL"})
    return pipeline("predict", layer("fc", "Linear", op("aten::mm", call, own_ns=15), own_ns=10),
                    own_ns=5)  # fmt: skip


def test_each_level_has_its_self_time() -> None:
    table = level_latency(trace(called()))
    assert table["kind"].to_list() == ["region", "layer", "op", "call"]
    assert table["own_ns"].to_list() == [5, 10, 15, 70]
    assert table["latency_ns"].to_list() == [100, 95, 85, 70]


@given(TREES)
def test_levels_sum_to_the_latency(node: Node) -> None:
    measured = trace(pipeline("predict", node, own_ns=100))
    table = level_latency(measured)
    assert table["own_ns"].sum() == measured.spans["latency_ns"][0]
    assert table["share_pct"].sum() == pytest.approx(100)


def test_a_trace_without_devices_and_calls_says_nothing_of_them() -> None:
    assert set(attribution(trace(pipeline("p", conv("c", 100))))["time"]) == {"latency"}
    assert level_latency(trace(resnet()))["share_pct"].sum() == pytest.approx(100)


def test_a_recording_of_devices_alone_is_idle_on_the_host() -> None:
    kernel = Node("kernel", "gemm", 70, [], {}, {"device": 0})
    root = pipeline("recording", kernel, own_ns=100)
    root.columns["thread"] = None
    table = level_latency(trace(root))
    assert table.select("kind", "own_ns").rows() == [("region", 100)]


def beside(*spans: tuple[int, int, int], root_ns: int = 1_000) -> Trace:
    """Return a root on thread 1 with an operator at each place: thread, start and end."""
    made = trace(pipeline("serve", *(op("mm") for _ in spans), own_ns=root_ns))
    thread, start, end = zip((1, 0, root_ns), *spans, strict=True)
    columns = {"thread": thread, "start_ns": start, "end_ns": end}
    return Trace(made.spans.with_columns(pl.Series(k, v) for k, v in columns.items()), {})


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
    assert level_latency(measured)["own_ns"].sum() == 1_000


def real(name: str) -> Trace:
    if not KINETO.is_dir():
        pytest.skip("needs real traces (XSP_TRACES)")
    return xsp.read(KINETO / f"{name}.json.gz")


@pytest.mark.parametrize("name", ["h100-bert-small", "critical-path-alexnet", "mi300-compiled"])
def test_levels_of_a_recording_sum_to_its_latency(name: str) -> None:
    measured = real(name)
    table = level_latency(measured)
    whole = measured.spans["end_ns"][0] - measured.spans["start_ns"][0]
    assert table["own_ns"].sum() == pytest.approx(whole, rel=1e-6)


def test_all_device_time_of_a_recording_without_a_host_lies_under_nothing() -> None:
    rows = attribution(real("mi210-gpu-only")).filter(time="device time")
    assert rows["under"].unique().to_list() == ["nothing"]
    assert rows["share_pct"][0] == pytest.approx(100)
    assert rows["share_pct"][1:].sum() == pytest.approx(100)


def test_a_thread_that_only_waits_in_the_background_divides_nothing() -> None:
    waits = [
        Node("syscall", name, 400, [], {}, {"thread": 2}) for name in ("sem_wait", "futex_wait")
    ]
    table = level_latency(trace(pipeline("predict", *waits, own_ns=1_000)))
    assert table["kind"].to_list() == ["region"]
    works = Node("op", "aten::mm", 400, [], {}, {"thread": 2})
    table = level_latency(trace(pipeline("predict", works, own_ns=1_000)))
    assert table["kind"].to_list() == ["region", "op"]
