from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from xsp.correlation.parent import correlate
from xsp.correlation.untimed import place_by_order
from xsp.provider.row import SpanRows, concat_rows, span_rows

MM = r"^(mm|addmm)$"


def operators(*spans: tuple[str, int, int], thread: int = 1) -> SpanRows:
    names, starts, ends = zip(*spans, strict=True)
    return span_rows(
        {"kind": "op", "name": names, "start_ns": starts, "end_ns": ends, "thread": thread}
    )


def calls(*durations: int, inside: str = MM) -> SpanRows:
    nowhere = pl.Series([None] * len(durations), dtype=pl.Int64)
    return span_rows(
        {
            "kind": "call",
            "name": [f"call{number}" for number in range(len(durations))],
            "start_ns": nowhere,
            "end_ns": nowhere,
            "duration_ns": durations,
            "inside": inside,
        }
    )


def parents(*frames: SpanRows, end: int = 1_000) -> list[tuple[str, str]]:
    """Return each call with the operator that it ends up in."""
    root = span_rows(
        {"kind": ["pipeline"], "name": ["predict"], "start_ns": [0], "end_ns": [end], "thread": [1]}
    )
    tree = correlate(root, place_by_order(concat_rows(list(frames)))).frames[0]
    names, kinds, above = (tree[name].to_list() for name in ("name", "kind", "parent"))
    return [
        (name, names[parent])
        for name, kind, parent in zip(names, kinds, above, strict=True)
        if kind == "call"
    ]


def test_rows_with_times_are_left_alone() -> None:
    rows = operators(("mm", 0, 10))
    assert place_by_order(rows) is rows


def test_one_call_goes_into_each_operator_that_can_make_it() -> None:
    ops = operators(("mm", 0, 100), ("relu", 100, 300), ("addmm", 300, 340))
    assert parents(ops, calls(20, 30)) == [("call0", "mm"), ("call1", "addmm")]


def test_innermost_operator_that_can_make_it_gets_it() -> None:
    ops = operators(("addmm", 0, 100), ("mm", 10, 90))
    assert parents(ops, calls(50)) == [("call0", "mm")]


def test_operators_that_prepare_arguments_do_not_get_it() -> None:
    ops = operators(("addmm", 0, 100), ("expand", 5, 60))
    assert parents(ops, calls(30)) == [("call0", "addmm")]


def test_several_calls_share_one_operator_in_their_order() -> None:
    ops = operators(("mm", 0, 100), ("mm", 200, 300))
    placed = place_by_order(concat_rows([ops, calls(40, 40, 70)])).tail(3)
    assert placed.select("start_ns", "end_ns").rows() == [(19, 59), (59, 99), (229, 299)]


def test_call_that_no_operator_has_room_for_is_an_orphan() -> None:
    root = span_rows(
        {"kind": ["pipeline"], "name": ["predict"], "start_ns": [0], "end_ns": [500], "thread": [1]}
    )
    rows = place_by_order(concat_rows([operators(("mm", 0, 100)), calls(200)]))
    assert correlate(root, rows).orphans == 1


def test_calls_without_any_operator_do_not_break_it() -> None:
    assert place_by_order(calls(5, 6)).select("start_ns", "end_ns").rows() == [(0, 5), (0, 6)]


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    durations=st.lists(st.integers(0, 80), max_size=20),
)
def test_placed_calls_keep_their_order_and_lie_in_operators(
    lengths: Sequence[int], durations: Sequence[int]
) -> None:
    at, spans = 0, []
    for length in lengths:
        spans.append(("mm", at, at + length))
        at += length + 1
    if not durations:
        return
    placed = place_by_order(concat_rows([operators(*spans), calls(*durations)]))
    found: list[dict[str, Any]] = placed.tail(len(durations)).to_dicts()
    assert [row["end_ns"] - row["start_ns"] for row in found] == list(durations)
    inside = [row for row in found if row["thread"] == 1]
    assert inside == found[: len(inside)]
    for one, other in pairwise(inside):
        assert one["end_ns"] <= other["start_ns"]
    for row in inside:
        assert any(start <= row["start_ns"] and row["end_ns"] <= end for _, start, end in spans)
