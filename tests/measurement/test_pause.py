from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp.evaluation import Rung
from xsp.level import Kind
from xsp.measurement.pause import rows_without_pauses, without_pauses
from xsp.provider import span_rows
from xsp.session import PlannedVisit, Visit

OPS = Rung(frozenset({Kind.OP}))
NOW = 10**16 + 1  # beyond what floating point holds exactly


def visit(windows: list[tuple[int, int]], *pauses: tuple[int, int]) -> Visit:
    return Visit(
        PlannedVisit(OPS, len(windows)),
        "step",
        7,
        tuple((NOW + begin, NOW + end) for begin, end in windows),
        pauses=tuple((NOW + begin, NOW + end) for begin, end in pauses),
    )


def times(found: Visit) -> list[tuple[int, int]]:
    return [(begin - NOW, end - NOW) for begin, end in found.windows]


def test_evaluations_are_shorter_by_the_pauses_in_them() -> None:
    made = visit([(0, 100), (200, 300), (400, 500)], (10, 15), (50, 60), (450, 470))
    assert times(without_pauses(made)) == [(0, 85), (185, 285), (385, 465)]


def test_without_pauses_nothing_changes() -> None:
    made = visit([(0, 100)])
    rows = span_rows({"kind": ["op"], "name": ["add"], "start_ns": [NOW], "end_ns": [NOW + 9]})
    assert without_pauses(made) is made
    assert rows_without_pauses(rows, made) is rows


def test_rows_of_the_host_lose_the_pauses_and_those_of_devices_keep_their_lengths() -> None:
    made = visit([(0, 100)], (10, 15), (50, 60))
    rows = span_rows(
        {
            "kind": ["op", "op", "op", "kernel"],
            "name": ["before", "around", "after", "gemm"],
            "start_ns": [NOW + 1, NOW + 5, NOW + 60, NOW + 20],
            "end_ns": [NOW + 9, NOW + 55, NOW + 80, NOW + 70],
            "thread": [7, 7, 7, None],
            "device": [None, None, None, 0],
        }
    )
    found = rows_without_pauses(rows, made).select("start_ns", "end_ns").rows()
    assert [(start - NOW, end - NOW) for start, end in found] == [
        (1, 9),
        (5, 45),  # in the middle of a pause: the moment when the clock stopped
        (45, 65),
        (15, 65),
    ]


def test_rows_that_are_placed_by_order_stay_without_times() -> None:
    made = visit([(0, 100)], (10, 15))
    rows = span_rows(
        {
            "kind": ["call"],
            "name": ["sgemm"],
            "start_ns": [None],
            "end_ns": [None],
            "duration_ns": [5],
            "inside": ["mm"],
        }
    )
    assert rows_without_pauses(rows, made)["start_ns"].to_list() == [None]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=20), st.data())
def test_order_is_kept_and_time_outside_of_pauses_too(
    lengths: list[int], data: st.DataObject
) -> None:
    edges = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    pauses = list(zip(edges[1::2], edges[2::2], strict=False))
    moments = sorted(data.draw(st.lists(st.integers(0, edges[-1]), min_size=2, max_size=9)))
    made = visit([(moments[0], moments[-1])], *pauses)
    rows = span_rows(
        {
            "kind": "op",
            "name": "x",
            "start_ns": [NOW + m for m in moments],
            "end_ns": [NOW + m for m in moments],
        }
    )
    shown = [start - NOW for start in rows_without_pauses(rows, made)["start_ns"]]
    running = [moment for moment in range(edges[-1]) if not any(b <= moment < e for b, e in pauses)]
    assert shown == [sum(each < moment for each in running) for moment in moments]
