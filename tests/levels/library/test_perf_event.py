from __future__ import annotations

import ctypes
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.library import perf_event
from xsp_levels.library.perf_event import Hit, native_threads, read_hits
from xsp_levels.library.symbol import Place


def sample(thread: int, time_ns: int, arguments: bytes = b"") -> bytes:
    body = struct.pack("=IIQ", 1, thread, time_ns) + arguments
    return struct.pack("=IHH", 9, 0, 8 + len(body)) + body


def here() -> Place:
    function = ctypes.CDLL(None).getpid
    return Place(ctypes.cast(function, ctypes.c_void_p).value or 0, "", 0)


@pytest.fixture
def allowed() -> None:
    reason = perf_event.refusal()
    if reason is not None:
        pytest.skip(f"breakpoints: {reason}")


def test_records_are_read_and_others_passed_over() -> None:
    lost = struct.pack("=IHHQQ", 2, 0, 24, 1, 5)
    assert read_hits(sample(7, 100) + lost + sample(8, 200)) == [Hit(100, 7), Hit(200, 8)]


def test_arguments_are_in_the_order_of_the_call() -> None:
    # The kernel writes registers by their numbers: cx, dx, si, di, r8, r9.
    registers = struct.pack("=Q6q", 2, 4, 3, 2, 1, 5, 6)
    (hit,) = read_hits(sample(7, 100, registers), arguments=True)
    assert hit.arguments == (1, 2, 3, 4, 5, 6)


def test_ring_that_was_cut_ends_there() -> None:
    whole = sample(7, 100) + sample(7, 200)
    assert read_hits(whole[:-1]) == [Hit(100, 7)]


@given(data=st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    read_hits(data)


@pytest.mark.usefixtures("allowed")
def test_breakpoint_tells_when_and_on_which_thread() -> None:
    events = perf_event.watch(here(), 8)
    for event in events:
        event.enable()
    getpid = ctypes.CDLL(None).getpid
    before = time.monotonic_ns()
    for _ in range(5):
        getpid()
    after = time.monotonic_ns()
    results = [event.close() for event in events]
    hits = [hit for found, _ in results for hit in found if hit.thread == threading.get_native_id()]
    assert len(hits) == 5
    assert before <= hits[0].time_ns < hits[-1].time_ns <= after
    assert sum(lost for _, lost in results) == 0


@pytest.mark.usefixtures("allowed")
def test_hits_that_find_no_room_are_counted() -> None:
    (event,) = perf_event.open_all(perf_event.breakpoint_at(here()), native_threads()[:1], 1)
    event.enable()
    getpid = ctypes.CDLL(None).getpid
    for _ in range(1_000):
        getpid()
    hits, lost = event.close()
    assert len(hits) < 1_000
    assert len(hits) + lost == 1_000


def test_refusal_says_what_would_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(perf_event, "_perf_event_open", refuse)
    assert "CAP_PERFMON" in str(perf_event.refusal())
