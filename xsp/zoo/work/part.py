"""The part of a task's process: a job in, a row and a trace for each of its points out, as files.

A file is whole before the process says that it is there. How far it is, and why it cannot go on,
the process says on a pipe.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from xsp.errors import ExportError, XspError
from xsp.machine import replacing
from xsp.problem import Problem
from xsp.sweep import Point, Status
from xsp.target import Subject, measure_here
from xsp.trace import Trace
from xsp.zoo.results import row_of, row_without
from xsp.zoo.work.job import Job, shortened
from xsp.zoo.work.network import Refusals
from xsp.zoo.work.process import MEMORY_LIMIT, limit_facts
from xsp.zoo.work.repetition import compared

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_FIRST_TO_GO = "500"  # of the kernel's choice whom to end where memory ends, -1000 to 1000
_STEP = 0.1  # of a measurement, in which progress is said


def main(path: str) -> None:
    """Measure what the job in a file says, and end the process."""
    job = Job.load(Path(path))
    settle(job)
    part = _Part(job)
    try:
        for number in range(len(job.points)):
            part.carry(number)
    except ExportError as error:
        part.say({"unable": str(error)})
    # What frameworks do at the end of a program takes long, and may fail.
    os._exit(0)


def settle(job: Job) -> None:
    """Make this process end with the one that started it, and be the first that memory costs."""
    for descriptor in (job.speak, job.life):
        os.set_inheritable(descriptor, False)
    # The kernel ends the group when the pipe is closed, whatever Python is doing then.
    fcntl.fcntl(job.life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(job.life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(job.life, fcntl.F_SETFL, fcntl.fcntl(job.life, fcntl.F_GETFL) | os.O_ASYNC)
    # Processes whose parents have ended become children of this one, by which they are found.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


class _Part:
    """The part of the process, point by point.

    Args:
        job: What the process is told.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._refusals = Refusals()
        self._refusals.begin()
        self._said = 0.0
        self._same: bool | None = None

    def say(self, event: dict[str, Any]) -> None:
        """Say something to the process that started this one."""
        os.write(self._job.speak, json.dumps(event).encode() + b"\n")

    def carry(self, number: int) -> None:
        """Measure a point, and hand over its row and its trace.

        Raises:
            ExportError: They could not be saved.
        """
        began = time.monotonic() if number else self._job.begin_s
        os.chdir(self._job.directory)  # the model before may have changed it
        point = self._job.points[number]
        self.say({"state": "loading"})
        try:
            trace = self._measured(point)
        except (XspError, OSError) as error:
            row = self._without(point, error, began)
        else:
            trace.save(self._job.trace(number))
            took_s = time.monotonic() - began
            row = row_of(self._job.task, point, trace, took_s=took_s, basis=self._job.basis)
            row["same_output"] = self._same
        with replacing(self._job.row(number)) as file:
            file.write(json.dumps(row).encode())
        self.say({"done": number})
        gc.collect()  # the next model needs the memory of this one

    def _measured(self, point: Point) -> Trace:
        self._refusals.hosts.clear()
        trace = measure_here(point.spec, self._job.task.plan, self._report, look=self._look)
        metadata = {**trace.metadata, "settings": point.settings}
        return Trace(trace.spans, metadata, trace.typical_runs)

    def _look(self, subject: Subject) -> Iterable[Problem]:
        problems: list[Problem] = []
        self._same = None
        if self._job.task.check:
            self.say({"state": "comparing outputs"})
            self._same, problems = compared(subject)
        self._said = 0.0
        self.say({"state": "measuring"})
        return problems

    def _report(self, fraction: float) -> None:
        if fraction - self._said >= _STEP:
            self._said = fraction
            self.say({"state": f"measuring, {100 * fraction:.0f} %"})

    def _without(self, point: Point, error: XspError | OSError, began: float) -> dict[str, Any]:
        memory = getattr(error, "out_of_memory", False)
        status = Status.OUT_OF_MEMORY if memory else Status.FAILED
        traceback = getattr(error, "traceback", "")
        reason = shortened(self._refusals.explain(str(error), traceback))
        took_s = time.monotonic() - began
        # Another limit is a reason to try again.
        limits = limit_facts(self._job.task.limits)
        limit = {MEMORY_LIMIT: limits[MEMORY_LIMIT]} if memory else {}
        basis = {**self._job.basis, **limit}
        return row_without(self._job.task, point, str(status), reason, took_s=took_s, basis=basis)
