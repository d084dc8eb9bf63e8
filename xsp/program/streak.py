"""Streaks: a visit of some evaluations in; those that are as the one before out, at little cost.

What xsp does between two quick evaluations leaves the caches cold, and the second one slower than
it is. Within a visit nothing has to be decided: of an evaluation that is as expected only the
times are kept, and what they mean to plans and groups is worked out (`note`) when the visit is
over. Where several threads evaluate, all of them go on with the streak: while one of them holds
Python's lock for xsp, none of the others gets far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xsp.composition import Evaluation, Group, Groups, Journal
from xsp.program.evaluation import Closed, Lap, OpenEvaluation, Remaining, Streak
from xsp.program.recording import Recorder, Window
from xsp.program.turns import Plans, StepKind
from xsp.provider import ModelCall

Key = tuple[Any, ...]

_OF_CALL = 3  # parts of the key of a call that is an evaluation: subject, phase and inputs


class Streaks:
    """The streaks under way, one for each group whose evaluations come in turns.

    Attributes:
        laps: Evaluations of streaks, in the order of their ends, of which nothing is noted yet.
    """

    def __init__(self) -> None:
        self.laps: list[Closed | Lap] = []
        # By what tells their calls from others; where inputs vary, by the number of the group.
        self._by_likeness: dict[Key, Streak] = {}

    def of(self, like: Key, groups: Groups) -> Streak | None:
        """Return the streak of evaluations whose call is told from others by a key, if any."""
        streak = self._by_likeness.get(like)
        if streak is None and len(like) == _OF_CALL:  # perhaps of a group in which inputs vary
            group = groups.known(*like)
            return None if group is None else self._by_likeness.get((group.number,))
        return streak

    def clear(self) -> None:
        """End all streaks; what is not noted yet of their evaluations is kept."""
        for streak in self._by_likeness.values():
            streak.left.number = 0
        self._by_likeness.clear()

    def begin(self, key: Key, opened: OpenEvaluation, left: int) -> None:
        """Have evaluations like one go on with a streak, if its visit lasts; ends those of others.

        Args:
            key: What tells their calls from others (`key_of`).
            opened: The evaluation.
            left: How many more there are before anything has to be decided.
        """
        call, group, step, recording = opened.call, opened.group, opened.step, opened.recording
        known = self._by_likeness
        shared = next((each.left for each in known.values() if each.group is group), Remaining(0))
        shared.number = left
        if call is None or group is None or step is None or recording is None:
            return
        if left <= 0 or step.round < 0 or recording.bound:
            return
        like = replace(call, function=object, args=(), kwargs={})  # lets go of them
        if any(other.recording is not recording for other in known.values()):
            self.clear()
            shared = Remaining(left)
        if group.varies and len(key) == _OF_CALL:
            key = (group.number,)
        known[key] = Streak(like, group, step, recording, shared, self.laps, opened.unnamed)

    @property
    def last_kind(self) -> StepKind | None:
        """What kind of training step the last one was of which nothing is noted yet, if any."""
        last = self.laps[-1] if self.laps else None
        return StepKind(*last.ended) if isinstance(last, Lap) and last.ended else None

    def settle(self) -> list[Closed]:
        """Return the evaluations of which nothing is noted yet."""
        count = len(self.laps)
        settled, self.laps[:count] = self.laps[:count], []  # other threads append meanwhile
        return [each.closed() if isinstance(each, Lap) else each for each in settled]


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
    opened, kind = closed.opened, closed.kind
    thread, call, begin_ns, end_ns = opened.thread, opened.call, opened.begin_ns, opened.end_ns
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
    known = rung, counts, size, tuple(opened.pauses), opened.page_faults, opened.streak is not None
    awaited_ns = closed.waited_ns if kind is None else 0  # that of a step lies after its end
    journal.evaluations.append(
        Evaluation(thread, group.number, begin_ns, end_ns, *known, awaited_ns)
    )
    return group


def key_of(call: ModelCall | None, before: StepKind) -> Key:
    """Return what tells a call from calls of other groups; None: a step that begins without."""
    if call is None:
        return (before,)
    if call.whole_model:
        return call.subject, call.phase, call.inputs
    return call.subject, call.phase, call.inputs, before
