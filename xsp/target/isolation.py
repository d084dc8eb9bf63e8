"""Isolation: a target in, its trace out, measured in several processes that take turns.

What a profiler leaves behind in its process cannot slow down the rungs of another, and several
processes tell how far processes differ. `measure_here` measures in this process instead.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from xsp.clock import SystemClock
from xsp.errors import MeasurementError
from xsp.measurement import Enough, ProcessRuns, Progress, build_trace, progress_bar
from xsp.problem import AMBIGUITIES, Problem
from xsp.session import Settings
from xsp.target.division import divide, serialised_budget_s
from xsp.target.examination import exported
from xsp.target.part import attempt, measure_subject
from xsp.target.resolution import resolve
from xsp.target.rotation import Rotation, open_worker, take_turns
from xsp.target.spec import Spec, Subject
from xsp.target.worker import SERIALISED, Failure, Job
from xsp.trace import Trace
from xsp.trace_context import origin

INTERRUPTED = "interrupted"


def measure_isolated(
    spec: Spec,
    settings: Settings,
    progress: bool | Progress | None = None,
    *,
    serialised: bool = False,
    ending: ExitStack | None = None,
) -> Trace:
    """Measure a target in fresh processes, and return its trace.

    The rungs of layers and above share a process, each deeper rung has one, and there are
    three processes at least. They import libraries side by side, and then take turns, visit by
    visit, so that drift hits all rungs alike. Where memory has no room for all processes, or on
    a device, they run one after the other. A model so slow that the budget has no room to compare
    processes is measured in the first one alone. If a process fails, its rungs are missing and
    the trace has the problem `rung-failed`. Ctrl-C ends the measurement with the runs complete so
    far, and the problem `interrupted`.

    Where parents are ambiguous, or on request, one more process visits the whole ladder
    serialised: the host waits for each kernel, and libraries use one thread. Its runs
    resolve ambiguous parents where they can, and give the attribute `serialised_ns`.
    Serialised runs have not been tried on a GPU.

    The trace's origin is that of this process: the measurement began here, inside the
    caller's span. Spans that the target opens while it is loaded do not change the origin.

    Args:
        spec: The target.
        settings: How to measure; the budget is divided over the processes, from their first
            calls on: importing and loading come on top. A serialised process has twice a
            rung's part; if it was not asked for, in addition to the budget.
        progress: As for `xsp.measure`.
        serialised: Whether to make serialised runs even where nothing is ambiguous.
        ending: What waits, when it is closed, for the processes to end, which takes those with
            PyTorch a second or two; None: that is waited for here.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised on every rung, or while it was loaded.
        MeasurementError: No rung could be measured.
        KeyboardInterrupt: Interrupted before the first rung was complete.
    """
    # Before any process starts, so that the trace begins where the caller began.
    began = origin(SystemClock())
    with nullcontext(ending) if ending else ExitStack() as stack:
        with (
            exported(spec) as runnable,
            progress_bar(progress, f"measuring {spec.name}") as report,
        ):
            outcomes = _measure(runnable, settings, stack, report, serialised=serialised)
        if not outcomes.measured:
            raise KeyboardInterrupt if outcomes.interrupted else _total_failure(outcomes.failures)
        processes = [replace(runs, origin=began) for runs in outcomes.measured]
        serial = outcomes.serialised if isinstance(outcomes.serialised, ProcessRuns) else None
        trace = build_trace(processes, settings, serial, problems=_problems(outcomes))
        return _with_settings(trace, spec)


def measure_here(
    spec: Spec,
    settings: Settings,
    progress: bool | Progress | None = None,
    *,
    look: Callable[[Subject], Iterable[Problem]] | None = None,
) -> Trace:
    """Measure a target in this process, on every rung, and return its trace.

    Ctrl-C ends the measurement after the visit under way, with the runs complete so far.

    Args:
        spec: The target.
        settings: How to measure.
        progress: As for `xsp.measure`.
        look: Called with the target once it is loaded and before it is measured; what it finds
            becomes problems of the trace.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: The target cannot be measured on this machine.
        KeyboardInterrupt: Interrupted before the first evaluation had ended, or twice.
    """
    with (
        exported(spec) as runnable,
        progress_bar(progress, f"measuring {spec.name}") as bar,
        _interruptible(bar) as report,
    ):
        found: list[Problem] = []

        def work() -> ProcessRuns:
            subject = resolve(runnable)
            found.extend(look(subject) if look else ())
            return measure_subject(subject, settings, None, report)

        outcome = attempt(work, early=True)
    if isinstance(outcome, Failure):
        raise outcome.error()
    if report.interrupted and not _has_spans(outcome):
        raise KeyboardInterrupt
    problems = found + _problems(_Outcomes(interrupted=report.interrupted))
    return _with_settings(build_trace([outcome], settings, problems=problems), spec)


class _InterruptibleProgress:
    """A progress function that ends the measurement once Ctrl-C has been pressed."""

    def __init__(self, report: Progress) -> None:
        self.interrupted = False
        self._report = report

    def __call__(self, fraction: float) -> None:
        self._report(fraction)
        if self.interrupted:
            raise Enough

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal of Ctrl-C: note the first one, raise at the second."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True


@contextmanager
def _interruptible(report: Progress) -> Iterator[_InterruptibleProgress]:
    interruptible = _InterruptibleProgress(report)
    if threading.current_thread() is not threading.main_thread():
        yield interruptible  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGINT, interruptible.interrupt)
    try:
        yield interruptible
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """The runs or failures of all processes of a measurement.

    Attributes:
        rungs: Runs or failure of each process, by the names of its rungs with commas between;
            of a second process with these rungs with a number besides.
        serialised: Runs or failure of the serialised process; None if there was none.
        interrupted: Whether Ctrl-C ended the measurement.
        complete: Whether all rungs were complete when Ctrl-C ended the measurement.
    """

    rungs: Mapping[str, ProcessRuns | Failure] = field(default_factory=dict)
    serialised: ProcessRuns | Failure | None = None
    interrupted: bool = False
    complete: bool = False

    @property
    def measured(self) -> list[ProcessRuns]:
        """The runs of the rungs' processes, where a process has runs with spans."""
        processes = [runs for runs in self.rungs.values() if isinstance(runs, ProcessRuns)]
        return [runs for runs in processes if _has_spans(runs)]

    @property
    def failures(self) -> dict[str, Failure]:
        """The failures of the rungs' processes, by the names of their rungs."""
        return {rung: end for rung, end in self.rungs.items() if isinstance(end, Failure)}

    @property
    def ambiguous(self) -> bool:
        """Whether any row has an ambiguous parent."""
        return any(count.code in AMBIGUITIES for runs in self.measured for count in runs.counts)


def _measure(
    spec: Spec, settings: Settings, stack: ExitStack, report: Progress, *, serialised: bool
) -> _Outcomes:
    """Measure every rung, and serialised if asked for or if parents are ambiguous."""
    folder = stack.enter_context(_folder())
    workers = stack.enter_context(ExitStack())
    # At once, for it imports xsp while the work is divided, for which providers are imported.
    first = workers.enter_context(open_worker(folder / "0"))
    jobs = divide(spec, settings, serialised=serialised)
    # Fraction of the work before the serialised process; an unplanned one sets progress back.
    part = len(jobs) / (len(jobs) + 1)
    rotation = Rotation(
        [first], len(jobs), lambda done: report(part * done if serialised else done)
    )
    outcomes = _climb(jobs, folder, workers, rotation)
    if outcomes.interrupted or not outcomes.measured or not (serialised or outcomes.ambiguous):
        return outcomes
    most = serialised_budget_s(jobs)
    try:
        workers.close()  # whatever is ending would disturb what comes
        serial = _serialised(
            Job(spec, replace(settings, budget_s=most), None, SERIALISED),
            folder,
            workers,
            lambda done: report(part + (1 - part) * done),
        )
    except KeyboardInterrupt:
        workers.close()
        return replace(outcomes, interrupted=True, complete=True)
    return replace(outcomes, serialised=serial)


def _climb(jobs: Sequence[Job], folder: Path, stack: ExitStack, rotation: Rotation) -> _Outcomes:
    """Carry out the jobs of all rungs, and return the outcomes of their processes."""
    workers, interrupted = rotation.workers, False
    try:
        take_turns(jobs, folder, rotation, stack)
    except KeyboardInterrupt:
        interrupted = True
        for worker in workers:
            if worker.loaded:
                worker.stop()
            else:
                worker.end()
        for worker in workers:
            worker.wait()
        workers = [worker for worker in workers if worker.loaded]
    outcomes = {worker.name: worker.outcome() for worker in workers}
    return _Outcomes(outcomes, interrupted=interrupted)


def _serialised(
    job: Job, folder: Path, stack: ExitStack, report: Progress
) -> ProcessRuns | Failure:
    """Carry out the serialised job, and return the outcome of its process."""
    worker = stack.enter_context(open_worker(folder / "serialised", job.environment))
    worker.take(job)
    worker.listen()
    while worker.turn():
        report(worker.fraction)
    outcome = worker.outcome()
    report(1.0)
    if isinstance(outcome, ProcessRuns) and not _has_spans(outcome):
        return Failure("measurement", "not a single evaluation of it was complete")
    return outcome


def _with_settings(trace: Trace, spec: Spec) -> Trace:
    """Return a trace whose metadata say with what settings its target ran."""
    metadata = {**trace.metadata, "settings": spec.settings}
    return Trace(trace.spans, metadata, trace.typical_runs)


def _has_spans(process: ProcessRuns) -> bool:
    return any(run.rows is not None for run in process.runs)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xsp-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _total_failure(failures: dict[str, Failure]) -> Exception:
    """Return the exception for a measurement in which no rung has runs."""
    if not failures:
        return MeasurementError("there is no rung that could be measured here: see `xsp doctor`")
    rung, failure = next(iter(failures.items()))
    if failure.cause == "target":
        return failure.error()
    return MeasurementError(
        f"no rung could be measured; on the first ({rung}): {failure.message}",
        out_of_memory=failure.out_of_memory,
    )


def _problems(outcomes: _Outcomes) -> list[Problem]:
    problems = [_failed(name, failure, outcomes) for name, failure in outcomes.failures.items()]
    if isinstance(outcomes.serialised, Failure):
        sentence = f"the serialised run is missing: {outcomes.serialised.message}"
        problems.append(Problem("serialised-failed", sentence))
    if outcomes.interrupted:
        sentence = "the measurement was interrupted: latencies rest on fewer runs than planned"
        if outcomes.complete:
            sentence = "the serialised run was interrupted, and is left out"
        problems.append(Problem(INTERRUPTED, sentence))
    return problems


def _failed(name: str, failure: Failure, outcomes: _Outcomes) -> Problem:
    """Return the problem that a process failed: its rungs are missing, or have one process less."""
    rungs = name.split(maxsplit=1)[0]
    others = [n for n in outcomes.rungs if n.split()[0] == rungs and n not in outcomes.failures]
    *most, last = rungs.split(",")
    said = f"{', '.join(most)} and {last} rungs" if most else f"{last} rung"
    if not others:
        verb = "are" if most else "is"
        return Problem("rung-failed", f"the {said} {verb} missing: {failure.message}")
    return Problem(
        "process-failed",
        f"one of {len(others) + 1} processes of the {said} failed, and is not compared with "
        f"the others: {failure.message}",
    )
