from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.native.perf_event import Hit
from xsp_levels.native.uprobe import Seen, pair, weighed

A, B = "sgemm", "ssyrk"


def test_nested_calls_are_paired_from_within() -> None:
    moments = [
        (Hit(10, 1, (5,)), A, False),
        (Hit(20, 1), B, False),
        (Hit(30, 1), B, True),
        (Hit(40, 1), A, True),
    ]
    assert pair(moments) == [Seen(B, 20, 30, 1), Seen(A, 10, 40, 1, (5,))]


def test_threads_do_not_mix() -> None:
    moments = [
        (Hit(10, 1), A, False),
        (Hit(11, 2), A, False),
        (Hit(12, 1), A, True),
        (Hit(13, 2), A, True),
    ]
    assert [(call.thread, call.start_ns) for call in pair(moments)] == [(1, 10), (2, 11)]


def test_beginnings_without_return_and_returns_without_beginning_are_no_calls() -> None:
    moments = [
        (Hit(5, 1), B, True),
        (Hit(10, 1), A, False),
        (Hit(20, 1), B, False),  # left by a jump
        (Hit(40, 1), A, True),
        (Hit(50, 1), B, False),
    ]
    assert pair(moments) == [Seen(A, 10, 40, 1)]


@given(
    moments=st.lists(
        st.tuples(
            st.builds(Hit, st.integers(0, 99), st.integers(1, 2)),
            st.sampled_from([A, B]),
            st.booleans(),
        )
    )
)
def test_calls_never_end_before_they_begin(moments: list[tuple[Hit, str, bool]]) -> None:
    for call in pair(moments):
        for tare in (0, 7, 1_000):
            start, end = weighed(call, tare)
            assert call.start_ns <= start <= end <= call.end_ns
            assert end - start == max(call.end_ns - call.start_ns - tare, 0)
