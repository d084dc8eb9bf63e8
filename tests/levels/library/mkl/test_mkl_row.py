from __future__ import annotations

from xsp.provider.row import concat_rows
from xsp_levels.library.mkl.line import lines
from xsp_levels.library.mkl.row import call_rows, crowd, with_lines
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
    assert crowd([Hit(50_000, 11), Hit(149_000, 12)]) == [1]
    assert not crowd([Hit(50_000, 11), Hit(150_000, 12)])
    assert not crowd([Hit(50_000, 11), Hit(51_000, 11)])
    assert not crowd([])


def test_lines_that_others_were_written_over_are_missing_among_those_that_came_at_once() -> None:
    alone = [Hit(0, 11), Hit(10_000_000, 11)]
    at_once = [Hit(1_000_000 + 5_000 * n, 11 + n % 2) for n in range(41)]
    hits = [alone[0], *at_once, alone[1]]
    for lost in range(5):
        kept = with_lines(hits, len(hits) - lost)
        assert kept is not None
        assert len(kept) == len(hits) - lost
        assert (kept[0], kept[1], kept[-1]) == (alone[0], at_once[0], alone[1])
        assert set(kept) <= set(hits)
    assert with_lines(hits, len(hits) - 5) is None  # more than a tenth
    assert with_lines(hits, len(hits) + 1) is None  # threads that the kernel does not watch


def test_without_moments_only_order_and_duration_are_known() -> None:
    rows = call_rows(CALLS, None, {}, None)
    assert rows["start_ns"].null_count() == 2
    assert rows["duration_ns"].to_list() == [10_000, 20_000]
    assert rows["attr.placement"].to_list() == ["order", "order"]


def test_calls_of_which_nothing_tells_the_moments_are_left_out() -> None:
    whole = [Hit(50_000, 11), Hit(90_000, 11)]
    for hits in (whole[:1], [*whole, Hit(99_000, 12)]):
        assert call_rows(CALLS, hits, {}, None).height == 0


def test_no_calls_make_no_rows() -> None:
    assert concat_rows([call_rows((), None, {}, None)]).height == 0
