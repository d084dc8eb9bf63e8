"""Measures a target in the worker's process, and leaves its runs or its failure in a file.

`main` is what the process of a `Worker` runs; `measure_subject` and `attempt` serve whoever
measures a target in this process.
"""

from __future__ import annotations

import json
import os
import select
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from xsp.errors import UnknownTargetError, XspError
from xsp.garbage import uncollected
from xsp.measuring.call import interpret_session, visit_all
from xsp.measuring.target.resolution import prepare, resolve
from xsp.measuring.target.script import without_own_frames
from xsp.measuring.target.spec import Spec, Subject
from xsp.measuring.target.worker import FAILURE, JOB, PART, RUNS, TURN_OVER, WHOLE, Failure
from xsp.progress import Progress, StopMeasurement
from xsp.reading.runs import ProcessRuns
from xsp.record.session import Plan, Settings, installed_providers


def main(directory: str, speak: int, wait: int) -> int:
    """Measure what a job says, as the process of a `Worker`.

    Args:
        directory: Folder with the job, for the runs or the failure.
        speak: The end of a pipe to which progress is written.
        wait: The end of a pipe from which turns are read.

    Returns:
        The exit code: 0, or 1 after a failure.
    """
    for descriptor in (speak, wait):
        # Processes that the target starts must not keep the pipes open.
        os.set_inheritable(descriptor, False)
    folder = Path(directory)
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    outcome = attempt(partial(_measured, job, _Turns(speak, wait)))
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


class _Turns:
    """The turns of this process, which the parent process gives."""

    def __init__(self, speak: int, wait: int) -> None:
        self._speak, self._wait = speak, wait
        self._fraction = 0.0

    def report(self, fraction: float) -> None:
        """Tell the fraction done, after each visit."""
        self._fraction = fraction
        os.write(self._speak, f"{fraction:.4f}\n".encode())
        if select.select([self._wait], [], [], 0)[0]:  # told to stop amid its turn
            raise StopMeasurement

    def end(self) -> bytes:
        """Wait for the next turn, and return what the process is told.

        Raises:
            StopMeasurement: The process is to stop, or the parent process has ended.
        """
        os.write(self._speak, f"{self._fraction:.4f}".encode() + TURN_OVER)
        told = os.read(self._wait, 1)
        if told not in (PART, WHOLE):
            raise StopMeasurement
        return told


def _measured(job: dict[str, Any], turns: _Turns) -> ProcessRuns:
    spec, alone = Spec.from_json(job["spec"]), Settings.from_json(job["settings"])
    among_others = replace(alone, budget_s=alone.budget_s * job["part"])
    installed_providers()
    prepare(spec)

    def turn(plan: Plan) -> None:
        plan.settings = alone if turns.end() == WHOLE else among_others

    try:
        turns.end()
        subject = resolve(spec)
        turns.end()
    except StopMeasurement:
        return ProcessRuns((), (), spec.name, {})
    return measure_subject(subject, alone, turns.report, turn=turn, synchronous=job["synchronous"])


def measure_subject(
    subject: Subject,
    settings: Settings,
    progress: bool | Progress | None,
    *,
    turn: Callable[[Plan], None] | None = None,
    synchronous: bool = False,
) -> ProcessRuns:
    """Measure a subject in this process, and return its runs.

    Args:
        subject: The subject that the target names.
        settings: How to measure the subject.
        progress: As for `xsp.measure`.
        turn: As for `visit_all`.
        synchronous: Whether the host waits for each kernel in this process.
    """
    with subject.mode():
        visited = visit_all(
            subject.function,
            subject.args,
            subject.kwargs,
            settings=settings,
            progress=progress,
            turn=turn,
        )
        with uncollected():
            return interpret_session(*visited, synchronous=synchronous)


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or the `Failure` that its exception means."""
    try:
        return work()
    except UnknownTargetError as error:
        return Failure("usage", str(error))
    except XspError as error:
        return Failure("measurement", str(error), out_of_memory=is_of_memory(error))
    except Exception as error:  # noqa: BLE001  the target may raise anything
        error.__traceback__ = without_own_frames(error.__traceback__)
        text = "".join(traceback.format_exception(error))
        message = "".join(traceback.format_exception_only(error)).strip()
        said = f"the target raised {message}"
        return Failure("target", said, text, out_of_memory=is_of_memory(error))


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
