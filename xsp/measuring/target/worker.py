"""A worker measures a target in a process of its own, turn by turn.

`Worker` starts the process (`part.main`, `python -m xsp.measuring.target FOLDER SPEAK WAIT`) and
gives it turns. Job, runs and failure are files in a folder; a pipe carries the progress, another
one the turns. Once its runs or its failure are there the worker is done, and nobody needs to wait
for the end of its process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from xsp.errors import MeasurementError, TargetFailedError, TraceFormatError, UnknownTargetError
from xsp.measuring.target.spec import Spec
from xsp.reading.runs import ProcessRuns
from xsp.record.session import THREAD_NUMBERS, Settings, peak_memory_bytes

# With these variables the host waits for each kernel, and libraries use one thread.
SYNCHRONOUS = dict.fromkeys(("CUDA_LAUNCH_BLOCKING", *THREAD_NUMBERS), "1")

JOB, FAILURE, RUNS = "job.json", "failure.json", "runs"  # what is in the folder of a process
PART, WHOLE, STOP = b"p", b"w", b"s"  # what a process may be told at its turn
TURN_OVER = b"!\n"  # ends what a process says at the end of its turn

_MODULE = "xsp.measuring.target"
_OUTPUT = "output.txt"
_LAST_LINES = 8
_PATIENCE_S = 5.0  # for a process to save its runs
_ENDING_S = 60.0  # for a process to end by itself when it is done
_GRACE_S = 2.0  # for a process to end after a signal


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a process has no runs.

    Attributes:
        cause: `usage`: there is no such target; `measurement`: the target cannot be
            measured here; `target`: the target raised; `died`: the process ended.
        message: What happened, for people.
        traceback: The target's traceback, if the target raised.
        out_of_memory: Whether memory did not suffice, as far as that can be told.
    """

    cause: Literal["usage", "measurement", "target", "died"]
    message: str
    traceback: str = ""
    out_of_memory: bool = False

    def error(self) -> Exception:
        """Return the exception that the parent process raises for the failure."""
        if self.cause == "usage":
            return UnknownTargetError(self.message)
        if self.cause == "target":
            return TargetFailedError(self.message, self.traceback, out_of_memory=self.out_of_memory)
        return MeasurementError(self.message, out_of_memory=self.out_of_memory)


class Worker:
    """A process that measures a target on the whole ladder, a round at each turn.

    The process imports the target's libraries at once. Its turns are: load the target, warm up,
    one round each, interpret its runs and save them. It writes the fraction done after each visit,
    and after each turn waits for a byte: `PART` or `WHOLE`, its budget from then on, or `STOP`, to
    save the runs that it has.

    Args:
        folder: Folder, not yet made, for the job and for the runs or the failure.
        spec: The target.
        settings: How to measure the target; the budget is that of a process which measures alone.
        part: The part of the budget that a process has among others.
        synchronous: Whether the host waits for each kernel, and libraries use one thread.

    Attributes:
        fraction: The fraction done, as the process last wrote it.
        loaded: Whether the process was given its turn to load the target.
        budget: Which budget the process has, `PART` or `WHOLE`.
        heard: Called when the process has written what fraction is done.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        settings: Settings,
        *,
        part: float = 1.0,
        synchronous: bool = False,
    ) -> None:
        self.fraction = 0.0
        self.loaded = False
        self.budget = PART
        self.heard: Callable[[], None] = lambda: None
        self._imported = False
        self._folder = folder
        folder.mkdir()
        job = {"spec": spec.to_json(), "settings": settings.to_json(), "part": part}
        job["synchronous"] = synchronous
        (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
        self._progress_pipe, speak = os.pipe()
        wait, self._turn_pipe = os.pipe()
        with (folder / _OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(
                # -P: a torch.py in the working directory must not be imported instead of PyTorch.
                [sys.executable, "-P", "-m", _MODULE, str(folder), str(speak), str(wait)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(SYNCHRONOUS if synchronous else {})},
                pass_fds=(speak, wait),
                start_new_session=True,  # Ctrl-C reaches the parent only, which ends the process
            )
        # The process has these ends of its own; open here, they would hide that it ended.
        os.close(speak)
        os.close(wait)

    @property
    def running(self) -> bool:
        """Whether the process still works: it has not ended, and is not done."""
        return self._process.poll() is None and not self._done

    @property
    def _done(self) -> bool:
        """Whether the process has left its runs or its failure, whole."""
        return any((self._folder / name).exists() for name in (FAILURE, RUNS))

    @property
    def measuring(self) -> bool:
        """Whether the process has rounds to measure."""
        return self.running and self.fraction < 1.0

    def begin(self) -> None:
        """Let the process do its next step, and do not wait for it."""
        if self.running:
            with suppress(BrokenPipeError):
                os.write(self._turn_pipe, self.budget)

    def turn(self) -> None:
        """Let the process do its next step, and wait for it."""
        self.begin()
        self.listen()

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

    def listen(self) -> None:
        """Wait until the process's turn is over, or it is done."""
        while self.running:
            if select.select([self._progress_pipe], [], [], 0.25)[0]:
                said = os.read(self._progress_pipe, 4096)
                if said:
                    with suppress(ValueError):
                        self.fraction = float(said.replace(b"!", b"").split()[-1])
                    self.heard()
                    if said.endswith(TURN_OVER):
                        return
                elif self.running:  # a closed pipe: the process is ending
                    self._await_end(0.25)
            else:
                self.heard()  # shows that time goes on
        self.fraction = 1.0

    def stop(self) -> None:
        """Have the process save its runs after the visit under way, and end."""
        self.budget = STOP
        self.begin()

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
