from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp.evaluation.union import clipped, covered, covered_below, free, united

INTERVALS = st.lists(st.tuples(st.integers(0, 9), st.integers(-60, 60), st.integers(0, 20)))


def nanoseconds(intervals: list[tuple[int, int]]) -> int:
    """Return how much time the intervals cover, nanosecond by nanosecond."""
    return len({ns for start, end in intervals for ns in range(start, end)})


@given(INTERVALS)
def test_the_union_of_a_group_is_that_of_its_intervals(drawn: list[tuple[int, int, int]]) -> None:
    group, start, length = np.array(drawn, dtype=np.int64).reshape(-1, 3).T
    found = covered(group, start, start + length, 10)
    for number in range(10):
        inside = [(begin, begin + size) for home, begin, size in drawn if home == number]
        assert found[number] == nanoseconds(inside)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(0, 20)), min_size=1),
    st.integers(-(10**15), 10**15),
)
def test_the_union_over_a_tree_is_that_of_its_intervals(
    drawn: list[tuple[int, int, int]], origin: int
) -> None:
    hosts = 10
    parent = np.array([-1, 0, 0, 1, 1, 3, 4, 2, 7, 8, *(home for home, _, _ in drawn)])
    start = np.array([origin] * hosts + [origin + begin for _, begin, _ in drawn])
    end = start + np.array([100] * hosts + [length for _, _, length in drawn])
    rows = np.arange(hosts, len(parent))
    found = covered_below(parent, rows, (start, end))
    for host in range(hosts):
        inside = [row for row in rows if host in lineage(parent, int(row))]
        assert found[host] == nanoseconds([(start[row], end[row]) for row in inside])


def lineage(parent: np.ndarray, row: int) -> list[int]:
    above = []
    while (row := int(parent[row])) >= 0:
        above.append(row)
    return above


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20),
    st.tuples(st.integers(0, 70), st.integers(0, 70)).map(sorted),
)
def test_times_are_united_clipped_and_left_out_as_sets_of_moments(
    drawn: list[tuple[int, int]], around: list[int]
) -> None:
    times = [(begin, begin + length) for begin, length in drawn]
    together = united(times)
    assert all(end < begin for (_, end), (begin, _) in pairwise(together))
    moments = [at for part in clipped(together, *around) for at in range(*part)]
    assert moments == [at for at in range(*around) if any(b <= at < e for b, e in times)]
    left = [at for part in free(together, *around) for at in range(*part)]
    assert left == [at for at in range(*around) if at not in moments]
