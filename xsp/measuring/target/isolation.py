"""Measures a target in several processes that take turns.

Processes of one program differ in speed, and only several of them tell by how much. Each measures
the whole ladder, a round at its turn, so that drift of the machine hits all alike.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from xsp.clock import SystemClock
from xsp.errors import MeasurementError
from xsp.measuring.target.examination import exported
from xsp.measuring.target.spec import Spec
from xsp.measuring.target.worker import PART, WHOLE, Failure, Worker
from xsp.progress import Display, Progress, progress_bar, status_line
from xsp.reading.runs import ProcessRuns, build_trace
from xsp.record.session import Settings, check_energy
from xsp.trace import Trace
from xsp.trace_context import origin
from xsp.warning import INTERRUPTED, TraceWarning

_PROCESSES = 3  # with fewer, Student's factor makes any difference between them an abyss
_FEWEST_ROUNDS = 3  # by fewer the processes could not be compared; and one more to warm up
_MEMORY_FRACTION = 0.8  # of the free memory that several processes may fill
_NOTHING = "there is nothing that could be measured here: see `xsp doctor`"


def measure_isolated(
    spec: Spec,
    settings: Settings,
    progress: bool | Progress | None = None,
    *,
    synchronous: bool = False,
    ending: ExitStack | None = None,
) -> Trace:
    """Measure a target in fresh processes, and return its trace.

    Three processes import libraries side by side, and then take turns, round by round. Where
    memory has no room for all of them, or on a device, they measure one after the other. A model so
    slow that the budget has no room to compare processes is measured in the first one alone. If a
    process fails, its runs are missing and the trace has the warning `process-failed`. Ctrl-C ends
    the measurement with the runs complete so far, and the warning `interrupted`.

    On request one more process measures synchronously: the host waits for each kernel, and
    libraries use one thread. Its runs tell the parents of ambiguous rows where they can, and give
    the attribute `synchronous_ns`. That has not been tried on a GPU.

    The trace's origin is that of this process: the measurement began here, inside the
    caller's span. Spans that the target opens while it is loaded do not change the origin.

    Args:
        spec: The target.
        settings: How to measure; the budget is divided over the processes, from their first
            calls on: importing and loading come on top.
        progress: As for `xsp.measure`.
        synchronous: Whether to measure synchronously as well.
        ending: What waits, when it is closed, for the processes to end, which takes those with
            PyTorch a second or two; None: that is waited for here.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised in every process, or while it was loaded.
        MeasurementError: The target could not be measured.
        KeyboardInterrupt: Interrupted before anything was complete.
    """
    if settings.energy:
        check_energy()
    # Before any process starts, so that the trace begins where the caller began.
    began = origin(SystemClock())
    with nullcontext(ending) if ending else ExitStack() as stack:
        with (
            exported(spec) as runnable,
            progress_bar(progress, spec.name) as report,
        ):
            processes, waiting, warnings = _measure(
                runnable, settings, stack, report, synchronous=synchronous
            )
        processes = [replace(runs, origin=began) for runs in processes]
        with status_line(progress, f"merging the runs of {spec.name}"):
            trace = build_trace(processes, settings, waiting, warnings=warnings)
        metadata = {**trace.metadata, "settings": spec.settings}
        return trace.replaced(metadata=metadata)


def _measure(
    spec: Spec, settings: Settings, stack: ExitStack, report: Display, *, synchronous: bool
) -> tuple[list[ProcessRuns], ProcessRuns | None, list[TraceWarning]]:
    """Return the runs of all processes, those of the synchronous one, and what went wrong."""
    temporary = tempfile.TemporaryDirectory(prefix="xsp-", ignore_cleanup_errors=True)
    folder, running = Path(stack.enter_context(temporary)), stack.enter_context(ExitStack())
    share = _PROCESSES / (_PROCESSES + synchronous)
    alone = replace(settings, budget_s=settings.budget_s * share)

    def start(name: str, settings: Settings, **options: Any) -> Worker:
        return running.enter_context(closing(Worker(folder / name, spec, settings, **options)))

    report.say(f"starting {_PROCESSES} processes, loading {spec.source or spec.target}")
    unread = replace(alone, monitor=False, energy=False)  # one process is enough for readings
    workers = [
        start(str(number), unread if number else alone, part=1 / _PROCESSES)
        for number in range(_PROCESSES)
    ]
    interrupted = False
    try:
        on_host = (spec.device or "cpu") == "cpu"
        _take_turns(workers, alone, on_host, report, share)
    except KeyboardInterrupt:
        interrupted = True
        _stop(workers)
    outcomes = [worker.outcome() for worker in workers if worker.loaded]
    measured = [each for each in outcomes if isinstance(each, ProcessRuns) and each.has_spans]
    failures = [each for each in outcomes if isinstance(each, Failure)]
    if not measured:
        if failures and not interrupted:
            raise failures[0].error()
        raise KeyboardInterrupt if interrupted else MeasurementError(_NOTHING)
    warnings = [
        TraceWarning(
            "process-failed",
            f"one of {len(outcomes)} processes failed; error bars are wider without it: "
            f"{each.message}",
        )
        for each in failures
    ]
    if interrupted:
        warnings.insert(0, INTERRUPTED)
    told: ProcessRuns | TraceWarning | None = None
    if synchronous and not interrupted:
        rest = replace(unread, budget_s=settings.budget_s * (1 - share))

        def begin() -> Worker:
            running.close()  # whatever is ending would disturb what comes
            return start("synchronous", rest, synchronous=True)

        told = _synchronous(begin, report, share)
    if isinstance(told, TraceWarning):
        running.close()
        return measured, None, [*warnings, told]
    return measured, told, warnings


def _synchronous(
    begin: Callable[[], Worker], report: Display, share: float
) -> ProcessRuns | TraceWarning:
    """Return the runs in which the host waited for each kernel, or why there are none."""
    report.say("synchronous pass")
    try:
        worker = begin()
        worker.heard = lambda: report(share + (1 - share) * worker.fraction)
        _finish([worker])
    except KeyboardInterrupt:
        sentence = "the synchronous pass was interrupted and is missing; all other times are right."
        return TraceWarning(INTERRUPTED.code, sentence)
    outcome = worker.outcome()
    if isinstance(outcome, ProcessRuns):
        return outcome
    sentence = f"the synchronous pass failed: {outcome.message}. All other times are right."
    return TraceWarning("synchronous-failed", sentence)


def _take_turns(
    workers: list[Worker], settings: Settings, on_host: bool, report: Display, share: float
) -> None:
    """Let workers measure, and interpret their runs; leave those in the list that did.

    While anything is measured one process works at a time, and none is ending. All together they
    are `share` of the work that is reported.

    Raises:
        XspError: The target cannot be loaded or called: the other workers would fail alike.
    """
    for worker in workers:
        worker.heard = lambda: report(share * sum(each.fraction for each in workers) / len(workers))
    first, *others = workers
    first.budget = WHOLE
    first.load()
    first.listen()
    for worker in others:
        worker.await_imports()  # which would disturb the first one's round
    report.say("warming up")
    first.turn()
    report.say("measuring")
    began = time.monotonic()
    first.turn()
    round_s = time.monotonic() - began
    if not first.running and isinstance(failure := first.outcome(), Failure):
        raise failure.error()
    rounds = 1 + min(settings.runs or _FEWEST_ROUNDS, _FEWEST_ROUNDS)
    if round_s * rounds * len(workers) > settings.budget_s:
        for worker in others:
            worker.end()
        workers[:] = [first]
        _finish(workers)
        return
    first.budget = PART
    room = psutil.virtual_memory().available * _MEMORY_FRACTION
    if on_host and len(others) * first.memory_bytes < room:
        _finish(workers)
    else:  # on one device they would disturb each other, and share its memory
        for worker in workers:
            _finish([worker])
            worker.await_end()


def _finish(workers: Sequence[Worker]) -> None:
    """Give workers turns until all have measured; then have them interpret their runs."""
    new = [worker for worker in workers if not worker.loaded]
    for worker in new:
        worker.load()
    for worker in new:
        worker.listen()
    # What is complete waits until all are, so that no interpretation disturbs a round.
    while measuring := [worker for worker in workers if worker.measuring]:
        for worker in measuring:
            worker.turn()
            worker.await_end()  # one that failed, which would disturb the others
    for worker in workers:
        worker.begin()
    for worker in workers:
        while worker.running:
            worker.listen()


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        if worker.loaded:
            worker.stop()
        else:
            worker.end()
    for worker in workers:
        worker.wait()
