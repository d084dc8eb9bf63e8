"""Evaluations under way: a call and what is recorded of it in, what is known at its end out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from xsp.composition import Group, Mark, Pause
from xsp.program.recording import Recording
from xsp.program.turns import Step, StepKind
from xsp.provider import NO_BACKWARD, Inputs, ModelCall, Work
from xsp.session import Session, page_faults

T = TypeVar("T")

# Watching may take so much of a program's time, once there is nothing more to measure.
_MOST_WATCHING = 0.01
_UNENDED = ("", NO_BACKWARD)  # variants of training steps that no optimizer has ended
_JUDGED = 8  # evaluations by which that part is judged
_PATIENCE = 10  # times as long as so far a step may be in what nobody tells of: a backward pass


@dataclass(slots=True)
class Lap:
    """An evaluation that went on with a streak, and has come to its end.

    Attributes:
        streak: The streak.
        thread: Its thread.
        inputs: What was put into its first call.
        ended: Its variant, and how often the model was called in it; None: it is a single call.
        seen_ns: When xsp's own work for it began.
        begin_ns: When it began.
        end_ns: When it ended.
        left_ns: Until when the thread waited for xsp after that.
        pauses: Begin and end of each time in it in which the thread waited for xsp.
        since_ns: Since when the program waited for devices and for xsp.
        waited_ns: How long the evaluation only waited for devices at its end.
        until_ns: Until when the program waited for devices and for xsp.
    """

    streak: Streak
    thread: int
    inputs: Inputs
    ended: tuple[str, int] | None
    seen_ns: int
    begin_ns: int
    end_ns: int
    left_ns: int
    pauses: Sequence[tuple[int, int]]
    since_ns: int
    waited_ns: int
    until_ns: int

    def closed(self) -> Closed:
        """Return what is known of the evaluation."""
        opened = self.streak.opened(self.thread, self.seen_ns, self.inputs)
        opened.begin_ns, opened.end_ns, opened.left_ns = self.begin_ns, self.end_ns, self.left_ns
        opened.pauses += self.pauses
        kind = None if self.ended is None else StepKind(*self.ended)
        return Closed(opened, kind, self.since_ns, self.waited_ns, self.until_ns)


@dataclass(slots=True)
class Remaining:
    """How many more evaluations of a group there are before anything has to be decided."""

    number: int


@dataclass(slots=True)
class Streak:
    """Evaluations of a group that are recorded alike.

    Attributes:
        like: A call of the streak, without what it was given.
        group: The group.
        step: What is recorded.
        recording: The recording under way.
        left: How many more there are, of this and other streaks of the group.
        laps: Evaluations of this and other streaks, in the order of their ends, of which nothing is
            noted yet.
        wait: Waits for devices, and returns since when and how long; None: there are none.
        unnamed: Whether its evaluations begin before their first call of a model.
        counted: Whether a schedule counts evaluations, so that none may follow without a word.
    """

    like: ModelCall
    group: Group
    step: Step
    recording: Recording
    left: Remaining
    laps: list[Closed | Lap]
    unnamed: bool
    wait: Callable[[], tuple[int, int]] | None = None
    counted: bool = False

    def opened(self, thread: int, seen_ns: int, inputs: Inputs) -> OpenEvaluation:
        """Return one more of its evaluations, for which xsp's work began at a time.

        Args:
            thread: Its thread.
            seen_ns: When xsp's work for it began.
            inputs: What is put into its first call.
        """
        return OpenEvaluation(
            thread,
            self.like if inputs == self.like.inputs else replace(self.like, inputs=inputs),
            self.group,
            self.step,
            self.recording,
            unnamed=self.unnamed,
            unprepared=True,
            seen_ns=seen_ns,
            streak=self,
        )


@dataclass(slots=True)
class OpenEvaluation:
    """An evaluation under way.

    Attributes:
        thread: Its thread.
        call: The first call of a model in it; None if that is still to come.
        group: The group whose plan chose the step; None if nothing was planned.
        step: What is recorded; None: nothing that counts.
        recording: The recording under way when it began.
        unnamed: Whether it began before its first call of a model.
        unprepared: Whether no provider was armed or disarmed for it.
        seen_ns: When xsp's own work for it began.
        page_faults: How many minor page faults the process had taken before, and once it is
            closed, took in it; None if unknown: asking the system takes time, which quick
            evaluations that go on with a streak would have to wait for.
        streak: The streak that it goes on with, so that nothing is noted at its end.
        begin_ns: When it began; `seen_ns` until that is known.
        end_ns: Until when it has lasted at least; None if that was never noted.
        left_ns: Until when the thread waited for xsp after that.
        pauses: Start and end of each time in it in which the thread waited for xsp.
        marks: Parts of the program of which it is not known yet whether they lie in it.
    """

    thread: int
    call: ModelCall | None
    group: Group | None
    step: Step | None
    recording: Recording | None
    unnamed: bool
    unprepared: bool
    seen_ns: int
    page_faults: int | None = None
    streak: Streak | None = None
    begin_ns: int = field(init=False)
    end_ns: int | None = None
    left_ns: int = 0
    pauses: list[tuple[int, int]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin_ns = self.seen_ns

    @property
    def expected(self) -> str:
        """The variant with which it is going to end; empty where that is not known."""
        return self.streak.group.variant if self.streak is not None else ""

    @property
    def usual_kind(self) -> StepKind:
        """What kind of step most evaluations of its group are."""
        group = self.group
        return StepKind() if group is None else StepKind(group.variant, group.usual_calls)

    def identify(self, call: ModelCall) -> None:
        """Note its first call of a model; if that is none of its streak's, it goes on with none."""
        if self.streak is not None:
            like = self.streak.like
            if (call.subject, call.phase, call.inputs) == (like.subject, like.phase, like.inputs):
                return
            self.streak = self.call = None
        self.call = self.call or call

    def lacks_optimizer(self, variant: str) -> bool:
        """Return whether no optimizer has ended a training step that one was expected to end."""
        expected = self.group.variant if self.group is not None else ""
        return variant in _UNENDED and expected not in _UNENDED

    def is_as_expected(self, variant: str, calls: int) -> bool:
        """Return whether it goes on with a streak, and has ended as that has it.

        Args:
            variant: The variant with which it has ended.
            calls: How often the model was called in it.
        """
        streak = self.streak
        if streak is None or self.end_ns is None:
            return False
        return streak.group.is_of(variant, calls)

    def follow(self, streak: Streak, found_ns: int, ended: tuple[str, int]) -> bool:
        """Become the next evaluation, one of a streak, if that may go on (`provider.Begun`)."""
        own = self.streak
        if own is None or self.end_ns is None or not own.group.is_of(*ended):
            return False
        if streak.left.number <= 0 or streak.recording.over or streak.counted:
            return False
        since_ns = waited_ns = until_ns = 0
        if own.wait is not None:
            since_ns, waited_ns = own.wait()
            until_ns = since_ns + waited_ns
        streak.left.number -= 1
        times = self.seen_ns, self.begin_ns, self.end_ns, self.left_ns, self.pauses
        lap = Lap(own, self.thread, own.like.inputs, ended, *times, since_ns, waited_ns, until_ns)
        self.streak, self.seen_ns, self.end_ns = streak, found_ns, None
        self.marks, self.pauses = [], []
        if streak is not own:
            self.call, self.unnamed = streak.like, streak.unnamed
            self.group, self.step = streak.group, streak.step
        own.laps.append(lap)  # last, as whoever ends the block meanwhile notes what is open
        return True

    def may_go_on(self, now_ns: int) -> bool:
        """Return whether it goes on, or has lasted so long that more of it may come."""
        end_ns = self.end_ns
        return end_ns is None or now_ns - end_ns < _PATIENCE * (end_ns - self.begin_ns)

    def holds(self, mark: Mark) -> bool:
        """Return whether a part of the program lies in the evaluation, as far as is known."""
        if self.end_ns is None and self.streak:
            self.marks.append(mark)
        return self.end_ns is None or mark.start_ns < self.end_ns

    def extend(self, until_ns: int, pauses: Sequence[tuple[int, int]] = ()) -> list[Mark]:
        """Note that it has lasted at least until a time, with pauses, of which the last may go on.

        Pauses are begin and end of each time in which the thread waited for xsp. Marks that came
        after that time are returned.
        """
        if self.end_ns is not None and self.left_ns > self.end_ns:
            self.pauses.append((self.end_ns, self.left_ns))  # it went on after that
        self.end_ns = self.left_ns = until_ns
        for pause in pauses:
            if pause[0] < until_ns:
                self.pauses.append(pause)
            else:
                self.left_ns = pause[1]
        later = [mark for mark in self.marks if mark.start_ns >= until_ns]
        self.marks.clear()
        return later

    def close(self) -> None:
        """Note how many page faults the process took since it was opened, if that is counted."""
        if self.page_faults is not None:
            now = page_faults()
            self.page_faults = None if now is None else now - self.page_faults

    @property
    def paused_ns(self) -> int:
        """How long the thread waited for xsp in it."""
        return sum(end - begin for begin, end in self.pauses)


@dataclass(slots=True)
class Closed:
    """An evaluation that has come to its end.

    Attributes:
        opened: What was known while it was open.
        kind: What kind of training step it was; None: a single call.
        since_ns: Since when the program waited for xsp.
        waited_ns: How long the evaluation only waited for devices at its end.
        until_ns: Until when the program waited for xsp.
    """

    opened: OpenEvaluation
    kind: StepKind | None
    since_ns: int
    waited_ns: int
    until_ns: int = 0

    @property
    def end_ns(self) -> int | None:
        """When the evaluation ended."""
        return self.opened.end_ns

    @property
    def pauses(self) -> list[Pause]:
        """The times in which the program waited for xsp, around the evaluation and at its end."""
        opened = self.opened
        # A step ends before devices are waited for, a single call after that.
        worked_ns = self.since_ns if self.kind is None else self.since_ns + self.waited_ns
        waits = (
            (opened.seen_ns, opened.begin_ns),
            (opened.end_ns or 0, opened.left_ns),
            (self.since_ns, worked_ns, True),
            (worked_ns, self.until_ns),
        )
        return [Pause(opened.thread, *wait) for wait in waits if wait[1] > wait[0]]

    @property
    def ran_ns(self) -> int:
        """How long the evaluation lasted."""
        return (self.opened.end_ns or self.since_ns) - self.opened.begin_ns

    @property
    def spent_ns(self) -> int:
        """How long the program waited for xsp before and after the evaluation.

        A training step comes to its end when the next call has been found, in the time before the
        evaluation of that one.
        """
        after_ns = self.until_ns - self.since_ns if self.kind is None else 0
        return self.opened.begin_ns - self.opened.seen_ns + after_ns


def timed(session: Session, work: Work, *, waits: bool = True) -> tuple[Any, int, int, int]:
    """Make a call; return its result, and when it began, returned, and devices had finished.

    Args:
        session: Knows the devices.
        work: The call.
        waits: Whether there may be devices that have not finished when the call has returned.
    """
    function, args, kwargs = work
    now = session.clock.now
    begin = now()
    result = function(*args, **kwargs)
    for await_outputs in session.awaits:
        await_outputs(result)
    returned = now()
    return result, begin, returned, now() if waits and session.synchronize() else returned


def attempt(session: Session, work: Callable[..., T], *args: Any) -> T | None:
    """Return the result of xsp's own work; if it fails, note a problem, and return None."""
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001  the user's call must be made all the same
        session.problem(
            "not-evaluated",
            f"an evaluation is missing, for xsp failed on it: {type(error).__name__}: {error}",
        )
        return None


class IdleWatching:
    """What watching costs while nothing is recorded."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []

    def add(self, seen_ns: int, spent_ns: int) -> None:
        """Note an unrecorded evaluation: when it was seen, and how long xsp took for it."""
        self._seen.append((seen_ns, spent_ns))
        del self._seen[:-_JUDGED]

    @property
    def costly(self) -> bool:
        """Whether watching slows the program down by more than a user would have it."""
        if len(self._seen) < _JUDGED:
            return False
        spent_ns = [spent for _, spent in self._seen]
        lasted_ns = self._seen[-1][0] - self._seen[0][0]
        # One may have taken long for reasons of its own.
        return sum(spent_ns) - max(spent_ns) > _MOST_WATCHING * lasted_ns
