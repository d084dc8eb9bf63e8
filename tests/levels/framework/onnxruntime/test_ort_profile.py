"""Events and rows of each visit, from ONNX Runtime's profiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider import Request
from xsp_levels.framework.onnxruntime import profile
from xsp_levels.framework.onnxruntime.layer import Layers
from xsp_levels.framework.onnxruntime.profile import Window, read_windows
from xsp_levels.framework.onnxruntime.provider import node_rows
from xsp_levels.framework.onnxruntime.record import NodeEvents, OrtRecords

REQUEST = Request(frozenset({Kind.REGION, Kind.OP}))
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


def test_a_profile_that_is_full_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_EVENTS", 2)
    with pytest.raises(ProviderError, match="net had more"):
        read([node("a", 10, 5), run(9, 8)], Window(0, MS, 0, False))


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
