from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.native.perf_event import Hit
from xsp_levels.native.uprobe import Tare, TimedCall, pair, weighed

A, B = "sgemm", "ssyrk"


def test_nested_calls_are_paired_from_within() -> None:
    moments = [
        (Hit(10, 1, (5,)), A, False),
        (Hit(20, 1), B, False),
        (Hit(30, 1), B, True),
        (Hit(40, 1), A, True),
    ]
    assert pair(moments) == [TimedCall(B, 20, 30, 1), TimedCall(A, 10, 40, 1, (5,))]


def alike(call: TimedCall) -> tuple[str, tuple[int, ...]]:
    return call.function, call.arguments


def test_calls_that_take_longer_keep_what_is_left() -> None:
    calls = [
        TimedCall(A, 0, 140, 1, (9,)),
        TimedCall(A, 200, 345, 1, (9,)),
        TimedCall(A, 400, 480, 1, (9,)),
    ]
    found = weighed(calls, {A: Tare(100, 10)}, alike)
    assert found == [(50, 90), (250, 295), (440, None)]


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
