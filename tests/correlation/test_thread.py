from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.provider.row import SpanRows, concat_rows, span_rows
from xsp.reading.correlation.parent import correlate
from xsp.reading.correlation.thread import locate

Row = tuple[str, str, int, int, int | None]


def rows_of(*rows: Row, **columns: Any) -> SpanRows:
    kind, name, start, end, thread = zip(*rows, strict=True)
    names = {"kind": kind, "name": name, "start_ns": start, "end_ns": end}
    return span_rows({**names, "thread": pl.Series(thread, dtype=pl.Int64), **columns})


ROOT = rows_of(("region", "root", 0, 1000, 1))


def call(start: int, end: int, uncertainty: int | None = None) -> SpanRows:
    return rows_of(("call", "gemm", start, end, None), uncertainty_ns=uncertainty)


def settled(call: SpanRows, *others: Row, roots: SpanRows = ROOT) -> tuple[Any, ...]:
    rows, ambiguous = locate(roots, concat_rows([rows_of(*others), call]))
    return (*rows.select("start_ns", "end_ns", "thread").row(-1), ambiguous)


def test_call_that_several_threads_may_have_made_is_counted() -> None:
    ops: tuple[Row, ...] = (("op", "a", 0, 90, 1), ("op", "b", 0, 80, 2), ("op", "c", 0, 70, 3))
    assert settled(call(10, 20), *ops) == (10, 20, 1, 1)
    assert settled(call(10, 20), *ops[1:]) == (10, 20, 1, 1)
    assert settled(call(10, 75), *ops[1:]) == (10, 75, 2, 0)


def test_an_operator_that_waits_for_one_of_a_pool_did_not_make_the_call() -> None:
    ops = rows_of(
        ("op", "function", 0, 300, 1), ("layer", "conv", 90, 210, 2), ("op", "conv2d", 100, 200, 2),
        id=[7, 8, 9], parent_id=[None, 7, 8],
    )  # fmt: skip
    rows, ambiguous = locate(ROOT, concat_rows([ops, call(110, 120), call(250, 260)]))
    assert (rows["thread"].to_list(), ambiguous) == ([1, 2, 2, 2, 1], 0)


def test_each_evaluation_has_its_own_thread() -> None:
    roots = rows_of(("region", "r", 0, 100, 1), ("region", "r", 200, 300, 2))
    rows = concat_rows([call(10, 20), call(199, 250, 3)])
    found, _ = locate(roots, rows)
    assert found.select("start_ns", "thread").rows() == [(10, 1), (200, 2)]


@st.composite
def operators_with_calls(draw: st.DrawFn) -> tuple[SpanRows, SpanRows, list[int]]:
    """Draw operators one after the other on few threads, and a jittered call in each."""
    ops, calls, at = [], [], 0
    for i in range(draw(st.integers(1, 20))):
        begin = at + draw(st.integers(4, 10))
        start = begin + draw(st.integers(0, 5))
        end = start + draw(st.integers(8, 30))
        at = end + draw(st.integers(0, 5))
        ops.append(("op", f"op{i}", begin, at, draw(st.integers(1, 3))))
        jitter = draw(st.integers(-3, 3))
        calls.append(("call", f"call{i}", start + jitter, end + jitter, None))
    root = rows_of(("region", "root", 0, at + 10, 1))
    order = draw(st.permutations(range(len(ops))))
    rows = concat_rows([rows_of(*ops), rows_of(*calls, uncertainty_ns=3)[order]])
    return root, rows, [op[4] for op in ops]


@unhurried
@given(operators_with_calls())
def test_every_call_ends_up_inside_the_operator_it_came_from(
    drawn: tuple[SpanRows, SpanRows, list[int]],
) -> None:
    root, rows, threads = drawn
    found = correlate(root, rows)
    frame = found.frames[0]
    names, parent = frame["name"].to_list(), frame["parent"].to_list()
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    for i, thread in enumerate(threads):
        at = names.index(f"call{i}")
        assert names[parent[at]] == f"op{i}"
        assert frame["thread"][at] == thread
        assert start[parent[at]] <= start[at] <= end[at] <= end[parent[at]]
    assert found.ambiguous_threads == 0


def test_many_rows_are_quick() -> None:
    count = 100_000
    start = np.arange(count) * 10
    ops = span_rows(
        {"kind": "op", "name": "a", "start_ns": start, "end_ns": start + 9, "thread": start % 4}
    )
    calls = span_rows(
        {
            "kind": "call",
            "name": "c",
            "start_ns": start + 1,
            "end_ns": start + 5,
            "uncertainty_ns": 1,
        }
    )
    root = rows_of(("region", "root", 0, count * 10, 1))
    found, ambiguous = locate(root, concat_rows([ops, calls]))
    assert ambiguous == 0
    assert (found["thread"].tail(count).to_numpy() == start % 4).all()
