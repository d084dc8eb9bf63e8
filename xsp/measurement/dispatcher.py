"""The dispatcher: evaluations that a program makes by itself in, each made a step of the plan."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

from xsp.provider import ModelCall
from xsp.session import Plan, PlannedVisit, Session, Window


class Dispatcher:
    """Makes each evaluation of a program the next step of the plan (`provider.Evaluations`).

    Every call is made exactly once, whatever happens; when the plan is complete, calls
    are made without recording. One evaluation is open at a time: a call that the open
    evaluation makes belongs to the evaluation, a call on another thread is not recorded.

    Args:
        plan: The plan that says which rung comes next.
        session: The session that arms providers and times evaluations.

    Attributes:
        last: The last evaluation that was a single call, kept to be repeated; None once
            forgotten, or if the last evaluation was more than one call.
        subjects: Number of evaluations of each model or function, by its name.
        passed: Number of calls that were not evaluated, by the name of the model.
    """

    def __init__(self, plan: Plan, session: Session) -> None:
        self.plan = plan
        self.session = session
        self.last: ModelCall | None = None
        self.subjects: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open: _OpenEvaluation | None = None
        self._named = False  # whether the program marks evaluations (`begin_named`)

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return its result."""
        # Never wait here: the call belongs to the open evaluation, or to another thread.
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
        """Open an evaluation that begins with this call and goes on after it: a training step."""
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
        """Open an evaluation that the program marks, and return whether it was opened.

        From now on only marked evaluations count. An evaluation that is marked while
        another is open, on whatever thread, is not opened.
        """
        if not self._named:
            self.abandon()
            # The calls of models so far were not the evaluations that the program means.
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
        """Close the evaluation that the program marked, at the present time."""
        if self._open is not None:
            self._open.window.extend()
        self._end()

    def forget(self) -> None:
        """Forget the last evaluation, so that its model and input can be freed."""
        self.last = None

    def abandon(self) -> None:
        """Drop the open evaluation, which was cut short."""
        evaluation, self._open = self._open, None
        if evaluation is not None:
            evaluation.drop()
            self._lock.release()

    def _evaluate(self, step: PlannedVisit, call: ModelCall) -> Any:
        before = self.session.clock.now()
        visits_before = len(self.session.visits)
        result = self.session.evaluate(step, call)
        self._record(step, before, visits_before)
        return result

    def _record(self, step: PlannedVisit, before_ns: int, visits_before: int) -> None:
        """Tell the plan the latencies of the visits made since there were `visits_before`."""
        windows = [w for visit in self.session.visits[visits_before:] for w in visit.windows]
        latencies = [end - begin for begin, end in windows]
        now_ns = self.session.clock.now()
        self.plan.record(step, latencies, began_ns=before_ns, ended_ns=now_ns)

    def _begin(self, name: str, subject: str) -> bool:
        step = self.plan.next()
        if step is None or self._open is not None or not self._lock.acquire(blocking=False):
            return False
        self.last = None  # more than one call: only the program can repeat the evaluation
        self.subjects[subject] += 1
        self._open = _OpenEvaluation(self, step, name)
        return True

    def _end(self) -> None:
        evaluation, self._open = self._open, None
        if evaluation is not None:
            try:
                # Closing may raise: the next evaluation gets the lock all the same.
                evaluation.close()
            finally:
                self._lock.release()


class _OpenEvaluation:
    """An evaluation that has begun, with its providers armed until `close` or `drop`."""

    def __init__(self, dispatcher: Dispatcher, step: PlannedVisit, name: str) -> None:
        self._dispatcher = dispatcher
        self._step = step
        self._before_ns = dispatcher.session.clock.now()
        self._visits_before = len(dispatcher.session.visits)
        self._stack = ExitStack()
        self.window: Window = self._stack.enter_context(dispatcher.session.open(step, name))

    def close(self) -> None:
        self._stack.close()
        self._dispatcher._record(self._step, self._before_ns, self._visits_before)

    def drop(self) -> None:
        self._stack.close()
        # Disarming the providers has added the visit that is dropped here.
        del self._dispatcher.session.visits[self._visits_before :]
