from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from xsp.testing import FakeClock
from xsp_levels.framework.torch.program.step import OPTIMIZER_STEP, Interval, StepRecorder


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


def test_a_step_that_raised_does_not_lend_its_begin_to_the_one_around_it(
    outer: Outer, clock: FakeClock
) -> None:
    outer.inner.fails = True
    with recording(clock) as found:
        outer.step()
        outer.inner.fails = False
        outer.inner.step()
    assert durations(found) == [1110, 10]
