"""Workers: a job in, the runs of a process that measured some rungs or all rungs out.

`Worker` starts the process and gives the process turns; the process runs `part.main`
(`python -m xsp.target FOLDER SPEAK WAIT`). Job, runs and failure are files in the folder; a pipe
carries the progress, another one the turns. Once its runs or its failure are there the worker is
done, and nobody needs to wait for the end of its process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from xsp.errors import MeasurementError, TargetFailedError, TraceFormatError, UnknownTargetError
from xsp.measurement import ProcessRuns
from xsp.session import THREAD_NUMBERS, Settings, peak_memory_bytes
from xsp.target.spec import Spec

# A process that has reported nothing for so long hangs: no evaluation takes ten minutes.
SILENCE_S = 600.0

_BLOCKING = "CUDA_LAUNCH_BLOCKING"

# With these variables the host waits for each kernel, and libraries use one thread.
SERIALISED = dict.fromkeys((_BLOCKING, *THREAD_NUMBERS), "1")

JOB, FAILURE, RUNS = "job.json", "failure.json", "runs"  # what is in the folder of a process
GO, AGAIN, ALONE, STOP = b"g", b"t", b"a", b"s"  # what a process may be told at its turn

_OUTPUT = "output.txt"
_LAST_LINES = 8
_PATIENCE_S = 5.0  # for a process to save its runs
_ENDING_S = 60.0  # for a process to end by itself when it is done
_GRACE_S = 2.0  # for a process to end after a signal


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a process has no runs.

    Attributes:
        cause: `usage`: there is no such target; `measurement`: the target cannot be
            measured here; `target`: the target raised; `died`: the process ended.
        message: What happened, for people.
        traceback: The target's traceback, if the target raised.
        early: Whether the target failed before the measurement, as it would in any process.
        out_of_memory: Whether memory did not suffice, as far as that can be told.
    """

    cause: Literal["usage", "measurement", "target", "died"]
    message: str
    traceback: str = ""
    early: bool = False
    out_of_memory: bool = False

    def error(self) -> Exception:
        """Return the exception that the parent process raises for the failure."""
        if self.cause == "usage":
            return UnknownTargetError(self.message)
        if self.cause == "target":
            return TargetFailedError(self.message, self.traceback, out_of_memory=self.out_of_memory)
        return MeasurementError(self.message, out_of_memory=self.out_of_memory)


@dataclass(frozen=True, slots=True)
class Job:
    """The task of a worker.

    Attributes:
        spec: The target.
        settings: How to measure the target.
        rungs: Names of the rungs; None for the whole ladder.
        environment: Environment variables of the worker's process, beside inherited ones.
        alone: How to measure the whole ladder, if after a trial call the process is told to do
            so (`Worker.turn_alone`); None: there is no trial call.
    """

    spec: Spec
    settings: Settings
    rungs: tuple[str, ...] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    alone: Settings | None = None

    @property
    def serial(self) -> bool:
        """Whether the job makes the host wait for each kernel."""
        return self.environment.get(_BLOCKING) == "1"

    def save(self, path: Path) -> None:
        """Write the job."""
        job: dict[str, Any] = {"spec": self.spec.to_json(), "settings": self.settings.to_json()}
        job["alone"] = None if self.alone is None else self.alone.to_json()
        job |= {"rungs": self.rungs, "serial": self.serial}
        path.write_text(json.dumps(job), encoding="utf-8")


class Worker:
    """A process that does one step at each turn.

    The process imports xsp at once, and the target's libraries when it has its job. Its turns are:
    load the target; where the job wants that, make a trial call, or two; one visit each; save the
    runs and end. After every step the process writes the fraction done, and then reads one byte:
    `GO` for the next step, `STOP` to save its runs and end; after a trial call `AGAIN` for another
    one, or `ALONE` to measure the whole ladder. At last it closes the pipe, and ends as Python
    does.

    Args:
        folder: Folder, not yet made, for the job and for the runs or the failure.
        environment: Environment variables of the process, beside inherited ones.

    Attributes:
        job: The task of the process, once `take` was called.
        name: The name of the worker among others.
        fraction: The fraction done, as the process last wrote it.
        loaded: Whether the process was given its turn to load the target.
    """

    job: Job

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = ""
        self.fraction = 0.0
        self.loaded = False
        self._imported = False
        self._folder = folder
        self._silent = False
        folder.mkdir()
        self._progress_pipe, speak = os.pipe()
        wait, self._turn_pipe = os.pipe()
        self._process = _start(folder, speak, wait, environment or {})
        # The process has these ends of its own; open here, they would hide that it ended.
        os.close(speak)
        os.close(wait)

    @property
    def failed_early(self) -> Failure | None:
        """The failure of a process that failed as any other process would; None otherwise."""
        outcome = None if self.running else self.outcome()
        return outcome if isinstance(outcome, Failure) and outcome.early else None

    @property
    def running(self) -> bool:
        """Whether the process still works: it has not ended, and is not done."""
        return self._process.poll() is None and not self._done

    @property
    def _done(self) -> bool:
        """Whether the process has left its runs or its failure, whole."""
        return any((self._folder / name).exists() for name in (FAILURE, RUNS))

    def take(self, job: Job, name: str = "") -> None:
        """Give the process its job, and the worker its name, before anything else."""
        self.job, self.name = job, name
        job.save(self._folder / JOB)
        self.begin()

    def begin(self, step: bytes = GO) -> None:
        """Let the process do its next step, and do not wait for it."""
        if self.running and not self._silent:
            with suppress(BrokenPipeError):
                os.write(self._turn_pipe, step)

    def turn(self, step: bytes = GO) -> bool:
        """Let the process do its next step; return whether the process still works."""
        self.begin(step)
        self.listen()
        return self.running

    def await_imports(self) -> None:
        """Wait until the process has imported libraries."""
        if not self._imported:
            self.listen()
            self._imported = True

    def load(self) -> None:
        """Let the process load the target, once its libraries are imported; do not wait for it."""
        self.await_imports()
        self.loaded = True
        self.begin()

    def turn_alone(self) -> bool:
        """As `turn`, after the trial call: from now on the process measures the whole ladder."""
        self.job = replace(self.job, settings=self.job.alone or self.job.settings, rungs=None)
        return self.turn(ALONE)

    def listen(self) -> None:
        """Wait until the process reports its progress, is done, or has been silent too long."""
        begin = time.monotonic()
        while self.running:
            if select.select([self._progress_pipe], [], [], 0.25)[0]:
                lines = os.read(self._progress_pipe, 4096)
                if lines:
                    with suppress(ValueError):
                        self.fraction = float(lines.split()[-1])
                    return
                if self.running:  # a closed pipe: the process is ending
                    self._await_end(0.25)
            elif time.monotonic() - begin > SILENCE_S:
                self._silent = True
                self.end()
        self.fraction = 1.0

    def stop(self) -> None:
        """Have the process save its runs after the visit under way, and end."""
        self.begin(STOP)

    def wait(self) -> None:
        """Wait until the process is done or has ended, at most `_PATIENCE_S`."""
        until = time.monotonic() + _PATIENCE_S
        while self.running and time.monotonic() < until:
            self._await_end(0.05)

    def await_end(self) -> None:
        """If the process is done, let it end by itself, until `_ENDING_S` after it was done."""
        for name in (FAILURE, RUNS):
            with suppress(FileNotFoundError):
                ago_s = time.time() - (self._folder / name).stat().st_mtime
                self._await_end(max(_ENDING_S - ago_s, 0.0))

    def _await_end(self, patience_s: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)

    @property
    def memory_bytes(self) -> int:
        """Most memory that the process had in use; 0 if the process is done or has ended."""
        if not self.running:
            return 0
        with suppress(psutil.Error):
            used = int(psutil.Process(self._process.pid).memory_info().rss)
            # After a call its tensors are free again, and a next call takes them again.
            return max(used, peak_memory_bytes(self._process.pid) or 0)
        return 0

    def outcome(self) -> ProcessRuns | Failure:
        """Return the runs of the process, or why the process has none."""
        folder = self._folder
        if (folder / FAILURE).exists():
            return Failure(**json.loads((folder / FAILURE).read_text(encoding="utf-8")))
        if self._silent:
            return Failure("died", f"its process said nothing for {SILENCE_S:.0f} s and was ended")
        code = self._process.poll()
        if code and not self._done:
            said = f"its process {ending_of(code)}{_last_lines(folder / _OUTPUT)}"
            return Failure("died", said, out_of_memory=code == -signal.SIGKILL)
        try:
            return ProcessRuns.load(folder / RUNS)
        except TraceFormatError as error:
            return Failure("died", f"its process left no result: {error}")

    def end(self) -> None:
        """End the process, if it still runs, and all processes that it started."""
        end_process(self._process)

    def close(self) -> None:
        """End the process, one that is done when it has had the time to; close the pipes."""
        try:
            self.await_end()
        finally:
            self.end()
            os.close(self._progress_pipe)
            os.close(self._turn_pipe)


def end_process(process: subprocess.Popen[bytes], others: Iterable[psutil.Process] = ()) -> None:
    """End a process that leads a session, if it still runs, and all processes that it started.

    Args:
        process: The process.
        others: Processes that are known to come from it, though they may have left its session.
    """
    helpers = set(others)
    # Helpers are looked up anew: a dying process may have started more.
    for number in (signal.SIGTERM, signal.SIGKILL):
        helpers |= _helpers(process.pid)
        process.send_signal(number)
        for helper in helpers:
            with suppress(psutil.Error):
                helper.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        _, left = psutil.wait_procs(helpers, _GRACE_S)
        helpers = set(left)


def _helpers(leader: int) -> set[psutil.Process]:
    """Return the descendants of a process, and the members of the session that it leads.

    The children of a process that has ended have other parents, but stay in its session.
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
    # -P: a torch.py in the working directory must not be imported instead of PyTorch.
    command = [sys.executable, "-P", "-m", "xsp.target", str(folder), str(speak), str(wait)]
    with (folder / _OUTPUT).open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            pass_fds=(speak, wait),
            start_new_session=True,  # Ctrl-C reaches the parent only, which ends the process
        )


def ending_of(code: int) -> str:
    """Return how a process ended, in words, from its exit code as `Popen` has it."""
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
