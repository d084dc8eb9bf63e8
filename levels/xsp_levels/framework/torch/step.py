"""Backward passes and optimizer steps in, a row of kind pipeline for each of them out."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.clock import Clock, SystemClock
from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.torch.entry_point import (
    abandon_in_child,
    backward_entry_point,
    keep_in_child,
    optimizer_entry_point,
)

BACKWARD = "backward"
OPTIMIZER_STEP = "optimizer step"


@dataclass(frozen=True, slots=True)
class Interval:
    """One backward pass or one step of an optimizer, in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    error: str | None = None


class StepRecorder:
    """Records backward passes and optimizer steps between `start` and `stop`."""

    def __init__(self) -> None:
        self._now: Callable[[], int] = SystemClock.now
        self._kept: list[Interval] = []
        # (id of an optimizer, start) by thread; an optimizer may call another optimizer's step
        self._begun: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def start(self, clock: Clock) -> None:
        """Begin to record."""
        self._now = clock.now
        abandon_in_child(self.abandon)
        backward_entry_point().record(self._record_backward)
        optimizer_entry_point().record(self._begin_step, self._end_step)

    def disarm(self) -> None:
        """End recording."""
        self.abandon()
        keep_in_child(self.abandon)

    def stop(self) -> tuple[Interval, ...]:
        """End recording, and return the recorded intervals."""
        self.disarm()
        return tuple(self._kept)

    def abandon(self) -> None:
        """Take the hooks out."""
        backward_entry_point().record(None)
        optimizer_entry_point().record(None, None)

    def _record_backward(
        self, backward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        now = self._now
        start = now()
        try:
            result = backward(*args, **kwargs)
        except BaseException as error:
            self._keep(BACKWARD, start, now(), type(error).__name__)
            raise
        end = now()
        self._keep(BACKWARD, start, end)
        return result

    def _begin_step(self, optimizer: Any) -> None:
        self._begun[threading.get_ident()].append((id(optimizer), self._now()))

    def _end_step(self, optimizer: Any) -> None:
        end = self._now()
        begun = self._begun[threading.get_ident()]
        while begun:
            which, start = begun.pop()
            if which == id(optimizer):  # else that step raised, and no hook told its end
                self._keep(OPTIMIZER_STEP, start, end)
                return

    def _keep(self, name: str, start: int, end: int, error: str | None = None) -> None:
        self._kept.append(Interval(name, start, end, threading.get_ident(), error))


def step_rows(steps: tuple[Interval, ...]) -> SpanRows:
    """Return a row of kind pipeline per step. Pure."""
    if not steps:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.PIPELINE.value,
            "name": [step.name for step in steps],
            "start_ns": [step.start_ns for step in steps],
            "end_ns": [step.end_ns for step in steps],
            "thread": [step.thread for step in steps],
            "attr.error": pl.Series([step.error for step in steps], dtype=pl.String),
        }
    )
