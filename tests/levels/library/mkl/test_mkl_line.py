from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.library.mkl.provider import MARK, MklCall, count, lines, unread, version

DATA = Path(__file__).parents[3] / "data" / "mkl"
RECORDED = (DATA / "oneMKL-2024.2-torch-2.15.txt").read_text()
OLDER = (DATA / "older.txt").read_text()
LINE = (
    "MKL_VERBOSE SGEMM(T,N,10,4,65536,0x7ffc01,0x5581,65536,0x5582,65536,0x7ffc02,0x5583,10) "
    "307.66us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2"
)


def calls_in(text: str) -> list[MklCall]:
    return [call for call in lines(text) if call is not None]


def test_every_recorded_line_is_read() -> None:
    calls = calls_in(RECORDED)
    assert len(calls) == RECORDED.count("\n") - 1  # the first one names the build
    assert unread(RECORDED) == 0
    assert count(RECORDED) == len(lines(RECORDED)) > 0
    assert version(RECORDED) == "2024.0 Update 2"
    unknown = {call.routine for call in calls if call.work is None}
    assert unknown == {"SGEMM_BATCH"}  # its sizes lie in memory


def test_lines_of_older_builds_are_read() -> None:
    calls = calls_in(OLDER)
    assert [call.routine for call in calls] == ["FFT", "SGEMM", "DGEMM"]
    assert [call.duration_ns for call in calls] == [452_820, 969_470, 1_660_000]
    assert [call.threads for call in calls] == [4, 1, 16]
    assert version(OLDER) == "2019.0 Update 2"
    transform = calls[0].work
    assert transform is not None
    assert transform.problem == "dcfi30x30x30"


@pytest.mark.parametrize("length", range(len("MKL_VERBOSE"), len(LINE), 7))
def test_line_that_was_cut_is_counted_or_read_never_misread(length: int) -> None:
    whole = calls_in(LINE)[0]
    calls = calls_in(LINE[:length])
    assert len(calls) + unread(LINE[:length]) == 1
    for call in calls:
        assert (call.routine, call.duration_ns, call.work) == (
            whole.routine,
            whole.duration_ns,
            whole.work,
        )


@given(noise=st.lists(st.text(st.characters(blacklist_characters="\r"), max_size=60), max_size=6))
def test_lines_among_any_other_output_are_found(noise: list[str]) -> None:
    text = "".join(f"{other}\n{LINE}\n" for other in noise)
    assert [call.routine for call in calls_in(text)] == ["SGEMM"] * len(noise)


@given(text=st.text(alphabet="MKL_VERBOSE SGEM(),.0123456789xusmn:\n", max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    calls = calls_in(text)
    assert all(call.duration_ns >= 0 for call in calls)
    assert unread(text) <= text.count(MARK)


@pytest.mark.timing
def test_hundred_thousand_lines_take_about_a_second() -> None:
    text = "".join(
        f"{MARK} SGEMM(T,N,{n % 50},4,6,0x{n:x},0x{n:x},6,0x{n:x},6,0x{n:x},0x{n:x},10) "
        "307.66us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2\n"
        for n in range(100_000)
    )
    begin = perf_counter()
    assert len(calls_in(text)) == 100_000
    assert perf_counter() - begin < 10  # a second on a machine that has nothing else to do
