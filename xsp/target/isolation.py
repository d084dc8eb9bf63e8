"""Measures every rung in a process of its own: what a profiler leaves behind dies with it."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import psutil

from xsp.clock import SystemClock
from xsp.errors import MeasurementError
from xsp.measurement import Collected, Enough, Progress, build_trace, progress_bar, rung_names
from xsp.problem import AMBIGUITIES, Problem
from xsp.session import Settings
from xsp.target.spec import Spec, resolve
from xsp.target.worker import SERIALISED, Failure, Job, Worker, attempt, collect_subject
from xsp.trace import Trace
from xsp.trace_context import origin

INTERRUPTED = "interrupted"

_DETAIL_WEIGHT = 0.25  # such a rung is visited once: it needs little of the budget
_SERIALISED_WEIGHT = 2.0  # a ladder of its own, for latencies that need less precision
_ROOM = 0.8  # part of the free memory that several processes may fill


def measure_isolated(
    spec: Spec,
    settings: Settings,
    progress: bool | Progress | None = None,
    *,
    serialised: bool = False,
) -> Trace:
    """Measure a target rung by rung, each in a fresh process, and return its trace.

    The processes take turns, visit by visit, so that drift hits all rungs alike.
    Where memory has no room for all of them, or on a device, they run one after
    the other. One that fails costs its rung, which becomes a problem of the trace.
    Ctrl-C ends the measurement with what there is, and the problem `interrupted`.

    Where it stays open which span caused what, or on request, one more process climbs the
    whole ladder serialised: the host waits for each kernel, and libraries use one thread.
    It settles what it can, and gives `serialised_ns`. It has not run on a GPU yet.

    The trace's origin is this process's: it began here, inside the caller's span, and
    what spans the target opens while it is loaded in one child or another is its own.

    Args:
        spec: What to measure.
        settings: How to measure; the budget is divided over the rungs. A serialised
            measurement has the part of two; unasked for, it comes on top.
        progress: As for `xsp.measure`.
        serialised: Whether to measure serialised even where nothing is in doubt.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised on every rung, or while it was made.
        MeasurementError: No rung could be measured.
        KeyboardInterrupt: Interrupted before the first rung was complete.
    """
    began = origin(SystemClock())
    with progress_bar(progress, f"measuring {spec.name}") as tell, _folder() as folder:
        made = _make(spec, settings, folder, tell, serialised=serialised)
    if not made.done:
        raise KeyboardInterrupt if made.interrupted else _total_failure(made.failures)
    done = [replace(one, origin=began) for one in made.done]
    alone = made.serialised if isinstance(made.serialised, Collected) else None
    return build_trace(done, settings, alone, problems=_problems(made))


def measure_here(spec: Spec, settings: Settings, progress: bool | Progress | None = None) -> Trace:
    """Measure a target in this process, on every rung, and return its trace.

    Args:
        spec: What to measure.
        settings: How to measure.
        progress: As for `xsp.measure`.

    Ctrl-C ends the measurement after the visit under way, with what there is.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: It cannot be measured here.
        KeyboardInterrupt: Interrupted before the first evaluation that counts, or twice.
    """
    with progress_bar(progress, f"measuring {spec.name}") as tell, _interruptible(tell) as told:
        outcome = attempt(lambda: collect_subject(resolve(spec), settings, None, told), early=True)
    if isinstance(outcome, Failure):
        raise outcome.error()
    if told.interrupted and not _has_spans(outcome):
        raise KeyboardInterrupt
    return build_trace([outcome], settings, problems=_problems(_Made(interrupted=told.interrupted)))


class _Told:
    """A progress function that ends the measurement once Ctrl-C has been pressed."""

    def __init__(self, tell: Progress) -> None:
        self.interrupted = False
        self._tell = tell

    def __call__(self, fraction: float) -> None:
        self._tell(fraction)
        if self.interrupted:
            raise Enough

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal; the second one is an exception, as ever."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True


@contextmanager
def _interruptible(tell: Progress) -> Iterator[_Told]:
    told = _Told(tell)
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = signal.signal(signal.SIGINT, told.interrupt)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class _Made:
    """What the processes of a measurement left.

    Attributes:
        rungs: Of each rung's process what it collected, or why it has nothing.
        serialised: The same of the serialised one; None if there was none.
        interrupted: Whether Ctrl-C ended it.
        complete: Whether the rungs were complete by then.
    """

    rungs: Mapping[str, Collected | Failure] = field(default_factory=dict)
    serialised: Collected | Failure | None = None
    interrupted: bool = False
    complete: bool = False

    @property
    def done(self) -> list[Collected]:
        """What the rungs collected, where it is anything."""
        found = [one for one in self.rungs.values() if isinstance(one, Collected)]
        return [one for one in found if _has_spans(one)]

    @property
    def failures(self) -> dict[str, Failure]:
        """Why rungs have nothing."""
        return {rung: one for rung, one in self.rungs.items() if isinstance(one, Failure)}

    @property
    def ambiguous(self) -> bool:
        """Whether it is open which span caused what."""
        return any(count.code in AMBIGUITIES for one in self.done for count in one.counts)


def _make(
    spec: Spec, settings: Settings, folder: Path, tell: Progress, *, serialised: bool
) -> _Made:
    """Measure every rung, and once more serialised if that is asked for or there is doubt."""
    shares = _shares(rung_names(settings), settings, more=serialised)
    jobs = [Job(spec, share, rung) for rung, share in shares.items()]
    part = len(jobs) / (len(jobs) + 1)  # where it is unasked, progress steps back to that
    made = _climb(jobs, folder, lambda done: tell(part * done if serialised else done))
    if made.interrupted or not made.done or not (serialised or made.ambiguous):
        return made
    most = _SERIALISED_WEIGHT * max(share.budget_s for share in shares.values())
    try:
        alone = _serialised(
            Job(spec, replace(settings, budget_s=most), None, SERIALISED),
            folder,
            lambda done: tell(part + (1 - part) * done),
        )
    except KeyboardInterrupt:
        return replace(made, interrupted=True, complete=True)
    return replace(made, serialised=alone)


def _shares(rungs: Sequence[str], settings: Settings, *, more: bool) -> dict[str, Settings]:
    """Return every rung with its part of the budget; `more` leaves that of a serialised one."""
    weights = {rung: _DETAIL_WEIGHT if rung == "detail" else 1.0 for rung in rungs}
    whole = sum(weights.values()) + more * _SERIALISED_WEIGHT
    return {
        rung: replace(settings, budget_s=settings.budget_s * weight / whole)
        for rung, weight in weights.items()
    }


def _climb(jobs: Sequence[Job], folder: Path, tell: Progress) -> _Made:
    """Return what the rungs' processes left."""
    workers: list[Worker] = []
    interrupted = False
    with ExitStack() as stack:
        try:
            _take_turns(jobs, folder, _Rotation(workers, len(jobs), tell), stack)
        except KeyboardInterrupt:
            interrupted = True
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.wait()
        outcomes = {str(worker.job.rung): worker.outcome() for worker in workers}
    return _Made(outcomes, interrupted=interrupted)


def _serialised(job: Job, folder: Path, tell: Progress) -> Collected | Failure:
    """Return what a serialised process collected, or why it has nothing."""
    with _working(job, folder / "serialised") as worker:
        worker.hear()
        while worker.turn():
            tell(worker.fraction)
        outcome = worker.outcome()
    tell(1.0)
    if isinstance(outcome, Collected) and not _has_spans(outcome):
        return Failure("measurement", "not a single evaluation of it was complete")
    return outcome


def _take_turns(jobs: Sequence[Job], folder: Path, rotation: _Rotation, stack: ExitStack) -> None:
    """Start every worker when the one before it is ready, and let them take turns."""
    for job in jobs:
        if job.rung == "detail":  # visited once: there is nothing to take turns with
            rotation.run()
        worker = stack.enter_context(_working(job, folder / str(job.rung)))
        rotation.workers.append(worker)
        worker.hear()
        if worker.failed_early:
            raise worker.failed_early.error()
        if not _has_room(worker, len(jobs) - len(rotation.workers)):
            rotation.run()
    rotation.run()


@dataclass(frozen=True, slots=True)
class _Rotation:
    workers: list[Worker]
    whole: int
    tell: Progress

    def run(self) -> None:
        """Give every worker that has not ended a turn, again and again, until all have."""
        while sum(worker.turn() for worker in self.workers):
            self.tell(sum(worker.fraction for worker in self.workers) / self.whole)


def _has_spans(collected: Collected) -> bool:
    return any(run.rows is not None for run in collected.runs)


def _has_room(worker: Worker, others: int) -> bool:
    """Return whether so many more like it fit into memory, and may run beside it."""
    if (worker.job.spec.device or "cpu") != "cpu":
        return False
    return others * worker.memory_bytes < _ROOM * psutil.virtual_memory().available


@contextmanager
def _working(job: Job, folder: Path) -> Iterator[Worker]:
    worker = Worker(job, folder)
    try:
        yield worker
    finally:
        worker.close()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xsp-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _total_failure(failures: dict[str, Failure]) -> Exception:
    if not failures:
        return MeasurementError("there is no rung that could be measured here: see `xsp doctor`")
    rung, failure = next(iter(failures.items()))
    if failure.cause == "target":
        return failure.error()
    return MeasurementError(f"no rung could be measured; on the first ({rung}): {failure.message}")


def _problems(made: _Made) -> list[Problem]:
    problems = [
        Problem("rung-failed", f"the {rung} rung is missing: {failure.message}")
        for rung, failure in made.failures.items()
    ]
    if isinstance(made.serialised, Failure):
        sentence = f"the serialised run is missing: {made.serialised.message}"
        problems.append(Problem("serialised-failed", sentence))
    if made.interrupted:
        sentence = "the measurement was interrupted: latencies rest on fewer runs than planned"
        if made.complete:
            sentence = "the serialised run was interrupted, and is left out"
        problems.append(Problem(INTERRUPTED, sentence))
    return problems
