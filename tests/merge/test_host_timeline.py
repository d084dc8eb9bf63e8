from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp.merge.host_timeline import Timeline, rebuild


@dataclass
class Measured:
    parent: np.ndarray
    lane: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    latency_ns: np.ndarray

    def rebuild(self) -> Timeline:
        return rebuild(
            self.parent,
            self.lane,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            latency_ns=self.latency_ns,
        )


@st.composite
def measured(draw: st.DrawFn) -> Measured:
    count = draw(st.integers(1, 40))
    parent, lane, start, end = [-1], [0], [0], [draw(st.integers(0, 10_000))]
    for i in range(1, count):
        above = draw(st.integers(0, i - 1))
        ends = sorted(draw(st.tuples(*[st.integers(start[above], end[above] + 50)] * 2)))
        parent.append(above)
        lane.append(draw(st.integers(0, 2)))
        start.append(ends[0])
        end.append(ends[1])
    latency = draw(
        st.lists(
            st.one_of(st.floats(0, 20_000), st.just(float("nan"))), min_size=count, max_size=count
        )
    )
    ints = [np.array(values, dtype=np.int64) for values in (parent, lane, start, end)]
    return Measured(ints[0], ints[1], ints[2], ints[3], np.array(latency))


def lengths(spans: Measured) -> np.ndarray:
    raw = np.where(np.isnan(spans.latency_ns), spans.end_ns - spans.start_ns, spans.latency_ns)
    return np.rint(raw).astype(int)


@given(measured())
def test_children_lie_inside_their_parents(spans: Measured) -> None:
    line = spans.rebuild()
    child, parent = np.arange(1, len(spans.parent)), spans.parent[1:]
    assert (line.start_ns[child] >= line.start_ns[parent]).all()
    assert (line.end_ns[child] <= line.end_ns[parent]).all()
    assert (line.end_ns >= line.start_ns).all()


@given(measured())
def test_own_latency_is_exact_where_nothing_was_scaled(spans: Measured) -> None:
    line = spans.rebuild()
    free = np.ones(len(spans.parent), dtype=bool)
    for i in range(1, len(spans.parent)):  # parents come before their children
        above = spans.parent[i]
        free[i] = free[above] and np.isnan(line.scaled_ns[above])
    assert ((line.end_ns - line.start_ns)[free] == lengths(spans)[free]).all()


@given(measured())
def test_spans_that_ran_one_after_the_other_keep_their_order(spans: Measured) -> None:
    line = spans.rebuild()
    for i in range(1, len(spans.parent)):
        for j in range(1, len(spans.parent)):
            beside = spans.parent[i] == spans.parent[j] and spans.lane[i] == spans.lane[j]
            crowd = (spans.parent == spans.parent[i]) & (spans.lane == spans.lane[i])
            if i == j or not beside or overlaps(spans, np.flatnonzero(crowd)):
                continue
            if (spans.start_ns[i], spans.end_ns[i]) < (spans.start_ns[j], spans.end_ns[j]):
                assert line.end_ns[i] <= line.start_ns[j]


def overlaps(spans: Measured, rows: np.ndarray) -> bool:
    rows = rows[np.lexsort((spans.end_ns[rows], spans.start_ns[rows]))]
    return bool((spans.start_ns[rows][1:] < spans.end_ns[rows][:-1]).any())


@given(measured())
def test_what_the_children_exceed_their_parent_by_is_stated(spans: Measured) -> None:
    line, long = spans.rebuild(), lengths(spans)
    for i in range(len(spans.parent)):
        rows = np.flatnonzero(spans.parent == i)
        if overlaps_in_any_lane(spans, rows):
            continue
        sums = [long[rows[spans.lane[rows] == lane]].sum() for lane in np.unique(spans.lane[rows])]
        excess = max(sums, default=0) - long[i]
        assert excess <= 0 if np.isnan(line.scaled_ns[i]) else line.scaled_ns[i] == excess


def overlaps_in_any_lane(spans: Measured, rows: np.ndarray) -> bool:
    return any(overlaps(spans, rows[spans.lane[rows] == lane]) for lane in range(3))


def simple(parent: list[int], start: list[int], end: list[int], latency: list[float]) -> Measured:
    ints = [np.array(v, dtype=np.int64) for v in (parent, [0] * len(parent), start, end)]
    return Measured(ints[0], ints[1], ints[2], ints[3], np.array(latency))


def test_gaps_shrink_in_proportion() -> None:
    spans = simple([-1, 0, 0], [0, 20, 50], [100, 40, 90], [50.0, 10, 20])
    line = spans.rebuild()
    assert line.start_ns.tolist() == [0, 10, 25]
    assert line.end_ns.tolist() == [50, 20, 45]


def test_children_that_sum_to_more_than_their_parent_fill_it() -> None:
    line = simple([-1, 0, 0], [0, 0, 50], [100, 50, 100], [90.0, 60, 60]).rebuild()
    assert line.start_ns.tolist() == [0, 0, 45]
    assert line.end_ns.tolist() == [90, 45, 90]
    assert line.scaled_ns[0] == 30


def test_overlapping_siblings_are_drawn_side_by_side() -> None:
    line = simple([-1, 0, 0], [0, 0, 10], [100, 60, 70], [100.0, 60, 60]).rebuild()
    assert np.isnan(line.scaled_ns).all()
    assert line.start_ns.tolist() == [0, 0, 10]
    assert line.end_ns.tolist() == [100, 60, 70]


def test_a_long_timeline_is_drawn_to_the_nanosecond() -> None:
    count = 20_000
    parent = np.zeros(count, dtype=np.int64)
    parent[0] = -1
    start = np.arange(-1, count - 1) * 10**9
    start[0] = 0
    end = start + 10**9 - 7
    end[0] = count * 10**9
    latency = np.full(count, 5e8 + 3)
    latency[0] = count * 6e8
    line = rebuild(
        parent, np.zeros(count, dtype=np.int64), start_ns=start, end_ns=end, latency_ns=latency
    )
    assert set((line.end_ns - line.start_ns)[1:].tolist()) == {500_000_003}
    assert (np.diff(line.start_ns[1:]) >= 500_000_003).all()
