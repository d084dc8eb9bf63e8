from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.native import event_ring, perf_event
from xsp_levels.native.perf_event import Hit, native_threads, read_hits
from xsp_levels.native.symbol import Place


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


@pytest.mark.parametrize(
    ("machine", "mask", "registers"),
    [
        ("x86_64", 0x3003C, (4, 3, 2, 1, 5, 6)),  # by their numbers: cx, dx, si, di, r8, r9
        ("aarch64", 0x3F, (1, 2, 3, 4, 5, 6)),  # x0 to x5
    ],
)
def test_arguments_are_in_the_order_of_the_call(
    machine: str, mask: int, registers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (hit,) = read_hits(sample(7, 100, struct.pack("=Q6q", 2, *registers)), arguments=True)
    assert hit.arguments == (1, 2, 3, 4, 5, 6)
    asked = perf_event._attributes(7, arguments=True)
    assert struct.unpack_from("=Q", asked, 80) == (mask,)


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


def test_refusal_says_what_would_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(event_ring, "open_event", refuse)
    assert "CAP_PERFMON" in str(perf_event.refusal())


@pytest.mark.forks
@pytest.mark.usefixtures("allowed")
def test_event_is_let_go_of_in_a_forked_process_and_goes_on_in_its_own() -> None:
    (event,) = perf_event.open_all(perf_event.breakpoint_at(here()), native_threads()[:1], 8)
    event.enable()
    child = os.fork()
    if child == 0:
        os._exit(0 if event.close() == ([], 0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(50):
        ctypes.CDLL(None).getpid()
    hits, lost = event.close()
    assert len(hits) >= 50  # whoever forks may have called it as well
    assert lost == 0


def test_remark_tries_what_recording_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_register_left(attributes: object, *others: object) -> list[object]:
        if attributes == "breakpoint":
            raise OSError(28, "No space left on device")
        return []

    monkeypatch.setattr(perf_event, "breakpoint_at", lambda place: "breakpoint")
    monkeypatch.setattr(perf_event, "uprobe_at", lambda place, path: "uprobe")
    monkeypatch.setattr(perf_event, "open_all", no_register_left)
    assert perf_event.refusal() is None


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOMEM, "ulimit -l"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENODEV, os.strerror(errno.ENODEV)),
    ],
)
def test_each_limit_is_told_by_its_name(code: int, remedy: str) -> None:
    assert remedy in perf_event.explain(OSError(code, os.strerror(code)))
