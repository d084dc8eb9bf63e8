"""Streaks: a visit of some evaluations in; those that are as the one before out, at little cost.

What xsp does between two quick evaluations leaves the caches cold, and the second one slower than
it is. Within a visit nothing has to be decided: of an evaluation that is as expected only the
times are kept, and what they mean to plans and groups is worked out (`note`) when the visit is
over. Where several threads evaluate, all of them go on with the streak: while one of them holds
Python's lock for xsp, none of the others gets far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xsp.composition import Evaluation, Group, Journal, Pause
from xsp.program.evaluation import OpenEvaluation
from xsp.program.recording import Recorder, Recording, Window
from xsp.program.turns import Plans, Step, StepKind
from xsp.provider import ModelCall

Key = tuple[object, ...]


@dataclass(slots=True)
class Streak:
    """Evaluations of a group that are recorded alike.

    Attributes:
        like: A call of the streak, without what it was given.
        group: The group.
        step: What is recorded.
        recording: The recording under way.
        left: How many more there are before anything has to be decided.
    """

    like: ModelCall
    group: Group
    step: Step
    recording: Recording
    left: int

    def opened(self, seen_ns: int) -> OpenEvaluation:
        """Return one more of its evaluations, for which xsp's work began at a time."""
        return OpenEvaluation(
            self.like,
            self.group,
            self.step,
            self.recording,
            unnamed=False,
            unprepared=True,
            seen_ns=seen_ns,
            streak=True,
            expected=self.group.variant,
        )


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
        """How long the program waited for xsp before and after the evaluation.

        A training step comes to its end when the next call has been found, in the time before the
        evaluation of that one.
        """
        after_ns = self.until_ns - self.since_ns if self.kind is None else 0
        return self.opened.begin_ns - self.opened.seen_ns + after_ns


@dataclass(slots=True)
class Times:
    """A call that went on with a streak.

    Attributes:
        streak: The streak.
        thread: The calling thread.
        since_ns: Since when the program waited for xsp before the call.
        begin_ns: When the call began.
        returned_ns: When it returned.
        end_ns: When devices had finished.
        until_ns: Until when the program waited for xsp.
    """

    streak: Streak
    thread: int
    since_ns: int
    begin_ns: int
    returned_ns: int
    end_ns: int
    until_ns: int

    def closed(self) -> Closed:
        """Return the evaluation."""
        end_ns, opened = self.end_ns, self.streak.opened(self.since_ns)
        opened.begin_ns, opened.end_ns, opened.left_ns = self.begin_ns, end_ns, end_ns
        return Closed(self.thread, opened, None, end_ns, end_ns - self.returned_ns, self.until_ns)


class Streaks:
    """The streaks under way, one for each group whose evaluations come in turns.

    Attributes:
        closed: Evaluations of streaks, in the order of their ends, of which nothing is noted yet.
    """

    def __init__(self) -> None:
        self.closed: list[Closed | Times] = []
        self._by_likeness: dict[Key, Streak] = {}

    def of(self, like: Key) -> Streak | None:
        """Return the streak of evaluations whose call is told from others by a key, if any."""
        return self._by_likeness.get(like)

    def begin(
        self,
        call: ModelCall,
        before: StepKind,
        group: Group,
        step: Step,
        recording: Recording,
        left: int,
    ) -> None:
        """Have calls that are alike go on with a streak, if its visit lasts; ends those of others.

        Args:
            call: A call of the streak.
            before: What kind of training step was the last one.
            group: The group.
            step: What is recorded.
            recording: The recording under way.
            left: How many more there are before anything has to be decided.
        """
        if left <= 0 or step.round < 0 or recording.bound:
            return
        like = replace(call, function=object, args=(), kwargs={})  # lets go of them
        known = self._by_likeness
        if any(other.recording is not recording for other in known.values()):
            known.clear()
        known[key_of(call, before)] = Streak(like, group, step, recording, left)

    def settle(self) -> list[Closed]:
        """Return the evaluations of which nothing is noted yet."""
        count = len(self.closed)
        settled, self.closed[:count] = self.closed[:count], []  # other threads append meanwhile
        return [each.closed() if isinstance(each, Times) else each for each in settled]


def note(closed: Closed, plans: Plans, recorder: Recorder, journal: Journal) -> Group:
    """Note an evaluation for its group, the visit and plan that it is of, and the journal.

    Devices end their work later than the host; what the host did meanwhile lies in the
    journal's time after the evaluation.

    Args:
        closed: The evaluation.
        plans: The plans of all groups.
        recorder: The recorder of evaluations.
        journal: What the program did.
    """
    thread, opened, kind = closed.thread, closed.opened, closed.kind
    call, begin_ns, end_ns = opened.call, opened.begin_ns, opened.end_ns
    assert call is not None
    assert end_ns is not None
    ended_ns = end_ns if kind is None else end_ns + closed.waited_ns
    group = plans.count(call, kind)
    if not opened.streak:
        plans.learn(call, kind, group, unnamed=opened.unnamed)
    final, turns = plans.groups.final, plans.of(group.number)
    recording = opened.recording
    step = turns.again(opened.step.rung) if opened.step and opened.streak else opened.step
    same = opened.group is not None and final(opened.group.number) == final(group.number)
    valid = step is not None and recording is recorder.current and recording is not None
    counts = step is not None and valid and same and step.counts
    if step is not None and recording is not None and valid:
        round_number = step.round if counts else -1
        times = begin_ns, ended_ns, closed.waited_ns, tuple(opened.pauses)
        recording.windows.append(Window(thread, group.number, call.name, round_number, *times))
        if same:
            turns.record(step, begin_ns, ended_ns - opened.paused_ns, thread)
    rung = recording.rung if recording is not None else None
    size = (kind or StepKind()).calls, call.inputs
    known = rung, counts, size, opened.paused_ns, opened.page_faults
    journal.evaluations.append(Evaluation(thread, group.number, begin_ns, end_ns, *known))
    return group


def key_of(call: ModelCall, before: StepKind) -> Key:
    """Return what tells a call from calls of other groups."""
    if call.whole_model:
        return call.subject, call.phase, call.inputs
    return call.subject, call.phase, call.inputs, before
