from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import polars as pl
import pytest
import torch

from xsp.provider import span_rows
from xsp.testing import FakeClock
from xsp_levels.framework.torch.profiler.operator import ENGINE
from xsp_levels.framework.torch.program.step import (
    BACKWARD,
    OPTIMIZER_STEP,
    Interval,
    StepRecorder,
    in_backward,
    step_rows,
)


class Inner(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer whose step takes 10 ns and may fail."""

    clock: FakeClock
    fails = False

    def step(self, closure: Any = None) -> None:
        self.clock.advance(10)
        if self.fails:
            raise ZeroDivisionError


class Outer(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer that makes another's step, as those that average or look ahead do."""

    clock: FakeClock
    inner: Inner

    def step(self, closure: Any = None) -> None:
        self.clock.advance(100)
        with suppress(ZeroDivisionError):
            self.inner.step()
        self.clock.advance(1000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def outer(clock: FakeClock) -> Outer:
    weights = [torch.nn.Parameter(torch.ones(1))]
    made = Outer(weights, lr=0.1)
    made.inner = Inner(weights, lr=0.1)
    made.clock = made.inner.clock = clock
    return made


@contextmanager
def recording(clock: FakeClock) -> Iterator[list[Interval]]:
    recorder, found = StepRecorder(), list[Interval]()
    recorder.start(clock)
    try:
        yield found
    finally:
        found += recorder.stop()


def durations(found: list[Interval]) -> list[int]:
    assert {interval.name for interval in found} <= {OPTIMIZER_STEP}
    return [interval.end_ns - interval.start_ns for interval in found]


def test_a_step_that_makes_another_optimizers_step_is_recorded_around_it(
    outer: Outer, clock: FakeClock
) -> None:
    with recording(clock) as found:
        outer.step()
        outer.step()
    assert durations(found) == [10, 1110] * 2


def test_what_autograds_threads_run_is_in_the_backward_pass_that_waits_for_it() -> None:
    """As on a GPU, where each device has a thread for its backward operators."""
    steps = (
        Interval(BACKWARD, 10, 50, thread=1),
        Interval("optimizer step", 60, 70, thread=1),
        Interval(BACKWARD, 30, 90, thread=2),
    )
    engine = ENGINE + "evaluate_function: MmBackward0"
    #  name, start, end, thread, thread of the forward operator, number of the pass around
    known = [
        (engine, 20, 25, -7, 1, 1),
        (engine, 35, 40, -7, 1, 1),
        (engine, 35, 40, -8, 2, 3),
        (engine, 41, 42, -8, None, 3),
        (engine, 12, 14, -7, None, 1),
        (engine, 12, 14, 1, 1, None),
        ("aten::mm", 21, 24, -7, 1, None),
        (engine, 95, 99, -7, 1, None),
    ]
    names, start, end, thread, forward, passes = zip(*known, strict=True)
    rows = span_rows(
        {
            "kind": ["op"] * len(known),
            "name": list(names),
            "start_ns": list(start),
            "end_ns": list(end),
            "thread": list(thread),
            "forward_thread": pl.Series(forward, dtype=pl.Int64),
        }
    )
    assert in_backward(rows, steps)["parent_id"].to_list() == list(passes)
    assert in_backward(rows, ())["parent_id"].null_count() == len(known)
    assert step_rows(steps)["id"].to_list() == [1, None, 3]
