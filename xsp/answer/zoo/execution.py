"""Execution: measures the points of tasks one after the other, or says what a run would do."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

from xsp.answer.zoo.core import held
from xsp.answer.zoo.folder import Folder, Kept
from xsp.answer.zoo.process import carry_out, limit_facts, remove_left, skipped
from xsp.answer.zoo.row import MEASURED, OUT_OF_MEMORY, SKIPPED, Row
from xsp.answer.zoo.table import THRESHOLD_PCT
from xsp.answer.zoo.task import Point, Task, basis_of, machine_facts
from xsp.answer.zoo.worker import UNKNOWN
from xsp.errors import ExportError

WAITING = "waiting for the end of another measurement on this machine"  # a state of a point
LATE = "the total budget is over"
_LOADING_S = 8.0  # of a measurement beside its budget, importing and loading, until one was made
_SCRATCH = ".work"
_GOOD = (MEASURED, OUT_OF_MEMORY, SKIPPED)
_ENOUGH = 2  # doublings, or failures, in a row after which doubling ends


class Watch(Protocol):
    """The audience of a run: is told what becomes of a zoo while it is measured."""

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
    """The outcome of a run, counted.

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
    """The part of a task that has no complete result.

    Attributes:
        task: The task.
        basis: Facts that its results rest on here.
        points: The points without a complete result.
        kept: Rows of the others, batches ascending.
    """

    task: Task
    basis: Mapping[str, str]
    points: tuple[Point, ...]
    kept: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """A point of a zoo, and what a run would do with it.

    Attributes:
        task: The task that it is of.
        point: The point.
        state: `complete`: a run measures nothing, as of batches above one that ran out of memory;
            `again`: what the result rests on has changed; `to do`: there is no result that is
            complete.
        why: Why it is measured again; empty otherwise.
        expected_s: Estimate of the seconds that a run takes for it; 0 where it is complete.
    """

    task: Task
    point: Point
    state: Literal["complete", "again", "to do"]
    why: str
    expected_s: float


def run(
    tasks: Sequence[Task],
    folder: Folder,
    watch: Watch,
    *,
    total_s: float | None = None,
    again: bool = False,
) -> Tally:
    """Measure the points of tasks that have no complete result yet, and count what became of all.

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
    machine = machine_facts()
    todos = []
    for task in tasks:
        basis = basis_of(task.points[0].spec, task.plan, machine)
        todo = todo_of(task, [basis], folder, tally, again=again)
        todos += [todo] * bool(todo.points)
    pace = Pace(todos)
    watch.planned(tally.counts.total() + pace.left, tally.counts.total(), pace.left_s)
    with scratch_in(folder.path) as scratch:
        under_way = _Run(folder, watch, tally, pace, deadline)
        for todo in todos:
            if time.monotonic() > deadline or not under_way.carry(todo, scratch):
                break
    if pace.left:
        tally.left_out = pace.left
        watch.stopped(pace.left, LATE)
    return tally


class Pace:
    """The speed of a run, by the measurements made so far.

    Args:
        todos: What is to be measured.

    Attributes:
        left: How many measurements are to be made.
    """

    def __init__(self, todos: Sequence[Todo]) -> None:
        self.left = sum(len(todo.points) for todo in todos)
        guesses = sum(len(todo.points) * (todo.task.plan.budget_s + _LOADING_S) for todo in todos)
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


class _Run:
    """A run under way: keeps each row, counts it, and tells who watches."""

    def __init__(
        self, folder: Folder, watch: Watch, tally: Tally, pace: Pace, deadline: float
    ) -> None:
        self._folder, self._watch, self._tally, self._pace = folder, watch, tally, pace
        self._deadline = deadline
        self._begun: Point | None = None

    def carry(self, todo: Todo, scratch: Path) -> bool:
        """Measure what is left of a task; return whether there was time for all of it."""
        task, known = todo.task, list(todo.kept)

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
            if time.monotonic() > self._deadline:  # others were waited for
                return False
            for number, point in enumerate(todo.points, 1):
                kept = self._folder.keep(*next(rows))
                self._tally.add(kept)
                self._pace.add(kept)
                self._watch.ended(task, point, kept, self._pace.left_s)
                known = sorted([*known, kept], key=lambda row: row["batch"] or 0)
                left = len(todo.points) - number
                if left and (why := enough(task, known)):
                    self._pace.left -= left
                    self._watch.stopped(left, why)
                    return True
                if left and time.monotonic() > self._deadline:
                    return False
        return True


def todo_of(
    task: Task,
    bases: Sequence[Mapping[str, str]],
    folder: Folder,
    tally: Tally,
    *,
    again: bool = False,
) -> Todo:
    """Return the points of a task that have no complete result, and count those that have one.

    Batches without a result that are larger than one that ran out of memory are kept as skipped.

    Args:
        task: The task.
        bases: What results rest on, on each machine that may measure them; the first is told.
        folder: Where results are kept.
        tally: Where complete results are counted.
        again: Whether all points are to be measured.

    Raises:
        ExportError: A row could not be kept.
    """
    if again:
        return Todo(task, bases[0], task.points)
    possible = [one for basis in bases for one in with_limits(task, basis)]
    left: list[Point] = []
    rows: list[Row] = []
    full: Row | None = None  # the first that ran out of memory
    for point in task.points:
        row = folder.kept(task, point, possible)
        if row is not None and not _unchecked(task, row):
            rows.append(folder.renewed(row, task))
            tally.add(rows[-1])
            full = row if full is None and row["status"] == OUT_OF_MEMORY else full
        elif enough(task, rows):
            break
        elif row is None and full is not None:
            tally.add(folder.keep(skipped(task, point, full, bases[0]), None))
        else:
            left.append(point)
    return Todo(task, bases[0], tuple(left), tuple(rows))


def enough(task: Task, rows: Sequence[Row]) -> str:
    """Return why no larger batch of a task is worth measuring; empty where one is.

    Args:
        task: The task; batches of others than doubling ones are all measured.
        rows: The rows so far, batches ascending.
    """
    if not task.doubling:
        return ""
    if full := [row for row in rows if row["status"] == OUT_OF_MEMORY]:
        return f"batch {full[0]['batch']} ran out of memory"
    if len(rows) >= _ENOUGH and all(map(has_failed, rows[-_ENOUGH:])):
        return "two batches in a row failed"
    known = [row for row in rows if row["batch"] and row.get("throughput_per_s")]
    gains = [
        (after["throughput_per_s"] / before["throughput_per_s"])
        ** (1 / math.log2(after["batch"] / before["batch"]))
        for before, after in pairwise(known)
    ]
    last = gains[-_ENOUGH:]
    if len(last) == _ENOUGH and all(100 * (gain - 1) <= THRESHOLD_PCT for gain in last):
        return "throughput has risen no more in two doublings"
    return ""


def has_failed(row: Row) -> bool:
    """Return whether a point failed, crashed or took too long."""
    return row["status"] not in _GOOD


def with_limits(task: Task, basis: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the bases that complete results of a task may have: those that hit a limit have it."""
    limits = limit_facts(task.limits)
    return [*({**basis, name: limit} for name, limit in limits.items()), dict(basis)]


def _unchecked(task: Task, row: Row) -> bool:
    """Return whether the outputs of a measurement were not compared, which now they are to be."""
    if not task.check or row["status"] != MEASURED:
        return False
    return row.get("same_output") is None and UNKNOWN not in row["warning_codes"]


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


def preview(tasks: Iterable[Task], path: Path) -> list[Planned]:
    """Return each point of the tasks with what a run into a folder would do; nothing is written.

    A point is expected to take the median of what earlier results took: of the same point, else of
    the model, of the batch size, of all; else the budget and a guess for loading.

    Args:
        tasks: The tasks of a zoo.
        path: Folder of earlier results, which need not be there.

    Raises:
        TraceFormatError: The folder's table is damaged.
    """
    folder = Kept(path)
    took: dict[tuple[object, ...], list[float]] = {}
    earlier = folder.frame().select("model", "settings", "batch", "took_s").drop_nulls("took_s")
    for model, settings, batch, took_s in earlier.iter_rows():
        for like in ((model, settings), (model,), (batch,), ()):
            took.setdefault(like, []).append(took_s)
    machine = machine_facts()
    planned = []
    for task in tasks:
        bases = with_limits(task, basis_of(task.points[0].spec, task.plan, machine))
        for point, complete, why in _states(task, folder, bases):
            batch = point.spec.settings.get("batch")
            likes = ((task.model, point.key), (task.model,), (batch,), ())
            guess = min(task.plan.budget_s + _LOADING_S, task.limits.time_s)
            expected_s = next((median(took[like]) for like in likes if like in took), guess)
            state: Literal["again", "to do"] = "again" if why else "to do"
            planned.append(
                Planned(task, point, "complete", "", 0.0)
                if complete
                else Planned(task, point, state, why, expected_s)
            )
    return planned


def _states(
    task: Task, folder: Kept, bases: Sequence[Mapping[str, str]]
) -> Iterator[tuple[Point, bool, str]]:
    """Yield each point of a task, whether it is complete, and why it is measured again if so."""
    full = False  # whether a smaller batch ran out of memory
    rows: list[Row] = []
    for point in task.points:
        row = folder.kept(task, point, bases)
        complete = full if row is None else not _unchecked(task, row)
        if row is not None and complete:
            rows.append(row)
            full = full or row["status"] == OUT_OF_MEMORY
        elif enough(task, rows):
            return
        why = (
            folder.why_again(task, point, bases) if row is None else "its outputs were not compared"
        )
        yield point, complete, "" if complete else why
