"""Rotation: the jobs of several processes in, each carried out by a worker; the workers take turns.

Libraries are imported side by side, at first in as many processes as there are cores, and runs are
interpreted side by side; between the two, while anything is measured, one process works at a time,
and none is ending.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from xsp.measurement import Progress
from xsp.session import usable_cores
from xsp.target.division import on_host, too_slow
from xsp.target.worker import AGAIN, GO, Job, Worker

_MEMORY_FRACTION = 0.8  # of the free memory that several processes may fill


def take_turns(jobs: Sequence[Job], folder: Path, rotation: Rotation, stack: ExitStack) -> None:
    """Start the workers, load the target in each, and let the workers take turns."""

    def start(number: int) -> Worker:
        if number == len(rotation.workers):
            rotation.workers.append(
                stack.enter_context(open_worker(folder / str(number), jobs[number].environment))
            )
        worker = rotation.workers[number]
        worker.take(jobs[number], _title(jobs, number))
        return worker

    numbers = range(len(jobs))
    if not on_host(jobs[0].spec):
        # Processes on one device would disturb each other, and share its memory.
        for number in numbers:
            worker = start(number)
            rotation.load(worker)
            rotation.run()
            worker.await_end()
        return
    # Side by side, and the others while the first one loads: they may be started in vain.
    most = max(1, int(usable_cores()))
    first, *others = [start(number) for number in numbers[:most]]
    first.await_imports()
    others += [start(number) for number in numbers[most:]]
    rotation.load(first)
    for worker in others:
        worker.await_imports()  # which would disturb the trial
    if _is_slow(first, jobs):
        for worker in others:
            worker.end()
        rotation.workers[:] = [first]
        rotation = replace(rotation, whole=1)
        first.turn_alone()
    elif _has_room(first, len(others)):
        rotation.load(*others)
    else:
        rotation.run()
        for worker in others:
            rotation.load(worker)
            rotation.run()
    rotation.run()


def _title(jobs: Sequence[Job], number: int) -> str:
    """Return the name of a job: its rungs, with a number if an earlier job has the same."""
    again = sum(job.rungs == jobs[number].rungs for job in jobs[:number])
    name = ",".join(jobs[number].rungs or ())
    return f"{name} {again + 1}" if again else name


def _is_slow(worker: Worker, jobs: Sequence[Job]) -> bool:
    """Let a worker make trial calls, and return whether the model is too slow for several.

    A first call may be slow by itself, as libraries set themselves up or a model is compiled, so
    that a second one has the say.
    """
    if jobs[0].alone is None:
        return False
    for step in (GO, AGAIN):
        began = time.monotonic()
        running = worker.turn(step)
        if worker.failed_early:
            raise worker.failed_early.error()
        if not running or not too_slow(time.monotonic() - began, jobs):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Rotation:
    """Workers that take turns.

    Attributes:
        workers: The workers started so far; at first one that waits for its job, or none.
        whole: How many workers there will be.
        report: Called with the fraction of all work that is done.
    """

    workers: list[Worker]
    whole: int
    report: Progress

    def load(self, *workers: Worker) -> None:
        """Have workers load the target, side by side, once those that are done have ended.

        Raises:
            XspError: The target cannot be loaded: the other workers would fail alike.
        """
        for worker in self.workers:
            worker.await_end()
        for worker in workers:
            worker.load()
        for worker in workers:
            worker.listen()
            if worker.failed_early:
                raise worker.failed_early.error()

    def run(self) -> None:
        """Give the workers that have loaded turns until all of them are done."""
        # What is complete waits until all are, so that no interpretation disturbs a visit.
        loaded = [worker for worker in self.workers if worker.loaded]
        while measuring := [w for w in loaded if w.running and w.fraction < 1.0]:
            for worker in measuring:
                worker.turn()
                worker.await_end()  # one that failed, which would disturb the others
            done = sum(worker.fraction for worker in self.workers) / self.whole
            self.report(min(done, 1.0))
        for worker in loaded:
            worker.begin()
        for worker in loaded:
            while worker.running:
                worker.listen()


def _has_room(worker: Worker, others: int) -> bool:
    """Return whether so many other workers of the same size may run beside a worker."""
    return others * worker.memory_bytes < _MEMORY_FRACTION * psutil.virtual_memory().available


@contextmanager
def open_worker(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """Return a context manager with a worker, which ends with it."""
    worker = Worker(folder, environment)
    try:
        yield worker
    finally:
        worker.close()
