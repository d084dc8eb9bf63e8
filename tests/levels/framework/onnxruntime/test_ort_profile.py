"""Profiles of ONNX Runtime and visits in; the events of each visit, and rows of them, out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider import Request
from xsp_levels.framework.onnxruntime import profile
from xsp_levels.framework.onnxruntime.layer import Layers, NodeOrigin
from xsp_levels.framework.onnxruntime.profile import Window, read_windows
from xsp_levels.framework.onnxruntime.record import NodeEvents, OrtRecords, Part
from xsp_levels.framework.onnxruntime.row import node_rows

RECORDED = Path(__file__).parents[3] / "data" / "onnxruntime" / "parallel.json"
REQUEST = Request(frozenset({Kind.PIPELINE, Kind.OP}))
MS = 1_000_000


def node(name: str, ts: int, dur: int, tid: int = 1) -> dict[str, Any]:
    args = {"op_name": name.upper(), "provider": "CPUExecutionProvider"}
    return {
        "cat": "Node",
        "name": f"{name}_kernel_time",
        "ts": ts,
        "dur": dur,
        "tid": tid,
        "args": args,
    }


def run(ts: int, dur: int, tid: int = 1) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "tid": tid, "args": {}}


def read(events: Sequence[dict[str, Any]], *windows: Window, began_ns: int = 0) -> list[NodeEvents]:
    return list(read_windows(json.dumps(events).encode(), began_ns, windows, "net", Layers()))


def test_an_event_is_of_the_visit_that_it_began_in() -> None:
    events = [node("a", 10, 5), run(9, 8), node("a", 110, 5), run(109, 8)]
    # The profile began 1 ms after the clock's zero; wall-clock time is 7 ms ahead of the clock.
    first = Window(1 * MS, 1 * MS + 50_000, 7 * MS, False)
    second = Window(1 * MS + 50_000, 2 * MS, 7 * MS, False)
    early, late = read(events, first, second, began_ns=8 * MS)
    assert early.start_ns.tolist() == [MS + 10_000]
    assert late.start_ns.tolist() == [MS + 110_000]
    assert early.duration_ns.tolist() == [5_000]
    assert early.nodes == (("a", "A", "CPUExecutionProvider"),)
    assert early.arguments == ()


def test_a_node_is_of_the_run_on_its_thread_else_of_any() -> None:
    events = [
        *(node("a", 10, 5, tid=1), node("a", 11, 5, tid=2), run(9, 8, tid=1), run(10, 8, tid=2)),
        *(node("a", 110, 5, tid=3), run(109, 8, tid=1), node("a", 500, 5, tid=1)),
    ]
    (found,) = read(events, Window(0, MS, 0, True))
    assert found.run.tolist() == [0, 1, 2, -1]
    assert json.loads(found.arguments[0])["op_name"] == "A"


def test_a_profile_that_is_full_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_EVENTS", 2)
    with pytest.raises(ProviderError, match="net had more in a visit"):
        read([node("a", 10, 5), run(9, 8)], Window(0, MS, 0, False))


def test_half_a_microsecond_is_added_to_what_was_cut() -> None:
    (found,) = read([node("a", 10, 5), node("b", 20, 5), run(9, 30)], Window(0, MS, 0, False))
    rows = node_rows(OrtRecords(REQUEST, threads={1: 77}, events=(found,)))
    assert rows["start_ns"].to_list() == [10_500, 20_500]
    assert rows["end_ns"].to_list() == [16_000, 26_000]
    assert rows["thread"].to_list() == [77, 77]
    assert rows["uncertainty_ns"].to_list() == [1_000, 1_000]


@given(st.lists(st.tuples(st.integers(0, 2_999), st.integers(0, 5_000)), min_size=1, max_size=20))
def test_nodes_in_a_row_neither_overlap_nor_change_on_average(
    gaps_and_lengths: list[tuple[int, int]],
) -> None:
    events, at = [], 0
    for gap, length in gaps_and_lengths:
        at += gap
        events.append(node("a", at // 1000, (at + length) // 1000 - at // 1000))
        events[-1]["dur"] = length // 1000
        at += length
    (found,) = read([*events, run(0, at // 1000 + 1)], Window(0, MS, 0, False))
    rows = node_rows(OrtRecords(REQUEST, events=(found,)))
    assert (rows["end_ns"] >= rows["start_ns"]).all()
    assert (rows["end_ns"][:-1] <= rows["start_ns"][1:]).all()
    lengths = np.array([length for _, length in gaps_and_lengths])
    off = np.abs((rows["end_ns"] - rows["start_ns"]).to_numpy() - lengths)
    assert (off <= 1_001).all()  # a tick, and what is lost where the middle is no whole number


def test_nodes_on_a_thread_of_the_pool_lie_in_the_run() -> None:
    content = RECORDED.read_bytes()
    layers = Layers({f"/branch{at}/MatMul": NodeOrigin((f"branch{at}",)) for at in range(3)})
    (found,) = read_windows(content, 0, [Window(0, 1_000 * MS, 0, True)], "net", layers)
    runs = [event for event in json.loads(content) if event["name"] == "model_run"]
    parts = tuple(
        Part("predict", each["ts"] * 1_000, (each["ts"] + each["dur"] + 1) * 1_000, 77)
        for each in runs
    )
    assert np.bincount(found.run).tolist() == [4, 4, 4]
    records = OrtRecords(REQUEST, parts, {runs[0]["tid"]: 77}, (found,))
    rows = node_rows(records)
    layer = rows.filter(pl.col("kind") == "layer")
    assert sorted(layer["name"]) == sorted(3 * ["branch0", "branch1", "branch2"])
    sums = rows.filter(pl.col("name") == "Sum", pl.col("thread") < 0)
    assert set(sums["parent_id"]) <= {1, 2, 3}
    assert set(layer.filter(pl.col("thread") < 0)["parent_id"]) <= {1, 2, 3}
    shapes = rows.filter(pl.col("name") == "MatMul")["attr.input_shapes"].to_list()
    assert all(told[0] == [256, 8] for told in shapes)
