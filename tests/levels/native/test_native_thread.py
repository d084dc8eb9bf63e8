from __future__ import annotations

import _thread
import threading

import numpy as np
import pytest

from xsp.clock import SystemClock
from xsp_levels.native import thread

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from xsp_levels.framework.torch.profiler.operator import (  # noqa: E402
    OperatorRecorder,
    operator_rows,
)


def test_pythons_threads_are_known_by_the_kernels_numbers() -> None:
    assert thread.names()[threading.get_native_id()] == threading.get_ident()


def test_a_thread_that_was_met_is_known_after_its_end_and_another_is_not() -> None:
    met: list[tuple[int, int]] = []
    ended = threading.Barrier(3)

    def work(known: bool) -> None:
        if known:
            thread.meet()
            met.append((threading.get_native_id(), threading.get_ident()))
        else:
            other.append(threading.get_native_id())
        ended.wait()

    other: list[int] = []
    for known in (True, False):
        _thread.start_new_thread(work, (known,))
    ended.wait()
    assert met[0] in thread.names().items()
    assert other[0] not in thread.names()


def test_no_threads_have_no_names() -> None:
    assert thread.named(np.empty(0, np.int64), {}).tolist() == []


def test_a_thread_of_pythons_that_ran_no_module_bears_its_name() -> None:
    ran, done = threading.Event(), threading.Event()

    def work() -> None:
        torch.ones(3)
        ran.set()
        done.wait()

    working = threading.Thread(target=work)
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), False)
    working.start()
    ran.wait()
    records = recorder.stop()
    done.set()
    working.join()
    rows = operator_rows(records)
    assert rows["thread"].unique().to_list() == [working.ident]
