"""Streaks: a visit of some evaluations in; those that are as the one before out, at little cost.

What xsp does between two quick evaluations leaves the caches cold, and the second one slower than
it is. Within a visit nothing has to be decided: of an evaluation that is as expected only the
times are kept, and what they mean to plans and groups is worked out when the visit is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from xsp.composition import Group, Pause
from xsp.program.evaluation import OpenEvaluation
from xsp.program.recording import Recording
from xsp.program.turns import Step, StepKind
from xsp.provider import ModelCall

_Likeness = tuple[object, ...]


@dataclass(slots=True)
class Streak:
    """Evaluations of a group that are recorded alike.

    Attributes:
        thread: Thread of the evaluations.
        like: A call of the streak, without what it was given.
        group: The group.
        step: What is recorded.
        recording: The recording under way.
        left: How many more there are before anything has to be decided.
    """

    thread: int
    like: ModelCall
    group: Group
    step: Step
    recording: Recording
    left: int


@dataclass(slots=True)
class Closed:
    """An evaluation that has come to its end.

    Attributes:
        thread: Its thread.
        opened: What was known while it was open.
        kind: What kind of training step it was; None: a single call.
        since_ns: Since when the program waited for xsp.
        waited_ns: How long the evaluation only waited for devices at its end.
        until_ns: Until when the program waited for xsp.
    """

    thread: int
    opened: OpenEvaluation
    kind: StepKind | None
    since_ns: int
    waited_ns: int
    until_ns: int = 0

    @property
    def pauses(self) -> list[Pause]:
        """The times in which the program waited for xsp, around the evaluation and at its end."""
        opened = self.opened
        waits = (
            (opened.seen_ns, opened.begin_ns),
            (opened.end_ns or 0, opened.left_ns),
            (self.since_ns, self.until_ns),
        )
        return [Pause(self.thread, *wait) for wait in waits if wait[1] > wait[0]]

    @property
    def spent_ns(self) -> int:
        """How long the program waited for xsp before and after the evaluation."""
        return self.until_ns - self.since_ns + self.opened.begin_ns - self.opened.seen_ns


class Streaks:
    """The streaks under way, one for each group whose evaluations come in turns.

    Attributes:
        closed: Evaluations of streaks, in the order of their ends, of which nothing is noted yet.
    """

    def __init__(self) -> None:
        self.closed: list[Closed] = []
        self._by_likeness: dict[_Likeness, Streak] = {}

    def next(
        self, thread: int, call: ModelCall | None, before: StepKind, recording: Recording | None
    ) -> Streak | None:
        """Return the streak that a call goes on with, if any.

        Args:
            thread: The calling thread.
            call: The call; None: an evaluation that begins without one.
            before: What kind of training step was the last one.
            recording: What is recorded now.
        """
        if call is None or not self._by_likeness:
            return None
        streak = self._by_likeness.get(_likeness(call, before))
        if streak is None or streak.recording is not recording or streak.thread != thread:
            return None
        streak.left -= 1
        return streak if streak.left >= 0 else None

    def begin(self, before: StepKind, streak: Streak) -> None:
        """Have calls like that of a streak go on with it; ends streaks of other recordings."""
        known = self._by_likeness
        if any(other.recording is not streak.recording for other in known.values()):
            known.clear()
        known[_likeness(streak.like, before)] = streak

    def settle(self) -> list[Closed]:
        """Return the evaluations of which nothing is noted yet."""
        closed, self.closed = self.closed, []
        return closed


def _likeness(call: ModelCall, before: StepKind) -> _Likeness:
    """Return what tells a call from calls of other groups."""
    if call.whole_model:
        return call.subject, call.phase, call.inputs
    return call.subject, call.phase, call.inputs, before
