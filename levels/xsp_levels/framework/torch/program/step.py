"""Records parts of a program besides its model, and makes a row of kind `region` of each.

Backward passes and optimizer steps are seen by entry points of their own, data loading and the
other parts by `loop`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from xsp.clock import Clock, SystemClock
from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.torch.module.entry_point import (
    abandon_in_child,
    backward_entry_point,
    keep_in_child,
    optimizer_entry_point,
)
from xsp_levels.framework.torch.profiler.operator import ENGINE
from xsp_levels.framework.torch.program.loop import NOTHING, Note, loop

BACKWARD = "backward"
OPTIMIZER_STEP = "optimizer step"


@dataclass(frozen=True, slots=True)
class Interval:
    """One part of a program, such as a backward pass or a step of an optimizer, in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    facts: Mapping[str, Any] = field(default_factory=dict)


class OptimizerSteps:
    """Makes steps from optimizers' hooks, and calls `note` after each."""

    def __init__(self, note: Note, now: Callable[[], int] = SystemClock.now) -> None:
        self._note = note
        self._now = now
        # (id of an optimizer, start) by thread; an optimizer may call another optimizer's step
        self._begun: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def begin(self, optimizer: Any) -> None:
        """Note that a step begins now."""
        self._begun[threading.get_ident()].append((id(optimizer), self._now()))

    def end(self, optimizer: Any) -> None:
        """Note that a step has ended."""
        end = self._now()
        begun = self._begun[threading.get_ident()]
        while begun:
            which, start = begun.pop()
            if which == id(optimizer):  # else that step raised, and no hook told its end
                self._note(OPTIMIZER_STEP, start, end, NOTHING)
                return


class StepRecorder:
    """Records the parts of a program between `start` and `stop`."""

    def __init__(self) -> None:
        self._now: Callable[[], int] = SystemClock.now
        self._kept: list[Interval] = []

    def start(self, clock: Clock) -> None:
        """Begin to record."""
        self._now = clock.now
        steps = OptimizerSteps(self._note, clock.now)
        abandon_in_child(self.abandon)
        backward_entry_point().record(self._record_backward)
        optimizer_entry_point().record(steps.begin, steps.end)
        loop().record(self._note, clock.now)

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
        loop().record(None)
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
            self._note(BACKWARD, start, now(), {"error": type(error).__name__})
            raise
        end = now()
        self._note(BACKWARD, start, end, NOTHING)
        return result

    def _note(self, name: str, start_ns: int, end_ns: int, facts: Mapping[str, Any]) -> None:
        self._kept.append(Interval(name, start_ns, end_ns, threading.get_ident(), facts))


def step_rows(steps: tuple[Interval, ...]) -> SpanRows:
    """Return a row of kind region per part; backward passes have numbers. Pure."""
    if not steps:
        return no_rows()

    def facts(name: str) -> pl.Series:
        return pl.Series([step.facts.get(name) for step in steps], dtype=pl.Int64)

    numbers = [_number(at) if step.name == BACKWARD else None for at, step in enumerate(steps)]
    return span_rows(
        {
            "id": pl.Series(numbers, dtype=pl.Int64),
            "kind": Kind.REGION.value,
            "name": [step.name for step in steps],
            "start_ns": [step.start_ns for step in steps],
            "end_ns": [step.end_ns for step in steps],
            "thread": [step.thread for step in steps],
            "attr.error": pl.Series([step.facts.get("error") for step in steps], dtype=pl.String),
            "attr.workers": facts("workers"),
            "attr.batches_ready": facts("batches_ready"),
        }
    )


def in_backward(operators: SpanRows, steps: tuple[Interval, ...]) -> SpanRows:
    """Return operators; those of autograd's own threads state the row that waits for them. Pure.

    The backward pass of what is on a GPU runs on a thread of the device's, while the thread that
    called it waits. Of several passes at once an operator is in that of its forward's thread, if
    that is known, else in the one that began last.

    Args:
        operators: Rows of operators.
        steps: Parts of the program, of which `step_rows` makes the rows that are stated.
    """
    begun = [(at, step) for at, step in enumerate(steps) if step.name == BACKWARD]
    if not begun or not operators.height:
        return operators
    engine = operators["name"].str.starts_with(ENGINE).to_numpy()
    start, end, thread = (operators[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    forward = operators["forward_thread"].fill_null(0).to_numpy()
    stated = np.zeros(operators.height, np.int64)
    for at, step in sorted(begun, key=lambda each: each[1].start_ns):
        inside = engine & (thread != step.thread) & (step.start_ns <= start) & (end <= step.end_ns)
        inside &= (forward == step.thread) | (forward == 0) | (stated == 0)
        stated[inside] = _number(at)
    numbers = pl.Series(stated).replace(0, None)
    return operators.with_columns(parent_id=pl.coalesce("parent_id", numbers))


def _number(step: int) -> int:
    return 1 + step  # as those of all providers
