"""Visits: raw records and times of some evaluations on one rung; a session's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xsp.level import Kind
from xsp.provider import Provider, Records
from xsp.session.plan import Step


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visit of a rung left behind, uninterpreted.

    Attributes:
        step: The step of the plan that was carried out.
        name: Name of the root span.
        thread: Thread that the evaluations ran on.
        windows: Start and end of every timed evaluation, in ns of the measurement's clock.
        records: Each provider that was armed, with the records that it kept.
        waited_ns: For every timed evaluation the time at its end in which the host only
            waited for devices.
    """

    step: Step
    name: str
    thread: int
    windows: tuple[tuple[int, int], ...]
    records: tuple[tuple[Provider, Records], ...] = ()
    waited_ns: tuple[int, ...] = ()


def counting(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits whose evaluations count as runs.

    These are the visits after warming up, and for a rung that has none of those its
    warm-up visits.
    """
    warm = {visit.step.rung for visit in visits if visit.step.counts}
    return [visit for visit in visits if visit.step.counts or visit.step.rung not in warm]


def worth_keeping(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits that count, and warm-up visits in which kernels were recorded.

    CUDA graphs are captured while a model warms up; without the warm-up visits nothing
    would tell what later replays of a graph stand for.
    """
    sure = {id(visit) for visit in counting(visits)}
    return [v for v in visits if id(v) in sure or Kind.KERNEL in v.step.rung.kinds]


class Window:
    """The time of an evaluation that is open: from its begin until it was last extended.

    Args:
        now: Reads the clock, in ns.
        synchronize: Functions that wait until the devices are done.
    """

    __slots__ = ("_now", "_synchronize", "begin_ns", "end_ns", "waited_ns")

    def __init__(self, now: Callable[[], int], synchronize: tuple[Callable[[], None], ...]) -> None:
        self._now = now
        self._synchronize = synchronize
        self.end_ns: int | None = None
        self.waited_ns = 0
        self.begin_ns = now()

    def extend(self) -> None:
        """Note that the evaluation has lasted at least until now."""
        self.end_ns = self._now()

    def await_devices(self) -> None:
        """Add the time that devices still need for what they were asked to do."""
        if self.end_ns is not None and self._synchronize:
            before = self._now()
            for wait in self._synchronize:
                wait()
            self.waited_ns = self._now() - before
            self.end_ns += self.waited_ns
