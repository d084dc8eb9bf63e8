"""The dispatcher: gives out a plan's steps to the evaluations that a program makes by itself."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

from xsp.measurement.repeat import Inputs
from xsp.provider import ModelCall
from xsp.session import Plan, PlannedVisit, Session, Window


class Dispatcher:
    """Makes each evaluation of a program the next step of the plan (`Evaluations`).

    Every call is made exactly once, whatever happens; when the plan is complete
    the calls pass through. One evaluation is open at a time: calls made meanwhile
    by it, or by other threads, are part of it or left alone.

    Args:
        plan: What is to be run.
        session: Where it is run.

    Attributes:
        last: The last evaluation that was one call, while it may have to be repeated.
        writes: Whether the first such call wrote to its arguments; None before it.
        unread: Why that cannot be told; empty if it can.
        subjects: How often what was evaluated.
        passed: How many calls of what were no evaluations.
    """

    def __init__(self, plan: Plan, session: Session) -> None:
        self.plan = plan
        self.session = session
        self.last: ModelCall | None = None
        self.writes: bool | None = None
        self.unread = ""
        self.subjects: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open: _Opened | None = None
        self._named = False  # the user marks the evaluations

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return its result."""
        if self._named or not self._lock.acquire(blocking=False):
            return call()
        try:
            step = self.plan.next()
            if step is None:
                return call()
            self.last = call
            self.subjects[call.subject] += 1
            return self._evaluate(step, call)
        finally:
            self._lock.release()

    def begin(self, call: ModelCall) -> None:
        """Open an evaluation that is more than this call: a training step."""
        if not self._named:
            self._begin(call.name, call.subject)

    def extend(self) -> None:
        """Note that the open evaluation has lasted at least until now."""
        if self._open is not None and not self._named:
            self._open.window.extend()

    def end(self) -> None:
        """Close the open evaluation at the time last noted."""
        if not self._named:
            self._end()

    def passed_over(self, subject: str) -> None:
        """Count an outermost call of another model than the one being measured."""
        self.passed[subject] += 1

    def begin_named(self, name: str) -> bool:
        """Open an evaluation that the user marks, and return whether it was opened.

        From now on only those count. One that is marked inside another, or beside
        it on another thread, is not opened.
        """
        if not self._named:
            self.abandon()
            self.session.visits.clear()
            self._named = True
        if self._open is not None:
            self.session.problem(
                "evaluation-in-evaluation",
                f"an evaluation ({name}) was marked while another was open, and is not counted; "
                "mark parts of an evaluation with xsp.span",
            )
            return False
        return self._begin(name, name)

    def end_named(self) -> None:
        """Close the evaluation that the user marked, now."""
        if self._open is not None:
            self._open.window.extend()
        self._end()

    def forget(self) -> None:
        """Let go of the last evaluation: its model and input are the program's."""
        self.last = None

    def abandon(self) -> None:
        """Drop the open evaluation: it was cut short."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.drop()
            self._lock.release()

    def _evaluate(self, step: PlannedVisit, call: ModelCall) -> Any:
        before = self.session.clock.now()
        kept = len(self.session.visits)
        inputs = Inputs(self.session.watchers, call) if self.writes is None else None
        result = self.session.evaluate(step, call)
        if inputs is not None:
            self.writes, self.unread = inputs.changed(), inputs.unread
        self._record(step, before, kept)
        return result

    def _record(self, step: PlannedVisit, before_ns: int, kept: int) -> None:
        windows = [w for visit in self.session.visits[kept:] for w in visit.windows]
        latencies = [end - begin for begin, end in windows]
        self.plan.record(step, latencies, spent_ns=self.session.clock.now() - before_ns)

    def _begin(self, name: str, subject: str) -> bool:
        step = self.plan.next()
        if step is None or self._open is not None or not self._lock.acquire(blocking=False):
            return False
        self.last = None  # more than one call: it cannot be made again
        self.subjects[subject] += 1
        self._open = _Opened(self, step, name)
        return True

    def _end(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            try:
                opened.close()
            finally:
                self._lock.release()


class _Opened:
    """One open evaluation, with everything armed for it."""

    def __init__(self, dispatcher: Dispatcher, step: PlannedVisit, name: str) -> None:
        self._dispatcher = dispatcher
        self._step = step
        self._before_ns = dispatcher.session.clock.now()
        self._kept = len(dispatcher.session.visits)
        self._stack = ExitStack()
        self.window: Window = self._stack.enter_context(dispatcher.session.open(step, name))

    def close(self) -> None:
        self._stack.close()
        self._dispatcher._record(self._step, self._before_ns, self._kept)

    def drop(self) -> None:
        kept = self._kept
        self._stack.close()
        del self._dispatcher.session.visits[kept:]
