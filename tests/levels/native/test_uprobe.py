from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.native.perf_event import Hit
from xsp_levels.native.uprobe import TimedCall, pair

A, B = "sgemm", "ssyrk"


def test_nested_calls_are_paired_from_within() -> None:
    moments = [
        (Hit(10, 1, (5,)), A, False),
        (Hit(20, 1), B, False),
        (Hit(30, 1), B, True),
        (Hit(40, 1), A, True),
    ]
    assert pair(moments) == [TimedCall(B, 20, 30, 1), TimedCall(A, 10, 40, 1, (5,))]


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
    assert all(call.start_ns <= call.end_ns for call in pair(moments))
