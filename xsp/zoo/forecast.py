"""Forecasts: the tasks of a zoo and earlier results in, what a run would do and its time out.

Nothing is measured, and nothing written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import polars as pl

from xsp.sweep import Point, basis_of, machine_facts
from xsp.zoo.execution import LOADING_S, unchecked, with_limits
from xsp.zoo.results import Kept
from xsp.zoo.task import Task
from xsp.zoo.work import OUT_OF_MEMORY

State = Literal["complete", "again", "to do"]


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
    state: State
    why: str
    expected_s: float


def preview(tasks: Iterable[Task], path: Path) -> list[Planned]:
    """Return each point of the tasks with what a run into a folder would do.

    Args:
        tasks: The tasks of a zoo.
        path: Folder of earlier results, which need not be there.

    Raises:
        TraceFormatError: The folder's table is damaged.
    """
    folder = Kept(path)
    clock = Expectation(folder.frame())
    machine = machine_facts()
    planned: list[Planned] = []
    for task in tasks:
        bases = with_limits(task, basis_of(task.points[0].spec, task.plan, machine))
        planned += _planned(task, folder, bases, clock)
    return planned


class Expectation:
    """How long points are expected to take, by what they and their like took before.

    Args:
        frame: Earlier results.
    """

    def __init__(self, frame: pl.DataFrame) -> None:
        self._took: dict[tuple[object, ...], list[float]] = {}
        rows = frame.select("model", "settings", "batch", "took_s").drop_nulls("took_s")
        for model, settings, batch, took_s in rows.iter_rows():
            for like in ((model, settings), (model,), (batch,), ()):
                self._took.setdefault(like, []).append(took_s)

    def seconds(self, task: Task, point: Point) -> float:
        """Return an estimate of the seconds that a point takes, loading included.

        It is the median of what earlier results took: of the same point, else of the model, of the
        batch size, of all; else the budget and a guess for loading.
        """
        batch = point.spec.settings.get("batch")
        for like in ((task.model, point.key), (task.model,), (batch,), ()):
            if like in self._took:
                return median(self._took[like])
        return min(task.plan.budget_s + LOADING_S, task.limits.time_s)


def _planned(
    task: Task, folder: Kept, bases: Sequence[Mapping[str, str]], clock: Expectation
) -> Iterator[Planned]:
    full = False  # whether a smaller batch ran out of memory
    for point in task.points:
        row = folder.kept(task, point, bases)
        complete = full if row is None else not unchecked(task, row)
        full = full or (row is not None and row["status"] == OUT_OF_MEMORY)
        if complete:
            yield Planned(task, point, "complete", "", 0.0)
            continue
        why = "its outputs were not compared"
        if row is None:
            why = folder.why_again(task, point, bases)
        expected_s = clock.seconds(task, point)
        yield Planned(task, point, "again" if why else "to do", why, expected_s)
