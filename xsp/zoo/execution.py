"""Execution: tasks and a folder in; the row and trace of each of their points in the folder out.

Points that are complete in the folder are not measured again.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xsp.errors import ExportError
from xsp.sweep import Point, Status, basis_of, machine_facts
from xsp.zoo.core import held
from xsp.zoo.results import MEASURED, Folder, Row
from xsp.zoo.task import Task
from xsp.zoo.work import OUT_OF_MEMORY, UNKNOWN, carry_out, limit_facts, remove_left, skipped

LOADING_S = 8.0  # of a measurement beside its budget, importing and loading, until one was made
_SCRATCH = ".work"
WAITING = "waiting for the end of another measurement on this machine"  # a state of a point
_GOOD = (MEASURED, OUT_OF_MEMORY, str(Status.SKIPPED))


class Watch(Protocol):
    """What is told of a zoo while it is measured."""

    def planned(self, points: int, kept: int, left_s: float) -> None:
        """So many points there are, of which so many are complete from before.

        Args:
            points: How many there are.
            kept: How many of them are complete.
            left_s: Estimate of the seconds that the others take.
        """

    def began(self, task: Task, point: Point, again: str) -> None:
        """A point is now measured; `again` says why an earlier result is not good any more."""

    def state(self, task: Task, point: Point, state: str) -> None:
        """This is what is now done with the point under way."""

    def ended(self, task: Task, point: Point, row: Row, left_s: float) -> None:
        """A point has its row; the rest takes about so many seconds."""

    def stopped(self, points: int, why: str) -> None:
        """So many points are left out, and have no row."""


@dataclass(slots=True)
class Tally:
    """What became of the points of a zoo.

    Attributes:
        counts: How many points have each status.
        failures: Rows of the points that failed, crashed or took too long.
        left_out: How many points were not measured, for the time was over.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Row] = field(default_factory=list)
    left_out: int = 0

    def add(self, row: Row) -> None:
        """Count a row."""
        self.counts[row["status"]] += 1
        if has_failed(row):
            self.failures.append(row)


@dataclass(frozen=True, slots=True)
class Todo:
    """What is left of a task.

    Attributes:
        task: The task.
        basis: What its results rest on here.
        points: The points that have no complete result.
    """

    task: Task
    basis: Mapping[str, str]
    points: tuple[Point, ...]


def has_failed(row: Row) -> bool:
    """Return whether a point failed, crashed or took too long."""
    return row["status"] not in _GOOD


class Pace:
    """How long measurements take, by those made so far.

    Args:
        todos: What is to be measured.

    Attributes:
        left: How many measurements are to be made.
    """

    def __init__(self, todos: Sequence[Todo]) -> None:
        self.left = sum(len(todo.points) for todo in todos)
        guesses = sum(len(todo.points) * (todo.task.plan.budget_s + LOADING_S) for todo in todos)
        self._each_s = guesses / self.left if self.left else 0.0
        self._took: list[float] = []

    def add(self, row: Row) -> None:
        """Count a measurement that was made now; one that was skipped takes no time."""
        self.left -= 1
        if row["took_s"] is not None:
            self._took.append(row["took_s"])

    @property
    def left_s(self) -> float:
        """Estimate of the seconds that those take which are left."""
        return self.left * (sum(self._took) / len(self._took) if self._took else self._each_s)


def run(
    tasks: Sequence[Task],
    folder: Folder,
    watch: Watch,
    *,
    total_s: float | None = None,
    again: bool = False,
) -> Tally:
    """Measure the points of tasks that have no complete result yet, and say what became of all.

    What cannot be measured has a row as well, and the next point follows. Points that failed or
    crashed are measured again, those that took too long or too much memory only where the limits
    have changed.

    Args:
        tasks: The tasks.
        folder: Where results are kept.
        watch: What is told of it.
        total_s: Seconds after which no further measurement begins; None: no limit.
        again: Whether points are measured that have a complete result as well.

    Raises:
        ExportError: A result could not be kept.
        KeyboardInterrupt: Interrupted; the results so far are kept.
    """
    deadline = math.inf if total_s is None else time.monotonic() + total_s
    tally = Tally()
    todos = list(_todos(tasks, folder, tally, again=again))
    pace = Pace(todos)
    watch.planned(sum(len(task.points) for task in tasks), tally.counts.total(), pace.left_s)
    with scratch_in(folder.path) as scratch:
        run = _Run(folder, watch, tally, pace)
        for todo in todos:
            if time.monotonic() > deadline or not run.carry(todo, scratch, deadline):
                break
    if pace.left:
        tally.left_out = pace.left
        watch.stopped(pace.left, "the total budget is over")
    return tally


def _todos(tasks: Sequence[Task], folder: Folder, tally: Tally, *, again: bool) -> Iterator[Todo]:
    """Yield what is left of each task of which anything is."""
    machine = machine_facts()
    for task in tasks:
        basis = basis_of(task.points[0].spec, task.plan, machine)
        points = task.points if again else left_of(task, [basis], folder, tally)
        if points:
            yield Todo(task, basis, points)


class _Run:
    """A run: what becomes of its points, and who is told."""

    def __init__(self, folder: Folder, watch: Watch, tally: Tally, pace: Pace) -> None:
        self._folder, self._watch, self._tally, self._pace = folder, watch, tally, pace
        self._begun: Point | None = None

    def carry(self, todo: Todo, scratch: Path, deadline: float) -> bool:
        """Measure what is left of a task; return whether there was time for all of it."""
        task = todo.task

        def tell(point: Point, state: str) -> None:
            if point is not self._begun:
                self._begun = point
                bases = with_limits(task, todo.basis)
                self._watch.began(task, point, self._folder.why_again(task, point, bases))
            self._watch.state(task, point, state)

        with (
            held(waiting=lambda: tell(todo.points[0], WAITING)),
            closing(carry_out(task, todo.points, scratch, tell, basis=todo.basis)) as rows,
        ):
            if time.monotonic() > deadline:  # others were waited for
                return False
            for point, (row, trace) in zip(todo.points, rows, strict=True):
                kept = self._folder.keep(row, trace)
                self._tally.add(kept)
                self._pace.add(kept)
                self._watch.ended(task, point, kept, self._pace.left_s)
                if time.monotonic() > deadline and point is not todo.points[-1]:
                    return False
        return True


def left_of(
    task: Task, bases: Sequence[Mapping[str, str]], folder: Folder, tally: Tally
) -> tuple[Point, ...]:
    """Return the points of a task that have no complete result, and count those that have one.

    Batches without a result that are larger than one that ran out of memory are kept as skipped.

    Args:
        task: The task.
        bases: What results rest on, on each machine that may measure them.
        folder: Where results are kept.
        tally: Where complete results are counted.

    Raises:
        ExportError: A row could not be kept.
    """
    possible = [one for basis in bases for one in with_limits(task, basis)]
    left: list[Point] = []
    full: Row | None = None  # the first that ran out of memory
    for point in task.points:
        row = folder.kept(task, point, possible)
        if row is not None and not unchecked(task, row):
            tally.add(folder.renewed(row, task))
            full = row if full is None and row["status"] == OUT_OF_MEMORY else full
        elif row is None and full is not None:
            tally.add(folder.keep(skipped(task, point, full, bases[0]), None))
        else:
            left.append(point)
    return tuple(left)


def with_limits(task: Task, basis: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what complete results of a task may rest on: those that exceeded a limit, on that."""
    limits = limit_facts(task.limits)
    return [*({**basis, name: limit} for name, limit in limits.items()), dict(basis)]


def unchecked(task: Task, row: Row) -> bool:
    """Return whether the outputs of a measurement were not compared, which now they are to be."""
    if not task.check or row["status"] != MEASURED:
        return False
    return row.get("same_output") is None and UNKNOWN not in row["problem_codes"]


@contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """Yield an empty folder in a folder, for what is not complete; it is removed afterwards.

    Raises:
        ExportError: It could not be made.
    """
    scratch = folder / _SCRATCH
    remove_left(scratch)  # of a run that was killed
    try:
        scratch.mkdir()
    except OSError as error:
        raise ExportError(f"{scratch} cannot be made: {error.strerror}") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
