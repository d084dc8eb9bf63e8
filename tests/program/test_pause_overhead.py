from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp.program import pause_overhead
from xsp.program.dispatcher import Dispatcher
from xsp.testing import FakeClock


def test_a_pause_costs_some_microseconds_that_are_not_noted() -> None:
    found = [pause_overhead.measured(SystemClock()) for _ in range(3)]
    assert 300 < np.median(found) < 30_000


def test_a_longer_pause_that_is_not_noted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, evaluate = pause_overhead.measured(SystemClock()), pause_overhead._evaluate

    def slower(dispatcher: Dispatcher, work: Callable[[], object], now: Callable[[], int]) -> None:
        evaluate(dispatcher, work, now)
        until = time.perf_counter_ns() + 60_000
        while time.perf_counter_ns() < until:
            pass

    monkeypatch.setattr(pause_overhead, "_evaluate", slower)
    # Shared out among the pauses before and after an evaluation.
    assert pause_overhead.measured(SystemClock()) - usual == pytest.approx(30_000, abs=6_000)


def test_nothing_of_the_programs_is_changed() -> None:
    torch.manual_seed(0)
    threads, callbacks, random = threading.active_count(), list(gc.callbacks), torch.get_rng_state()
    numbers = np.random.get_state(legacy=False)["state"]["key"]  # the state that programs have
    pause_overhead.measured(SystemClock())
    assert threading.active_count() == threads
    assert gc.callbacks == callbacks
    assert torch.equal(torch.get_rng_state(), random)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], numbers)


@pytest.mark.parametrize(("width", "asked"), [(8, True), (1500, False)])
def test_only_programs_of_quick_evaluations_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, width: int, *, asked: bool
) -> None:
    calls = []
    monkeypatch.setattr(
        "xsp.program.block.pause_overhead_ns", lambda clock: calls.append(clock) or 0.0
    )
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(6)]).eval()
    x = torch.ones(width, width)
    with torch.inference_mode(), xsp.profile(levels=1, replay=False, progress=False) as prof:
        for _ in range(30 if asked else 6):
            model(x)
    assert prof.trace.root.latency_ns
    assert bool(calls) == asked


def test_a_clock_that_stands_still_has_none() -> None:
    assert pause_overhead.measured(FakeClock()) == 0.0


def test_the_trace_says_how_much_it_was() -> None:
    model = nn.Linear(8, 8).eval()
    with torch.inference_mode(), xsp.profile(levels=1, replay=False, progress=False) as prof:
        for _ in range(30):
            model(torch.ones(1, 8))
    assert prof.trace.metadata["pause_overhead_ns"] == pause_overhead.pause_overhead_ns(
        SystemClock()
    )
