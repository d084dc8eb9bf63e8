from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import unhurried

from xsp.correlation.interval import (
    begun,
    enclosing,
    enclosing_sorted,
    sort_outside_in,
)
from xsp.evaluation.ancestry import nearest_outer

Interval = tuple[int, int, int, int]  # lane, start, length, order


def columns(intervals: list[Interval]) -> list[NDArray[Any]]:
    lane, start, length, order = np.array(intervals, np.int64).reshape(-1, 4).T
    rows = sort_outside_in(start, start + length, order)
    return [column[rows] for column in (lane, start, start + length, order)]


Row = tuple[int, ...]


def is_around(outer: Row, inner: Row) -> bool:
    """Tell whether a row encloses a row that comes after it in time."""
    same_lane = outer[0] == inner[0]
    open_yet = outer[2] >= inner[2] if outer[3] < inner[3] else outer[2] >= max(inner[2], inner[1])
    ended = outer[3] >= inner[3] and outer[2] == inner[1] == inner[2]
    return same_lane and open_yet and not ended


def innermost_one_by_one(rows: list[Row], at: int) -> int:
    """Return the parent of a row on a rung that records its own kind and outer kinds."""
    found = [i for i in range(at) if rows[i][3] <= rows[at][3] and is_around(rows[i], rows[at])]
    return found[-1] if found else -1


@unhurried
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-20, 20), st.integers(0, 20), st.integers(0, 3)),
        max_size=60,
    )
)
def test_without_the_deeper_kinds_the_parent_is_the_row_that_starts_last_of_all_around(
    intervals: list[Interval],
) -> None:
    sorted_columns = columns(intervals)
    rows = [tuple(row) for row in np.array(sorted_columns).T.tolist()]
    expected = [innermost_one_by_one(rows, at) for at in range(len(rows))]
    assert nearest_outer(enclosing(*sorted_columns), sorted_columns[3]).tolist() == expected


@unhurried
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)),
        max_size=30,
    )
)
def test_the_parent_is_the_row_that_starts_last_where_none_overlap_in_part(
    intervals: list[Interval],
) -> None:
    kept: list[Interval] = []
    for lane, start, length, order in intervals:
        # No instant at which one row ends and another begins: it lies in the outer kind's.
        new = lane, 2 * start + (length == 0), 2 * length, order
        if not any(overlap_in_part(new, old) for old in kept):
            kept.append(new)
    sorted_columns = columns(kept)
    rows = [tuple(row) for row in np.array(sorted_columns).T.tolist()]
    for at, parent in enumerate(enclosing(*sorted_columns).tolist()):
        around = [i for i in range(at) if is_around(rows[i], rows[at])]
        assert parent == (around[-1] if around else -1)


def overlap_in_part(one: Interval, other: Interval) -> bool:
    (a, b), (c, d) = ((start, start + length) for _, start, length, _ in (one, other))
    return one[0] == other[0] and (a < c < b < d or c < a < d < b)


@unhurried
@given(
    st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)))
)
def test_rows_may_come_in_any_sequence(intervals: list[Interval]) -> None:
    lane, start, length, order = np.array(intervals, np.int64).reshape(-1, 4).T
    rows = sort_outside_in(start, start + length, order)
    found = enclosing(lane, start, start + length, order)
    expected = enclosing_sorted(*(c[rows] for c in (lane, start, start + length, order)))
    for at, parent in zip(rows.tolist(), expected.tolist(), strict=True):
        assert found[at] == (rows[parent] if parent >= 0 else -1)


@unhurried
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=30))
def test_any_number_of_lanes_is_kept_apart(lanes: list[int]) -> None:
    numbers = np.array(lanes, np.int64)
    position = np.arange(len(lanes))
    found = enclosing(numbers, position, np.full(len(lanes), 1000), np.ones(len(lanes), np.int64))
    for at, parent in enumerate(found):
        earlier = np.flatnonzero(numbers[:at] == numbers[at])
        assert parent == (earlier[-1] if len(earlier) else -1)


def test_rows_are_sorted_by_start_then_length_then_kind_then_as_given() -> None:
    start, end, order = (
        np.array([5, 1, 1, 1, 1]),
        np.array([6, 3, 9, 9, 9]),
        np.array([0, 0, 2, 1, 1]),
    )
    assert sort_outside_in(start, end, order).tolist() == [3, 4, 2, 1, 0]


def test_wall_clock_times_do_not_overflow() -> None:
    now = 1_800_000_000 * 10**9
    zeros = np.zeros(2, np.int64)
    assert enclosing(zeros, now + np.array([0, 1]), now + np.array([9, 2]), zeros).tolist() == [
        -1,
        0,
    ]


moments = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 30)), max_size=20)


@unhurried
@given(moments, moments)
def test_the_row_that_began_last_is_found_on_its_own_lane(
    rows: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    lane, start = np.array(rows, np.int64).reshape(-1, 2).T
    ask_lane, ask_time = np.array(asked, np.int64).reshape(-1, 2).T
    last = begun(lane, start, (ask_lane, ask_time))
    following = begun(lane, start, (ask_lane, ask_time), strategy="forward")
    for at, (where, when) in enumerate(asked):
        before = [(s, i) for i, (own, s) in enumerate(rows) if own == where and s <= when]
        after = [(s, i) for i, (own, s) in enumerate(rows) if own == where and s >= when]
        assert last[at] == (max(before)[1] if before else -1)
        assert following[at] == (min(after)[1] if after else -1)
