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
from xsp_levels.library.openblas import OpenBlas, OpenBlasRecords, work_of
from xsp_levels.native.uprobe import Seen


def test_is_off_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XSP_OPENBLAS", raising=False)
    assert "XSP_OPENBLAS=1" in str(OpenBlas().unavailable())


def test_spans_have_sizes_and_lose_what_the_probes_take() -> None:
    call = Seen("sgemm", 1_000, 2_000, 11, (101, 111, 112, 8, 4, 2))
    unknown = Seen("strsm", 3_000, 3_050, 12, (101, 141, 121, 111, 131, 4))
    provider = OpenBlas()
    rows = provider.spans(Records(OpenBlasRecords((call, unknown), 100, {11: 7})))
    assert rows.select("name", "start_ns", "end_ns", "thread").rows() == [
        ("SGEMM", 1_050, 1_950, 7),
        ("STRSM", 3_025, 3_025, None),
    ]
    assert rows["attr.problem"].to_list() == ["NT m8 n4 k2", None]
    assert rows["attr.flops"].to_list() == [128, None]


def test_side_is_understood_and_sizes_beyond_32_bits_as_well() -> None:
    found = work_of("ssymm", (102, 142, 121, 2**33, 3))
    assert found is not None
    assert found.problem == f"RU m{2**33} n3"
    assert work_of("sgemm", ()) is None


def test_numpys_calls_are_seen_with_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XSP_OPENBLAS", "1")
    provider = OpenBlas()
    if reason := provider.unavailable():
        pytest.skip(reason)
    left, right = np.ones((64, 32), np.float32), np.ones((32, 16), np.float32)
    provider.start(SystemClock(), Request(frozenset({Kind.CALL})))
    before = time.monotonic_ns()
    _ = left @ right
    after = time.monotonic_ns()
    rows = provider.spans(provider.stop())
    (row,) = rows.filter(rows["name"] == "SGEMM").to_dicts()
    assert before < row["start_ns"] < row["end_ns"] < after
    assert row["attr.flops"] == 2 * 64 * 32 * 16


def test_records_are_kept_as_bytes_and_make_the_same_rows() -> None:
    call = Seen("sgemm", 1_000, 2_000, 11, (101, 111, 112, 8, 4, 2))
    provider, kept = OpenBlas(), Records(OpenBlasRecords((call,), 100, {11: 7}), dropped=2)
    unpacked = provider.unpack(provider.pack(kept))
    assert unpacked == kept
    assert provider.spans(unpacked).equals(provider.spans(kept))


def test_registers_that_hold_no_sizes_make_no_operations() -> None:
    call = Seen("sgemm", 1_000, 2_000, 11, (101, 111, 112, 2**40, 2**40, 2**40))
    provider = OpenBlas()
    rows = provider.spans(Records(OpenBlasRecords((call,), 0, {})))
    assert rows["attr.flops"].to_list() == [None]


SCRIPT = """
import os, resource, threading
import numpy as np
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Request
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
        pytest.skip(finished.stdout)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_forked_child_can_measure_and_its_parent_goes_on() -> None:
    code = """
        provider.start(SystemClock(), CALLS)
        child = os.fork()
        if child == 0:
            provider.start(SystemClock(), CALLS)
            square @ square
            os._exit(len(provider.stop().data.calls))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        square @ square
        print(len(provider.stop().data.calls))
        """
    assert run(code) == "1\n1\n"


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
