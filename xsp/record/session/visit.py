"""Visits of a pass: as a plan asks for them, and, a session's output, with times and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xsp.level import Kind
from xsp.matching import Pass
from xsp.provider import Provider, Records
from xsp.record.session.interruption import page_faults


@dataclass(frozen=True, slots=True)
class PlannedVisit:
    """One visit of a pass, as the plan asks for it.

    Attributes:
        pass_: The pass, which says what is recorded.
        steps: How many steps are timed.
        untimed: How many warm-up steps come before the timed ones, to replace what the
            last visit left in the caches.
        round: Number of the visit's round, from 0; -1 for warming up.
        most_ns: The visit ends with the step in which it has lasted longer; 0: no limit.
        idle_ns: Of a visit for readings: for how long nothing runs before its steps.
        pause_until_ns: Instead of all that, until when, on the session's clock, the model runs
            without being observed.
    """

    pass_: Pass
    calls: int = 1
    untimed: int = 0
    round: int = -1
    most_ns: int = 0
    idle_ns: int = 0
    pause_until_ns: int = 0

    @property
    def counts(self) -> bool:
        """Whether the latencies of the visit count."""
        return self.round >= 0


@dataclass(frozen=True, slots=True)
class Visit:
    """Times and raw records of one visit of a pass, uninterpreted.

    Attributes:
        planned: The visit as the plan asked for it.
        name: Name of the root span.
        thread: Thread that the steps ran on.
        windows: Start and end of every timed step, in ns of the measurement's clock.
        records: Each provider that was armed, with the records that it kept.
        waited_ns: How long, at the end of every timed step, the host did nothing but wait
            for devices.
        page_faults: How many minor page faults the process took during all timed steps
            together; None where the system does not count them.
        groups: Number of the group of each step; empty: all are of one group, number 0.
        rounds: Round of each step in the plan of its group; empty: all are of the round
            that was planned.
        names: Name of the root span of each step; empty: all have the same.
        shared: Whether other threads made steps at the same time, so that only rows of this
            visit's thread are of this visit.
        pauses: Start and end of each time within a step in which the thread waited for xsp.
        model_calls: How often the model was called in each step; empty: once, or unknown.
    """

    planned: PlannedVisit
    name: str
    thread: int
    windows: tuple[tuple[int, int], ...]
    records: tuple[tuple[Provider, Records], ...] = ()
    waited_ns: tuple[int, ...] = ()
    page_faults: int | None = None
    groups: tuple[int, ...] = ()
    rounds: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    shared: bool = False
    pauses: tuple[tuple[int, int], ...] = ()
    model_calls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Monitored:
    """What monitors recorded beside a stretch of the program.

    Attributes:
        begin_ns: When the first step began, or the program.
        end_ns: When the last step ended, or the program.
        steps: How many steps there were, one right after the other; 0: any program.
        records: Each monitor with its records.
        begins_ns: When each step began; none where there were very many.
    """

    begin_ns: int
    end_ns: int
    steps: int
    records: tuple[tuple[Provider, Records], ...]
    begins_ns: tuple[int, ...] = ()


def counting(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits whose steps count as runs.

    A pass's visits of warming up count only if the pass has no other visits.
    """
    warm = {visit.planned.pass_ for visit in visits if visit.planned.counts}
    return [visit for visit in visits if visit.planned.counts or visit.planned.pass_ not in warm]


def worth_keeping(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits that count, and warm-up visits in which kernels were recorded.

    CUDA graphs are captured while a model warms up; only the records of the warm-up visits tell
    what later replays of a graph stand for.
    """
    sure = {id(visit) for visit in counting(visits)}
    return [v for v in visits if id(v) in sure or Kind.KERNEL in v.planned.pass_.kinds]


class Readings:
    """Readings of the clock around each step of a visit, and of page faults around all.

    Reading the page faults takes a microsecond, and the step after it a quarter of one
    longer: too much to be done before every step.

    Attributes:
        windows: Start and end of each step, in ns.
    """

    __slots__ = ("_page_faults", "_waited_ns", "windows")

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin with the timed steps, and forget those before."""
        self.windows: list[tuple[int, int]] = []
        self._waited_ns: list[int] = []
        self._page_faults = page_faults()

    def append(self, begin_ns: int, returned_ns: int, end_ns: int) -> None:
        """Add a step; from `returned_ns` on the host only waited for devices."""
        self.windows.append((begin_ns, end_ns))
        self._waited_ns.append(end_ns - returned_ns)

    def stop(self) -> None:
        """End with the last timed step."""
        before, after = self._page_faults, page_faults()
        self._page_faults = None if before is None or after is None else after - before

    def visit(
        self,
        planned: PlannedVisit,
        name: str,
        thread: int,
        records: tuple[tuple[Provider, Records], ...],
    ) -> Visit:
        """Return the visit that the steps make."""
        return Visit(
            planned,
            name,
            thread,
            windows=tuple(self.windows),
            records=records,
            waited_ns=tuple(self._waited_ns),
            page_faults=self._page_faults,
        )
