from __future__ import annotations

import polars as pl
import pytest

from xsp.provider.row import concat_rows
from xsp_levels.library.mkl.line import lines
from xsp_levels.library.mkl.row import call_rows, crowd, explained
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


def rounds(number: int) -> tuple[list[Hit], list[str]]:
    """Return hits and lines of so many long calls, each with forty quick ones of two threads after.

    The lines say how long the calls took.
    """
    hits, texts = list[Hit](), list[str]()
    for begin in range(0, number * 1_000_000, 1_000_000):
        hits += [Hit(begin + 300_000, 11)]
        hits += [Hit(begin + 310_000 + 5_000 * n, 11 + n % 2) for n in range(40)]
        texts += ["MKL_VERBOSE SGEMM(N,N,90,90,90) 290us"] + [
            "MKL_VERBOSE SGEMM(N,N,2,3,4) 8us"
        ] * 40
    return hits, texts


@pytest.mark.parametrize("gone", [[], [2], [40], [5, 50, 51], [1, 2, 3, 90, 160]])
def test_long_calls_keep_their_moments_whichever_lines_others_were_written_over(
    gone: list[int],
) -> None:
    hits, texts = rounds(4)
    said = [text for at, text in enumerate(texts) if at not in gone]
    rows = call_rows(lines("\n".join(said)), hits, {}, None)
    assert rows.height == len(hits) - len(gone)
    long = rows.filter(pl.col("attr.problem") == "NN m90 n90 k90")
    assert long["end_ns"].to_list() == [300_000 + 1_000_000 * n for n in range(4)]


def test_what_threads_that_write_at_once_do_not_explain_is_not_explained() -> None:
    hits, texts = rounds(1)
    assert explained(hits, len(texts) - 3)
    assert not explained(hits, len(texts) - 4)  # more than a tenth
    assert not explained(hits, len(texts) + 1)
    assert not explained([Hit(0, 11), Hit(5_000, 11)], 1)  # nobody wrote at once


def test_without_moments_only_order_and_duration_are_known() -> None:
    rows = call_rows(CALLS, None, {}, None)
    assert rows["start_ns"].null_count() == 2
    assert rows["duration_ns"].to_list() == [10_000, 20_000]
    assert rows["attr.placement"].to_list() == ["order", "order"]


def test_no_calls_make_no_rows() -> None:
    assert concat_rows([call_rows((), None, {}, None)]).height == 0
