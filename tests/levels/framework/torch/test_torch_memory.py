from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.framework.memory import (
    memory_columns,
    no_allocations,
    sorted_allocations,
)

changes = st.lists(
    st.tuples(st.integers(0, 100), st.integers(-1000, 1000), st.sampled_from([1, 2])), max_size=60
)
intervals = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 50), st.sampled_from([1, 2])),
    min_size=1,
    max_size=20,
)


@given(changes, intervals)
def test_columns_are_what_a_loop_over_the_events_finds(
    events: list[tuple[int, int, int]], spans: list[tuple[int, int, int]]
) -> None:
    time, size, thread = np.array(events, np.int64).reshape(-1, 3).T
    seen = sorted_allocations(time, size, thread=thread, threads=frozenset({1, 2}))
    start, length, where = np.array(spans, np.int64).T
    columns = memory_columns(seen, start, start + length, where)
    for index, (begin, duration, own) in enumerate(spans):
        within = [
            s
            for t, s, w in sorted(events, key=lambda e: e[0])
            if w == own and begin <= t <= begin + duration
        ]
        levels = np.cumsum([0, *within])
        assert columns["attr.allocated_bytes"][index] == sum(s for s in within if s > 0)
        assert columns["attr.freed_bytes"][index] == -sum(s for s in within if s < 0)
        assert columns["attr.peak_bytes"][index] == levels.max()


def test_thread_that_was_not_watched_has_null_and_not_zero() -> None:
    one = np.array([1])
    seen = sorted_allocations(one, one, thread=one, threads=frozenset({1}))
    columns = memory_columns(seen, np.array([0, 0]), np.array([9, 9]), np.array([1, 2]))
    assert columns["attr.allocated_bytes"].to_list() == [1, None]


def test_without_a_memory_run_there_are_no_columns() -> None:
    one = np.array([1])
    assert memory_columns(no_allocations(), one, one, one) == {}
