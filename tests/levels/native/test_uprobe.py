from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.native.perf_event import Hit
from xsp_levels.native.uprobe import Tare, TimedCall, pair, tare_of, weighed

A, B = "sgemm", "ssyrk"


def test_nested_calls_are_paired_from_within() -> None:
    moments = [
        (Hit(10, 1, (5,)), A, False),
        (Hit(20, 1), B, False),
        (Hit(30, 1), B, True),
        (Hit(40, 1), A, True),
    ]
    assert pair(moments) == [TimedCall(B, 20, 30, 1), TimedCall(A, 10, 40, 1, (5,))]


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
    assert pair(moments) == [TimedCall(A, 10, 40, 1)]


def test_return_and_beginning_at_one_time_are_of_two_calls() -> None:
    moments = [
        (Hit(10, 1), A, False),
        (Hit(20, 1), A, False),
        (Hit(20, 1), A, True),
        (Hit(30, 1), A, True),
    ]
    assert pair(moments) == [TimedCall(A, 10, 20, 1), TimedCall(A, 20, 30, 1)]


def test_beginning_and_return_at_one_time_are_one_call() -> None:
    moments = [(Hit(10, 1, (5,)), A, False), (Hit(10, 1), A, True), (Hit(10, 2), A, False)]
    assert pair(moments) == [TimedCall(A, 10, 10, 1, (5,))]


def alike(call: TimedCall) -> tuple[str, tuple[int, ...]]:
    return call.function, call.arguments


def test_call_with_equal_ends_has_no_end() -> None:
    assert weighed([TimedCall(A, 10, 10, 1)], {}, alike) == [(10, None)]


def test_calls_that_take_what_nothing_takes_have_no_end() -> None:
    calls = [TimedCall(A, 0, 100, 1), TimedCall(A, 200, 305, 1), TimedCall(A, 400, 900, 1)]
    found = weighed(calls, {A: Tare(100, 10)}, alike)
    assert found[:2] == [(50, None), (250, None)]
    assert found[2][1] is None  # the other two say that the time is something else's


def test_calls_that_take_longer_keep_what_is_left() -> None:
    calls = [
        TimedCall(A, 0, 140, 1, (9,)),
        TimedCall(A, 200, 345, 1, (9,)),
        TimedCall(A, 400, 480, 1, (9,)),
    ]
    found = weighed(calls, {A: Tare(100, 10)}, alike)
    assert found == [(50, 90), (250, 295), (440, None)]


def test_tare_is_not_moved_by_calls_that_were_interrupted() -> None:
    assert tare_of([10_000, 10_050, 9_990, 10_020, 40_000]) == Tare(10_020, 90)
    assert tare_of([]) == Tare(0, 0)


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
    calls = pair(moments)
    for tare in (Tare(), Tare(7, 2), Tare(1_000)):
        for call, (start, end) in zip(calls, weighed(calls, {A: tare}, alike), strict=True):
            assert call.start_ns <= start <= call.end_ns
            if end is not None:
                assert start < end <= call.end_ns
                taken = tare.median_ns if call.function == A else 0
                assert end - start == call.end_ns - call.start_ns - taken
