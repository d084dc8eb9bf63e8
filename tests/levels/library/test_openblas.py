from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp.provider.packing import pack, unpack
from xsp_levels.library.openblas import LibraryRecords, OpenBlas, OpenBlasRecords
from xsp_levels.native.uprobe import TimedCall


def test_is_off_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XSP_OPENBLAS", raising=False)
    assert "XSP_OPENBLAS=1" in str(OpenBlas().unavailable())


def kept(*calls: TimedCall, traps_ns: int, threads: dict[int, int], dropped: int = 0) -> Records:
    library = LibraryRecords(calls, dict.fromkeys((call.function for call in calls), traps_ns))
    return Records(OpenBlasRecords((library,), threads), dropped=dropped)


def test_spans_have_sizes_and_lose_what_the_probes_take() -> None:
    call = TimedCall("sgemm", 1_000, 2_000, 11, (101, 111, 112, 8, 4, 2))
    unknown = TimedCall("strsm", 3_000, 3_400, 12, (101, 141, 121, 111, 131, 4))
    rows = OpenBlas().spans(kept(call, unknown, traps_ns=100, threads={11: 7}))
    assert rows.select("name", "start_ns", "end_ns", "thread").rows() == [
        ("SGEMM", 1_050, 1_950, 7),
        ("STRSM", 3_050, 3_350, None),
    ]
    assert rows["attr.problem"].to_list() == ["NT m8 n4 k2", None]
    assert rows["attr.flops"].to_list() == [128, None]
    assert rows["attr.placement"].to_list() == ["ends", "ends"]


def test_call_whose_ends_cannot_be_told_apart_has_no_end_rather_than_no_length() -> None:
    same = TimedCall("ddot", 1_000, 1_000, 11, (8,))
    short = TimedCall("sdot", 3_000, 3_100, 11, (8,))
    long = TimedCall("sgemm", 4_000, 9_000, 11, (101, 111, 112, 8, 4, 2))
    rows = OpenBlas().spans(kept(same, short, long, traps_ns=100, threads={11: 7}))
    assert rows["end_ns"].to_list() == [None, None, 8_950]
    assert rows["attr.placement"].to_list() == ["start", "start", "ends"]


class Ended:
    """Probes that have seen calls already."""

    def __init__(self, *calls: TimedCall) -> None:
        self.calls = list(calls)

    def close(self) -> tuple[list[TimedCall], int]:
        return self.calls, 0


def test_calls_whose_ends_cannot_be_told_apart_are_counted_in_words() -> None:
    provider = OpenBlas()
    calls = (TimedCall("ddot", 1_000, 1_090, 11, (8,)), TimedCall("ddot", 2_000, 2_100, 11, (8,)))
    provider._traps_ns["blas.so"] = {"ddot": 100}
    provider._probes = [("blas.so", Ended(*calls))]  # type: ignore[list-item]
    (warning,) = provider.stop().warnings
    assert "2 of OpenBLAS's calls were too short" in warning
    assert "100 ns" in warning


def test_numpys_calls_are_seen_with_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XSP_OPENBLAS", "1")
    provider = OpenBlas()
    if reason := provider.unavailable():
        pytest.skip(f"{reason}; as root, with: pip install numpy")
    left, right = np.ones((64, 32), np.float32), np.ones((32, 16), np.float32)
    provider.start(SystemClock(), Request(frozenset({Kind.CALL})))
    before = time.monotonic_ns()
    _ = left @ right
    after = time.monotonic_ns()
    records = provider.stop()
    rows = provider.spans(records)
    (row,) = rows.filter(rows["name"] == "SGEMM").to_dicts()
    assert row["attr.flops"] == 2 * 64 * 32 * 16
    assert before < row["start_ns"] < after
    if row["end_ns"] is None:  # the machine's traps took too long to tell, and it says so
        assert records.warnings
    else:
        assert row["start_ns"] < row["end_ns"] < after


def test_what_takes_longer_than_the_traps_has_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XSP_OPENBLAS", "1")
    provider = OpenBlas()
    if reason := provider.unavailable():
        pytest.skip(reason)
    square = np.ones((512, 512), np.float32)  # a tenth of a second on no machine, nor a µs
    provider.start(SystemClock(), Request(frozenset({Kind.CALL})))
    for _ in range(3):
        _ = square @ square
    rows = provider.spans(provider.stop())
    # NumPy computes a matrix times itself by SSYRK or SGEMM; either is work of many traps.
    assert (rows["end_ns"] > rows["start_ns"]).to_list() == [True] * 3


def test_records_are_kept_as_bytes_and_make_the_same_rows() -> None:
    call = TimedCall("sgemm", 1_000, 2_000, 11, (101, 111, 112, 8, 4, 2))
    provider, records = OpenBlas(), kept(call, traps_ns=100, threads={11: 7}, dropped=2)
    unpacked = unpack(provider, pack(provider, records))
    assert unpacked == records
    assert provider.spans(unpacked).equals(provider.spans(records))


SCRIPT = """
import os, resource, threading
import numpy as np
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Request
from xsp_levels.library import openblas
from xsp_levels.library.openblas import OpenBlas
CALLS = Request(frozenset({Kind.CALL}))
provider = OpenBlas()
if reason := provider.unavailable():
    print(reason)
    raise SystemExit(77)
square = np.ones((8, 8), np.float32)
def more_threads(count):
    for _ in range(count):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def run(code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "XSP_OPENBLAS": "1"},
    )
    if finished.returncode == 77:
        pytest.skip(f"{finished.stdout}; as root, with: pip install numpy")
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.forks
def test_forked_child_can_measure_and_its_parent_goes_on() -> None:
    code = """
        provider.start(SystemClock(), CALLS)
        child = os.fork()
        if child == 0:
            provider.start(SystemClock(), CALLS)
            square @ square
            os._exit(len(provider.stop().data.libraries[0].calls))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        square @ square
        print(len(provider.stop().data.libraries[0].calls))
        """
    assert run(code) == "1\n1\n"


@pytest.mark.slow
def test_thread_that_measures_has_most_room_whichever_it_is() -> None:
    code = """
        def measure():
            provider.start(SystemClock(), CALLS)
            for _ in range(300): square @ square
            print(provider.stop().dropped)
        thread = threading.Thread(target=measure)
        thread.start()
        thread.join()
        """
    assert run(code) == "0\n"


@pytest.mark.slow
def test_too_many_threads_for_the_files_that_may_be_open_are_told_in_words() -> None:
    code = """
        more_threads(20)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        try:
            provider.start(SystemClock(), CALLS)
        except OSError as error:
            print(error, flush=True)
        os._exit(0)
        """
    assert "raise the limit (ulimit -n)" in run(code)
