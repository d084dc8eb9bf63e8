"""Evaluations under way: a call and what is recorded of it in, what is known at its end out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xsp.composition import Group, Mark
from xsp.program.recording import Recording
from xsp.program.turns import Step
from xsp.provider import Follow, ModelCall, Work
from xsp.session import Session, page_faults

T = TypeVar("T")

# Watching may take so much of a program's time, once there is nothing more to measure.
_MOST_WATCHING = 0.01
_JUDGED = 20  # evaluations by which that part is judged


@dataclass(slots=True)
class OpenEvaluation:
    """An evaluation under way.

    Attributes:
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
        streak: Whether it goes on with a streak, so that nothing is noted at its end.
        expected: The variant with which it is going to end; empty where that is not known.
        begin_ns: When it began; `seen_ns` until that is known.
        end_ns: Until when it has lasted at least; None if that was never noted.
        left_ns: Until when the thread waited for xsp after that.
        pauses: Start and end of each time in it in which the thread waited for xsp.
        marks: Parts of the program of which it is not known yet whether they lie in it.
        follow: Has an evaluation like it follow the open one (`provider.Begun`).
    """

    call: ModelCall | None
    group: Group | None
    step: Step | None
    recording: Recording | None
    unnamed: bool
    unprepared: bool
    seen_ns: int
    page_faults: int | None = None
    streak: bool = False
    expected: str = ""
    begin_ns: int = field(init=False)
    end_ns: int | None = None
    left_ns: int = 0
    pauses: list[tuple[int, int]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    follow: Follow | None = None

    def __post_init__(self) -> None:
        self.begin_ns = self.seen_ns

    def is_as_expected(self, variant: str, calls: int) -> bool:
        """Return whether it goes on with a streak, and has ended as that has it.

        Args:
            variant: The variant with which it has ended.
            calls: How often the model was called in it.
        """
        group, ended = self.group, self.end_ns is not None
        return self.streak and ended and group is not None and group.is_of(variant, calls)

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
        spent_ns = sum(spent for _, spent in self._seen)
        return spent_ns > _MOST_WATCHING * (self._seen[-1][0] - self._seen[0][0])
