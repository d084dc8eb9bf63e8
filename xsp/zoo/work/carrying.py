"""Carrying out: a task in, the row and trace of each of its points out, whatever becomes of it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from xsp.sweep import Point, Status
from xsp.zoo.results import Row, row_without
from xsp.zoo.task import Task
from xsp.zoo.work.job import shortened
from xsp.zoo.work.process import OUT_OF_MEMORY, End, Process, limit_facts

Tell = Callable[[Point, str], None]
"""Called with the point under way, and what is done with it: `loading`, `measuring, 40 %`."""


def carry_out(
    task: Task,
    points: Sequence[Point],
    scratch: Path,
    tell: Tell,
    *,
    basis: Mapping[str, str],
) -> Generator[tuple[Row, Path | None], None, None]:
    """Measure points of a task in a process of its own, and yield the row of each, in order.

    If the process dies or is ended, the measurement under way has that as its result, and another
    process goes on with the rest; after a batch that ran out of memory larger ones are skipped.
    Closing the generator ends the process, with all that it started.

    Args:
        task: The task.
        points: Those of its points that are to be measured, batches ascending.
        scratch: A folder for what the process hands over.
        tell: Called with the point under way and what is done with it.
        basis: What the results rest on, as `xsp.sweep.basis_of` returns it.

    Yields:
        A row, and the file of its trace, which is to be moved before the next is asked for; None
        where there is no trace.

    Raises:
        ExportError: What the process has to hand over could not be saved.
    """
    left = list(points)
    while left:
        with _process(task, left, scratch, basis) as process:
            for row, trace in _rows(process, tell):
                yield row, trace
                left.pop(0)
                # Children of the model, which may go on computing, would disturb the next batch.
                if row["status"] == OUT_OF_MEMORY or process.left_children():
                    break
        if row["status"] == OUT_OF_MEMORY:
            yield from ((skipped(task, point, row, basis), None) for point in left)
            return


def skipped(task: Task, point: Point, full: Mapping[str, Any], basis: Mapping[str, str]) -> Row:
    """Return the row of a point whose batch is larger than one that ran out of memory."""
    reason = f"batch {full['batch']} ran out of memory, and this one is larger"
    return row_without(task, point, str(Status.SKIPPED), reason, took_s=None, basis=basis)


@contextmanager
def _process(
    task: Task, points: Sequence[Point], scratch: Path, basis: Mapping[str, str]
) -> Iterator[Process]:
    """Yield a process that measures the points, in a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        process = Process(task, points, folder, basis)
        try:
            yield process
        finally:
            process.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(process: Process, tell: Tell) -> Iterator[tuple[Row, Path | None]]:
    """Yield what a process hands over; of its end make the row of the point under way."""
    job = process.job
    for number, point in enumerate(job.points):
        began = time.monotonic()
        tell(point, "starting" if number == 0 else "loading")
        heard = process.listen(partial(tell, point))
        if isinstance(heard, End):
            took_s = time.monotonic() - began
            yield _ended(job.task, point, heard, took_s, job.basis), None
            return
        trace = job.trace(number)
        row: Row = json.loads(job.row(number).read_text(encoding="utf-8"))
        yield row, trace if trace.exists() else None


def _ended(task: Task, point: Point, end: End, took_s: float, basis: Mapping[str, str]) -> Row:
    # A higher limit is a reason to try again.
    limit = {end.limit: limit_facts(task.limits)[end.limit]} if end.limit else {}
    reason = shortened(end.reason)
    return row_without(task, point, end.status, reason, took_s=took_s, basis={**basis, **limit})
