"""The part of a worker's process: a job in, the runs or the failure of the process out.

`main` is what the process of a `Worker` runs; `measure_subject` and `attempt` serve whoever
measures a target in this process.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xsp.errors import UnknownTargetError, XspError
from xsp.evaluation import Rung
from xsp.garbage import uncollected
from xsp.measurement import Enough, ProcessRuns, Progress, interpret_session, visit_all
from xsp.provider import ModelCall
from xsp.session import PlannedVisit, Session, Settings, Visit, installed_providers, select
from xsp.target.resolution import prepare, resolve
from xsp.target.script import without_own_frames
from xsp.target.spec import Spec, Subject
from xsp.target.worker import AGAIN, ALONE, FAILURE, GO, JOB, RUNS, Failure


def main(directory: str, speak: int, wait: int) -> int:
    """Measure what a job says, as the process of a `Worker`.

    Args:
        directory: Folder for the job, and for the runs or the failure.
        speak: The end of a pipe to which progress is written.
        wait: The end of a pipe from which turns are read; the first one says that the job is there.

    Returns:
        The exit code: 0, or 1 after a failure.
    """
    for descriptor in (speak, wait):
        # Processes that the target starts must not keep the pipes open.
        os.set_inheritable(descriptor, False)
    installed_providers()  # which imports them: the parent process is still dividing the work
    if not os.read(wait, 1):
        return 1
    folder = Path(directory)
    outcome = _Part(json.loads((folder / JOB).read_text(encoding="utf-8")), speak, wait).play()
    unfinished, name = folder / "unfinished", RUNS
    if isinstance(outcome, Failure):
        name = FAILURE
        unfinished.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    else:
        outcome.save(unfinished)
    # What has its name is whole: the parent process reads it, and does not wait for this one's
    # end. Python needs a second or two to take PyTorch's modules apart.
    unfinished.rename(folder / name)
    os.close(speak)
    return int(name == FAILURE)


class _Part:
    """The part that the process of a `Worker` plays, step by step.

    Args:
        job: The job as `Job.save` wrote it.
        speak: As for `main`.
        wait: As for `main`.
    """

    def __init__(self, job: dict[str, Any], speak: int, wait: int) -> None:
        self._job, self._speak, self._wait = job, speak, wait
        self._spec = Spec.from_json(job["spec"])

    def play(self) -> ProcessRuns | Failure:
        """Load the target and measure it; a process told to stop before has no runs."""
        try:
            subject = attempt(self._load, early=True)
            if isinstance(subject, Failure):
                return subject
            tried = attempt(lambda: self._try(subject), early=True)
            if isinstance(tried, Failure):
                return tried
            measured: ProcessRuns | Failure
            measured = attempt(lambda: self._measure(subject, *tried), early=False)
        except _Stopped:
            return ProcessRuns((), (), self._spec.name, {})
        return measured

    def _load(self) -> Subject:
        prepare(self._spec)
        self._step()
        return resolve(self._spec)

    def _try(self, subject: Subject) -> tuple[bytes, Visit | None]:
        """Make trial calls where the job wants them; return what comes next, and the last one."""
        told, alone = self._step(), self._job["alone"]
        if not alone:
            return told, None
        session = Session(select(Settings.from_json(alone).levels).providers)
        call = ModelCall(subject.function, subject.args, subject.kwargs, name=subject.name)
        trials = True
        while trials:
            with subject.mode():
                session.visit(PlannedVisit(Rung(frozenset()), round=0), call)
            told = self._step()
            trials = told == AGAIN
        return told, session.visits[-1]

    def _measure(self, subject: Subject, told: bytes, trial: Visit | None) -> ProcessRuns:
        report, serial = self._report, self._job["serial"]
        if told == ALONE:
            settings = Settings.from_json(self._job["alone"])
            return measure_subject(subject, settings, None, report, trial=trial)
        settings = Settings.from_json(self._job["settings"])
        return measure_subject(subject, settings, self._job["rungs"], report, serial=serial)

    def _step(self, fraction: float = 0.0) -> bytes:
        """Report the fraction done, and return what the parent process then says.

        Raises:
            _Stopped: The process is to stop, or the parent process has ended.
        """
        os.write(self._speak, f"{fraction:.4f}\n".encode())
        told = os.read(self._wait, 1)
        if told not in (GO, AGAIN, ALONE):
            raise _Stopped
        return told

    def _report(self, fraction: float) -> None:
        try:
            self._step(fraction)
        except _Stopped:
            raise Enough from None


class _Stopped(BaseException):  # no `Exception`: it must pass through what a target raises
    """The process is to stop."""


def measure_subject(
    subject: Subject,
    settings: Settings,
    rungs: Sequence[str] | None,
    progress: bool | Progress | None,
    *,
    serial: bool = False,
    trial: Visit | None = None,
) -> ProcessRuns:
    """Measure a subject in this process, and return its runs.

    Args:
        subject: The subject that the target names.
        settings: How to measure the subject.
        rungs: Names of the rungs to visit beside the bare rung; None for all.
        progress: As for `xsp.measure`.
        serial: Whether the host waits for each kernel in this process.
        trial: As for `visit_all`.
    """
    with subject.mode():
        visited = visit_all(
            subject.function,
            subject.args,
            subject.kwargs,
            settings=settings,
            rungs=rungs,
            progress=progress,
            trial=trial,
        )
        with uncollected():
            return interpret_session(*visited, serial=serial)


def attempt(work: Callable[[], Any], *, early: bool) -> Any:
    """Return what `work` returns, or the `Failure` that its exception means.

    Args:
        work: Function that resolves or measures a target.
        early: Whether `work` comes before the measurement.
    """
    try:
        return work()
    except UnknownTargetError as error:
        return Failure("usage", str(error), early=True)
    except XspError as error:
        return Failure("measurement", str(error), early=early, out_of_memory=is_of_memory(error))
    except Exception as error:  # noqa: BLE001  the target may raise anything
        error.__traceback__ = without_own_frames(error.__traceback__)
        text = "".join(traceback.format_exception(error))
        message = "".join(traceback.format_exception_only(error)).strip()
        said = f"the target raised {message}"
        return Failure("target", said, text, early=early, out_of_memory=is_of_memory(error))


# What PyTorch says in a plain RuntimeError: on the CPU, and where a CUDA library had no room.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "ALLOC_FAILED", "CUDA out of memory")


def is_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory did not suffice.

    >>> is_of_memory(MemoryError()), is_of_memory(RuntimeError("shapes do not match"))
    (True, False)
    >>> is_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    if isinstance(error, MemoryError) or getattr(error, "out_of_memory", False):
        return True
    if type(error).__name__ == "OutOfMemoryError":  # of torch, torch.cuda, tensorflow
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
