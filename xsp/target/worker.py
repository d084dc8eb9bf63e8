"""A process that measures one rung, or all of them, when it is its turn: both ends of it.

`Worker` is the parent's end; `main` is what the process runs
(`python -m xsp.target JOB FOLDER`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from xsp.errors import (
    MeasurementError,
    TargetFailedError,
    TraceFormatError,
    UnknownTargetError,
    XspError,
)
from xsp.measurement import Collected, Enough, Progress, collected_by, visit_all
from xsp.session import THREAD_NUMBERS, Settings
from xsp.target.script import without_own_frames
from xsp.target.spec import Spec, Subject, resolve

# One that has told nothing for so long hangs: no evaluation takes ten minutes.
SILENCE_S = 600.0

_BLOCKING = "CUDA_LAUNCH_BLOCKING"

# In a process that has these the host waits for each kernel, and libraries use one thread.
SERIALISED = dict.fromkeys((_BLOCKING, *THREAD_NUMBERS), "1")

_JOB, _FAILURE, _OUTPUT, _RUNS = "job.json", "failure.json", "output.txt", "runs"
_LAST_LINES = 8
_GO, _STOP = b"g", b"s"
_PATIENCE_S = 5.0  # for one that saves what it has
_GRACE_S = 2.0  # for one that is told to end


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a child has nothing to give.

    Attributes:
        cause: `usage`: there is no such target; `measurement`: it cannot be
            measured here; `target`: it raised; `died`: the process ended.
        message: What happened.
        traceback: The target's traceback, if it raised.
        early: Whether it happened before the measurement, and so would again.
    """

    cause: Literal["usage", "measurement", "target", "died"]
    message: str
    traceback: str = ""
    early: bool = False

    def error(self) -> Exception:
        """Return it as the exception that the parent raises."""
        if self.cause == "usage":
            return UnknownTargetError(self.message)
        if self.cause == "target":
            return TargetFailedError(self.message, self.traceback)
        return MeasurementError(self.message)


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker measures.

    Attributes:
        spec: The target.
        settings: How to measure it.
        rung: Name of the rung; None for the whole ladder.
        environment: Variables that its process has besides ours.
    """

    spec: Spec
    settings: Settings
    rung: str | None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def serial(self) -> bool:
        """Whether the host waits for each kernel, because we have it so."""
        return self.environment.get(_BLOCKING) == "1"

    def save(self, path: Path, speak: int, wait: int) -> None:
        """Write it, with the descriptors to speak and to wait on."""
        job: dict[str, Any] = {"spec": self.spec.to_json(), "settings": self.settings.to_json()}
        rungs = None if self.rung is None else [self.rung]
        job |= {"rungs": rungs, "serial": self.serial, "speak": speak, "wait": wait}
        path.write_text(json.dumps(job), encoding="utf-8")


class Worker:
    """A process that measures, and works only when it is its turn.

    It says how far it is after every visit, and then waits for one byte: `_GO`, or
    `_STOP` to save what there is and end.

    Args:
        job: What it measures.
        folder: Where it leaves its runs, or why there are none.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.fraction = 0.0
        self._folder = folder
        self._silent = False
        folder.mkdir()
        self._listen, speak = os.pipe()
        wait, self._ask = os.pipe()
        job.save(folder / _JOB, speak, wait)
        self._process = _start(folder, speak, wait, job.environment)
        os.close(speak)
        os.close(wait)

    @property
    def failed_early(self) -> Failure | None:
        """Why it ended before it measured anything, if any other child would too."""
        outcome = self.outcome() if self._process.poll() is not None else None
        return outcome if isinstance(outcome, Failure) and outcome.early else None

    def turn(self) -> bool:
        """Let it make one visit; return whether it still runs."""
        if self._process.poll() is None and not self._silent:
            with suppress(BrokenPipeError):
                os.write(self._ask, _GO)
            self.hear()
        return self._process.poll() is None

    def hear(self) -> None:
        """Wait until it says how far it is, or ends, or has been silent for too long."""
        heard = time.monotonic()
        while self._process.poll() is None:
            if select.select([self._listen], [], [], 0.25)[0]:
                said = os.read(self._listen, 4096)
                if said:
                    with suppress(ValueError):
                        self.fraction = float(said.split()[-1])
                    return
                with suppress(subprocess.TimeoutExpired):  # closed: it is about to end
                    self._process.wait(0.25)
            elif time.monotonic() - heard > SILENCE_S:
                self._silent = True
                self.end()
        self.fraction = 1.0

    def stop(self) -> None:
        """Have it save what there is when its visit is over, and end."""
        with suppress(BrokenPipeError):
            os.write(self._ask, _STOP)

    def wait(self) -> None:
        """Wait until it has ended, but not for long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S)

    @property
    def memory_bytes(self) -> int:
        """Memory that its process has in use; 0 if it has ended."""
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def outcome(self) -> Collected | Failure:
        """Return what it collected, or why it has nothing to give."""
        folder = self._folder
        if (folder / _FAILURE).exists():
            return Failure(**json.loads((folder / _FAILURE).read_text(encoding="utf-8")))
        if self._silent:
            return Failure("died", f"its process said nothing for {SILENCE_S:.0f} s and was ended")
        code = self._process.poll()
        if code:
            return Failure("died", f"its process {_ended(code)}{_last_lines(folder / _OUTPUT)}")
        try:
            return Collected.load(folder / _RUNS)
        except TraceFormatError as error:
            return Failure("died", f"its process left no result: {error}")

    def end(self) -> None:
        """End it, if it still runs, with every process that it started."""
        helpers: set[psutil.Process] = set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            helpers |= _helpers(self._process.pid)
            self._process.send_signal(number)
            for helper in helpers:
                with suppress(psutil.Error):
                    helper.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            _, left = psutil.wait_procs(helpers, _GRACE_S)
            helpers = set(left)

    def close(self) -> None:
        """End it, and close the pipes to it."""
        self.end()
        os.close(self._listen)
        os.close(self._ask)


def _helpers(leader: int) -> set[psutil.Process]:
    """Return what descends from a process, or is in the session that it began.

    Of a process that has ended only the session remains: its children are others' by now.
    """
    found: set[psutil.Process] = set()
    with suppress(psutil.Error):
        found.update(psutil.Process(leader).children(recursive=True))
    for number in psutil.pids():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if number != leader and os.getsid(number) == leader:
                found.add(psutil.Process(number))
    return found


def _start(
    folder: Path, speak: int, wait: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # -P: a torch.py that happens to lie in the working directory must not be imported.
    command = [sys.executable, "-P", "-m", "xsp.target", str(folder / _JOB), str(folder)]
    with (folder / _OUTPUT).open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            pass_fds=(speak, wait),
            start_new_session=True,  # Ctrl-C reaches the parent, which ends the child
        )


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{why}"


def _last_lines(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return ": " + "\n".join(lines[-_LAST_LINES:]) if lines else ""


def main(job_path: str, directory: str) -> int:
    """Measure what the job says, as the process of a `Worker`.

    Args:
        job_path: The job that the parent wrote.
        directory: Where to leave the runs, or why there are none.

    Returns:
        The exit code: 0, or 1 if it could not be measured.
    """
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    for descriptor in (job["speak"], job["wait"]):
        os.set_inheritable(descriptor, False)
    folder = Path(directory)
    outcome = attempt(lambda: resolve(Spec.from_json(job["spec"])), early=True)
    if isinstance(outcome, Subject):
        subject = outcome
        outcome = attempt(lambda: _collected(subject, job), early=False)
    if isinstance(outcome, Failure):
        (folder / _FAILURE).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        return 1
    outcome.save(folder / _RUNS)
    return 0


def _collected(subject: Subject, job: dict[str, Any]) -> Collected:
    def tell(fraction: float) -> None:
        os.write(job["speak"], f"{fraction:.4f}\n".encode())
        if os.read(job["wait"], 1) != _GO:  # told to stop, or the parent is gone
            raise Enough

    try:
        tell(0.0)  # the target is there
    except Enough:
        return Collected((), (), subject.name, {})
    settings = Settings.from_json(job["settings"])
    return collect_subject(subject, settings, job["rungs"], tell, serial=job["serial"])


def collect_subject(
    subject: Subject,
    settings: Settings,
    rungs: Sequence[str] | None,
    progress: bool | Progress | None,
    *,
    serial: bool = False,
) -> Collected:
    """Measure a resolved target in this process.

    Args:
        subject: The target.
        settings: How to measure it.
        rungs: Names of the rungs to run beside the bare one; None for all.
        progress: As for `xsp.measure`.
        serial: Whether the host waits for each kernel in this process.
    """
    with subject.mode():
        measured = visit_all(
            subject.function, subject.args, settings=settings, rungs=rungs, progress=progress
        )
        return collected_by(*measured, serial=serial)


def attempt(work: Callable[[], Any], *, early: bool) -> Any:
    """Return what `work` returns, or the `Failure` that its exception means.

    Args:
        work: Resolves a target, or measures one.
        early: Whether it comes before the measurement.
    """
    try:
        return work()
    except UnknownTargetError as error:
        return Failure("usage", str(error), early=True)
    except XspError as error:
        return Failure("measurement", str(error), early=early)
    except Exception as error:  # noqa: BLE001  the target may raise anything
        error.__traceback__ = without_own_frames(error.__traceback__)
        said = "".join(traceback.format_exception(error))
        message = "".join(traceback.format_exception_only(error)).strip()
        return Failure("target", f"the target raised {message}", said, early=early)
