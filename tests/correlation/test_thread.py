from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.correlation.parent import correlate
from xsp.correlation.thread import locate
from xsp.provider.row import SpanRows, concat_rows, span_rows

Row = tuple[str, str, int, int, int | None]


def rows_of(*rows: Row, **columns: Any) -> SpanRows:
    kind, name, start, end, thread = zip(*rows, strict=True)
    names = {"kind": kind, "name": name, "start_ns": start, "end_ns": end}
    return span_rows({**names, "thread": pl.Series(thread, dtype=pl.Int64), **columns})


ROOT = rows_of(("pipeline", "root", 0, 1000, 1))


def call(start: int, end: int, uncertainty: int | None = None) -> SpanRows:
    return rows_of(("call", "gemm", start, end, None), uncertainty_ns=uncertainty)


def settled(call: SpanRows, *others: Row, roots: SpanRows = ROOT) -> tuple[Any, ...]:
    rows, ambiguous = locate(roots, concat_rows([rows_of(*others), call]))
    return (*rows.select("start_ns", "end_ns", "thread").row(-1), ambiguous)


def test_call_without_thread_goes_where_an_operator_is_open() -> None:
    ops: tuple[Row, ...] = (("op", "a", 0, 90, 1), ("op", "b", 100, 200, 2))
    assert settled(call(110, 120), *ops) == (110, 120, 2, 0)
    assert settled(call(10, 20), *ops) == (10, 20, 1, 0)


def test_call_outside_of_all_operators_goes_to_its_roots_thread() -> None:
    layers: tuple[Row, ...] = (("layer", "fc", 100, 200, 2), ("op", "b", 300, 400, 2))
    assert settled(call(110, 120), *layers) == (110, 120, 1, 0)
    assert settled(call(500, 600), *layers) == (500, 600, 1, 0)


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


def test_operators_that_state_each_other_as_parents_are_ambiguous() -> None:
    ops = rows_of(("op", "a", 0, 90, 1), ("op", "b", 0, 90, 2), id=[7, 8], parent_id=[8, 7])
    assert locate(ROOT, concat_rows([ops, call(10, 20)]))[0]["thread"].to_list() == [1, 2, 1]


def test_numbers_of_threads_of_64_bits_are_kept() -> None:
    hashed = -1180107325548097714
    assert settled(call(10, 20), ("op", "a", 0, 90, hashed))[2] == hashed


def test_correlation_puts_the_call_under_that_operator() -> None:
    rows = rows_of(("op", "a", 0, 90, 1), ("op", "b", 100, 200, 2), ("call", "gemm", 99, 120, None))
    rows = rows.with_columns(uncertainty_ns=pl.Series([None, None, 2], dtype=pl.Int64))
    found = correlate(ROOT, rows)
    frame = found.frames[0]
    assert frame["name"].gather(frame["parent"].filter(frame["name"] == "gemm")).to_list() == ["b"]
    assert (found.orphans, found.ambiguous_threads) == (1, 0)  # b is on a thread of its own


def test_uncertain_times_are_cut_to_the_operator_around_them() -> None:
    op = ("op", "a", 100, 200, 1)
    assert settled(call(99, 150, 2), op) == (100, 150, 1, 0)
    assert settled(call(150, 202, 2), op) == (150, 200, 1, 0)
    assert settled(call(98, 202, 2), op) == (100, 200, 1, 0)
    assert settled(call(97, 150, 2), op) == (97, 150, 1, 0)  # too far off to be rounding
    assert settled(call(99, 100, 9), op)[:2] == (99, 100)  # it lay before it


def test_the_innermost_operator_is_the_one_it_is_cut_to() -> None:
    ops: tuple[Row, ...] = (("op", "a", 0, 300, 1), ("op", "b", 100, 200, 1))
    assert settled(call(99, 150, 2), *ops) == (100, 150, 1, 0)
    assert settled(call(90, 150, 2), *ops) == (90, 150, 1, 0)


def test_certain_rows_are_never_moved() -> None:
    ops: tuple[Row, ...] = (("op", "a", 100, 200, 1), ("op", "b", 99, 150, 1))
    rows = concat_rows([rows_of(*ops), call(99, 300, 2)])
    assert locate(ROOT, rows)[0].select(rows.columns).head(2).equals(rows.head(2))
    plain = rows_of(*ops, ("call", "gemm", 99, 300, 1))
    assert locate(ROOT, plain)[0] is plain


def test_a_call_that_sticks_out_of_its_evaluation_is_not_lost() -> None:
    found = correlate(ROOT, call(-1, 50, 2))
    assert found.outside == 0
    assert found.frames[0]["start_ns"].to_list() == [0, 0]


def test_calls_inside_calls_all_find_the_operator() -> None:
    rows = concat_rows(
        [rows_of(("op", "a", 100, 200, 1)), call(99, 190, 3), call(101, 110, 3), call(120, 130, 3)]
    )
    assert locate(ROOT, rows)[0]["start_ns"].to_list() == [100, 100, 101, 120]


def test_each_evaluation_has_its_own_thread() -> None:
    roots = rows_of(("pipeline", "r", 0, 100, 1), ("pipeline", "r", 200, 300, 2))
    rows = concat_rows([call(10, 20), call(199, 250, 3)])
    found, _ = locate(roots, rows)
    assert found.select("start_ns", "thread").rows() == [(10, 1), (200, 2)]


def test_device_rows_and_rows_of_unknown_threads_stay_as_they_are() -> None:
    kernel = rows_of(("kernel", "k", 5, 9, None), device=0, stream=7)
    assert locate(ROOT, kernel)[0].equals(kernel)
    nobody = rows_of(("pipeline", "root", 0, 1000, None))
    assert locate(nobody, call(5, 9))[0]["thread"].to_list() == [None]
    assert locate(ROOT, call(5, 9).clear())[1] == 0


def test_calls_under_operators_that_know_no_thread_either_are_fitted() -> None:
    rows = concat_rows([rows_of(("op", "a", 100, 200, None)), call(99, 150, 2)])
    assert locate(ROOT, rows)[0].select("start_ns", "thread").rows() == [
        (100, None),
        (100, 1),
    ]


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
    root = rows_of(("pipeline", "root", 0, at + 10, 1))
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
    root = rows_of(("pipeline", "root", 0, count * 10, 1))
    found, ambiguous = locate(root, concat_rows([ops, calls]))
    assert ambiguous == 0
    assert (found["thread"].tail(count).to_numpy() == start % 4).all()
