from __future__ import annotations

from xsp.provider.row import concat_rows
from xsp_levels.library.mkl.line import lines
from xsp_levels.library.mkl.row import call_rows, crowded
from xsp_levels.native.perf_event import Hit

CALLS = lines(
    "MKL_VERBOSE SGEMM(N,N,2,3,4) 10us NThr:2\nMKL_VERBOSE SGEMM_BATCH(N,N,0x1) 20us NThr:2\n"
)


def test_calls_end_at_their_moments() -> None:
    hits = [Hit(50_000, 11), Hit(90_000, 12)]
    rows = call_rows(CALLS, hits, {11: 7_000}, "2024.2")
    assert rows.select("kind", "name", "start_ns", "end_ns", "thread").rows() == [
        ("call", "SGEMM", 40_000, 50_000, 7_000),
        ("call", "SGEMM_BATCH", 70_000, 90_000, None),  # a worker: whose, time will tell
    ]
    assert rows["attr.library"].to_list() == ["MKL 2024.2"] * 2
    assert rows["attr.flops"].to_list() == [48, None]
    assert rows["attr.placement"].to_list() == ["end", "end"]


def test_line_that_cannot_be_read_keeps_its_moment() -> None:
    said = lines(
        "MKL_VERBOSE SGEMM(N,N,2,3,4) 10us NThr:2\nMKL_VERBOSE ODD(a(b)) 10us NThr:2\n"
        "MKL_VERBOSE SGEMM(N,N,4,3,2) 10us NThr:2\n"
    )
    rows = call_rows(said, [Hit(50_000, 11), Hit(90_000, 11), Hit(99_000, 11)], {}, None)
    assert rows.select("attr.problem", "end_ns").rows() == [
        ("NN m2 n3 k4", 50_000),
        ("NN m4 n3 k2", 99_000),
    ]


def test_lines_of_threads_that_came_at_once_may_be_exchanged() -> None:
    assert crowded([Hit(50_000, 11), Hit(149_000, 12)])
    assert not crowded([Hit(50_000, 11), Hit(150_000, 12)])
    assert not crowded([Hit(50_000, 11), Hit(51_000, 11)])
    assert not crowded([])


def test_without_a_moment_for_each_only_order_and_duration_are_known() -> None:
    whole = [Hit(50_000, 11), Hit(90_000, 11)]
    for hits in (None, whole[:1], [*whole, Hit(99_000, 12)]):
        rows = call_rows(CALLS, hits, {}, None)
        assert rows["start_ns"].null_count() == 2
        assert rows["duration_ns"].to_list() == [10_000, 20_000]
        assert rows["attr.placement"].to_list() == ["order", "order"]


def test_no_calls_make_no_rows() -> None:
    assert concat_rows([call_rows((), None, {}, None)]).height == 0
