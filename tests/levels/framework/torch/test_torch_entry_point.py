from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
from torch import nn

from xsp.clock import SystemClock
from xsp_levels.framework.torch.module.entry_point import CallEntryPoint, call_entry_point
from xsp_levels.framework.torch.module.layer import LayerRecorder


def one() -> int:
    return 1


def two() -> int:
    return 2


def three() -> int:
    return 3


ONE, TWO, THREE = one.__code__, two.__code__, three.__code__


class Function:
    """Something with code, which does something else before it changes."""

    __globals__: dict[str, Any] = {}  # noqa: RUF012  as functions have them
    __name__ = "function"

    def __init__(self) -> None:
        self.code = ONE
        self.before: Callable[[], None] | None = None

    @property
    def __code__(self) -> CodeType:
        return self.code

    @__code__.setter
    def __code__(self, code: CodeType) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        self.code = code


def entry_point_of(function: Any) -> CallEntryPoint:
    return CallEntryPoint(function)


def test_a_recorder_that_was_taken_out_is_not_put_back() -> None:
    function = Function()
    entry = entry_point_of(function)
    entry.record(TWO)
    entry.pause(TWO, True)
    assert function.code is ONE
    entry.pause(TWO, False)
    assert function.code is TWO
    entry.pause(TWO, True)
    entry.record(None)
    entry.pause(TWO, False)
    assert function.code is ONE


def test_a_recorder_stopped_by_another_thread_while_a_call_returns_stays_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = nn.Module.__call__.__code__
    entry, recorder = call_entry_point(), LayerRecorder()
    pause = entry.pause

    def stop_first(code: CodeType, paused: bool) -> None:
        if not paused:
            other = threading.Thread(target=recorder.disarm)
            other.start()
            other.join()
        pause(code, paused)

    monkeypatch.setattr(entry, "pause", stop_first)
    recorder.start(SystemClock(), outermost=True)
    nn.Sequential(nn.Identity())(1)
    assert nn.Module.__call__.__code__ is original
    assert len(recorder.stop().threads[0].module) == 1


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this test is about forking so
def test_a_child_forked_while_another_thread_changes_the_code_is_free() -> None:
    original, entry, recorder = nn.Module.__call__.__code__, call_entry_point(), LayerRecorder()
    held, proceed = threading.Event(), threading.Event()

    def hold() -> None:
        with entry._lock:
            held.set()
            proceed.wait(30)

    recorder.start(SystemClock())
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if nn.Module.__call__.__code__ is original else 1)
    status = ended(child)
    proceed.set()
    thread.join()
    recorder.stop()
    assert status == 0


def ended(child: int) -> int | None:
    """Return the status of a child, None if it had to be killed."""
    for _ in range(500):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
