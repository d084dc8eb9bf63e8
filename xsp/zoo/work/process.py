"""The process of a task, as seen by the one that starts it: a job in, what the process says out."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xsp.analyses import text_of
from xsp.errors import ExportError
from xsp.session import THREAD_NUMBERS
from xsp.sweep import Point
from xsp.target import end_process, ending_of
from xsp.zoo.task import Limits, Task
from xsp.zoo.work.job import Job
from xsp.zoo.work.memory import Family
from xsp.zoo.work.network import OFFLINE
from xsp.zoo.work.output import Output

CRASHED, TIME_OUT, OUT_OF_MEMORY = "crashed", "time-out", "out-of-memory"
TIME_LIMIT, MEMORY_LIMIT = "time limit", "memory limit"  # what ended the process

_TEMPORARY = "temporary"  # link to the process's temporary folder, to find it after a kill
_PREFIX = "xsp-zoo-"
_LOOK_S = 0.5  # between looks at the memory and the clock


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended before it had measured all.

    Attributes:
        status: Status of the measurement under way.
        reason: Why it ended, for people.
        limit: Name of the limit with which it might have gone on; empty where there is none.
    """

    status: str
    reason: str
    limit: str = ""


class Process:
    """A process that measures points of a task one after the other.

    Args:
        task: The task.
        points: Those of its points that are to be measured.
        folder: An empty folder for what the process hands over.
        basis: What its results rest on.
    """

    def __init__(
        self, task: Task, points: Sequence[Point], folder: Path, basis: Mapping[str, str]
    ) -> None:
        self._limits = task.limits
        self._state = "starting"
        self._begin_s = time.monotonic()
        self._heard = b""
        self._events: deque[dict[str, Any]] = deque()
        with ExitStack() as stack:
            self._output = stack.enter_context(closing(Output()))
            self._ear, speak = os.pipe()
            life, _ = ends = os.pipe()
            with _closing(speak, life):
                for end in (self._ear, ends[1]):
                    stack.callback(os.close, end)
                temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
                stack.enter_context(temporary)
                (folder / _TEMPORARY).symlink_to(temporary.name)
                self.job = Job(
                    task, tuple(points), basis, folder, Path.cwd(), self._begin_s, speak, life
                )
                threads = points[0].threads
                self._process = _start(self.job, self._output.entry, threads, temporary.name)
            self._output.started()
            self._resources = stack.pop_all()
        self._family = Family(self._process.pid)
        self._sources = select.poll()
        for pipe in (self._ear, self._output.pipe):
            self._sources.register(pipe, select.POLLIN)

    def listen(self, tell: Callable[[str], None]) -> int | End:
        """Return the number of the point that is complete next, or how the process ended.

        Args:
            tell: Called with what the process is doing.

        Raises:
            ExportError: The process could not save what it has to hand over.
        """
        look_s = 0.0
        while True:
            gone = self._process.poll() is not None
            if not self._events:
                self._hear()
            if self._events:
                event = self._events.popleft()
                if "unable" in event:
                    raise ExportError(event["unable"])
                if "done" in event:
                    self._begin_s = time.monotonic()
                    return int(event["done"])
                self._state = event["state"]
                tell(self._state)
            elif gone:
                return self._ended()
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                if end := self._exceeded():
                    # At once: what exceeds a limit may go on to do so.
                    with suppress(ProcessLookupError):  # it has just ended by itself
                        os.killpg(self._process.pid, signal.SIGKILL)
                    return end

    def left_children(self) -> bool:
        """Return whether processes run that this one has started."""
        return self._family.left()

    def close(self) -> None:
        """End the process and all that it started, and remove what it left."""
        try:
            end_process(self._process, self._family.members)
        finally:
            self._resources.close()

    def _hear(self) -> None:
        """Wait a moment for what the process says, and drain what it prints."""
        for pipe, _ in self._sources.poll(int(1000 * _LOOK_S)):
            if pipe == self._ear:
                piece = os.read(self._ear, 1 << 16)
                *lines, self._heard = (self._heard + piece).split(b"\n")
                self._events += [json.loads(line) for line in lines]
                more = bool(piece)
            else:
                more = self._output.drain()
            if not more:
                self._sources.unregister(pipe)
            if not more and pipe == self._ear:
                with suppress(subprocess.TimeoutExpired):  # the process is ending
                    self._process.wait(_LOOK_S)

    def _exceeded(self) -> End | None:
        """Return the end of a process that uses more than it may."""
        limits, after = self._limits, f"while it was {self._state}"
        if used := self._family.exceeds(limits.memory_bytes):
            reason = (
                f"it had {_bytes(used)} of memory resident {after}, above the limit of "
                f"{limit_facts(limits)[MEMORY_LIMIT]}, and was ended"
            )
            return End(OUT_OF_MEMORY, reason, MEMORY_LIMIT)
        if time.monotonic() - self._begin_s > limits.time_s:
            reason = f"it took more than the limit of {limits.time_s:g} s {after}, and was ended"
            return End(TIME_OUT, reason + self._output.last_lines(), TIME_LIMIT)
        return None

    def _ended(self) -> End:
        code = self._process.returncode
        said = f"its process {ending_of(code)} while it was {self._state}"
        said += self._output.last_lines()
        if code == -signal.SIGKILL:
            return End(OUT_OF_MEMORY, said, MEMORY_LIMIT)
        return End(CRASHED, said)


def remove_left(scratch: Path) -> None:
    """Remove a folder of processes' folders, and the temporary folders of processes killed."""
    for link in scratch.glob(f"*/{_TEMPORARY}"):
        if link.is_symlink() and (temporary := link.readlink()).name.startswith(_PREFIX):
            shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _closing(*descriptors: int) -> Iterator[None]:
    """Close descriptors after the block: the process has them, or was not started."""
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def limit_facts(limits: Limits) -> dict[str, str]:
    """Return the limits as facts on which results rest that exceeded them."""
    memory = limits.memory_bytes
    return {
        TIME_LIMIT: f"{limits.time_s:g} s",
        MEMORY_LIMIT: "none" if memory is None else _bytes(memory),
    }


def _start(job: Job, output: int, threads: int | None, temporary: str) -> subprocess.Popen[bytes]:
    limited = dict.fromkeys(THREAD_NUMBERS, str(threads)) if threads else {}
    # -P: a torch.py in the working directory must not be imported instead of PyTorch.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "xsp.zoo.work", str(job.save())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, **OFFLINE, **limited, "TMPDIR": temporary},
        pass_fds=(job.speak, job.life),
        start_new_session=True,  # Ctrl-C reaches the parent only, which ends the process
    )


def _bytes(number: int) -> str:
    return text_of("memory_bytes", number)
