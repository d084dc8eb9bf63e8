"""Processes of tasks: `carry_out` measures a task in a process of its own, watched by this one.

The process (worker.py) gets a job as a file, says on a pipe how far it is, hands over rows on the
same pipe, and traces as files. This side ends it where it exceeds a limit or its work is done, and
makes a row of what becomes of it.
"""

from __future__ import annotations

import fcntl
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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from xsp.answer.analyses import text_of
from xsp.answer.zoo.row import CRASHED, OUT_OF_MEMORY, SKIPPED, TIME_OUT, Row, row_without
from xsp.answer.zoo.task import Limits, Point, Task
from xsp.errors import ExportError
from xsp.measuring.target import end_process, ending_of
from xsp.record.session import THREAD_NUMBERS

TIME_LIMIT, MEMORY_LIMIT = "time limit", "memory limit"  # facts on which rows rest that hit them

# With these variables Hugging Face's libraries look into their cache alone.
_OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_PROGRAM = "import sys; from xsp.answer.zoo.worker import main; main(sys.argv[1])"
_TEMPORARY = "temporary"  # link to the process's temporary folder, to find it after a kill
_PREFIX = "xsp-zoo-"
_LOOK_S = 0.5  # between looks at the memory and the clock
_KEPT_BYTES = 16 * 1024  # of the end of what a process prints, and how many lines are told of it
_LINES = 8
_AT_ONCE_BYTES = 1 << 20
_LONGEST = 2000  # characters of a reason, of which models may give megabytes

Tell = Callable[[Point, str], None]
"""Called with the point under way, and what is done with it: `loading`, `measuring, 40 %`."""


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a process of a task, as JSON can hold it.

    Attributes:
        task: The task.
        points: Numbers of the points that are left to measure.
        basis: Facts that the results rest on.
        folder: Where the job and the traces lie.
        directory: The working directory.
        begin_s: When the process was started, by the monotonic clock of the machine.
        speak: Descriptor on which the process says how far it is, a line of JSON each time.
        life: Descriptor that is closed at its other end when the process is to end.
    """

    task: Mapping[str, Any]
    points: Sequence[int]
    basis: Mapping[str, str]
    folder: str
    directory: str
    begin_s: float
    speak: int
    life: int

    def trace(self, point: int) -> Path:
        """Return the path of the trace of a point."""
        return Path(self.folder) / f"{point}.xsp"


def carry_out(
    task: Task,
    points: Sequence[Point],
    scratch: Path,
    tell: Tell,
    *,
    basis: Mapping[str, str],
) -> Generator[tuple[Row, Path | None], None, None]:
    """Measure points of a task in a process of its own, and yield the row of each, in order.

    If the process dies or is ended, the measurement under way has that as its result, and another
    process goes on with the rest; after a batch that ran out of memory larger ones are skipped.
    Closing the generator ends the process, with all that it started.

    Args:
        task: The task.
        points: Those of its points that are to be measured, batches ascending.
        scratch: A folder for what the process hands over.
        tell: Called with the point under way and what is done with it.
        basis: Facts that the results rest on, from `basis_of`.

    Yields:
        A row, and the file of its trace, which is to be moved before the next is asked for; None
        where there is no trace.

    Raises:
        ExportError: What the process has to hand over could not be saved.
    """
    left = list(points)
    while left:
        folder = Path(tempfile.mkdtemp(dir=scratch))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            process = stack.enter_context(closing(Process(task, left, folder, basis)))
            while left:
                row, trace = process.result(left[0], tell)
                yield row, trace
                del left[0]
                # Children of the model, which may go on computing, would disturb the next batch.
                if row["status"] == OUT_OF_MEMORY or process.ended or process.left_children():
                    break
        if row["status"] == OUT_OF_MEMORY:
            yield from ((skipped(task, point, row, basis), None) for point in left)
            return


def skipped(task: Task, point: Point, full: Mapping[str, Any], basis: Mapping[str, str]) -> Row:
    """Return the row of a point whose batch is larger than one that ran out of memory."""
    reason = f"batch {full['batch']} ran out of memory, and this one is larger"
    return row_without(task, point, SKIPPED, reason, took_s=None, basis=basis)


def limit_facts(limits: Limits) -> dict[str, str]:
    """Return the limits as facts on which results rest that exceeded them."""
    memory = limits.memory_bytes
    return {
        TIME_LIMIT: f"{limits.time_s:g} s",
        MEMORY_LIMIT: "none" if memory is None else text_of("memory_bytes", memory),
    }


def shortened(reason: str, keep: int = _LONGEST) -> str:
    """Return a reason whose middle is left out if it is too long for a table.

    >>> shortened("a model may say a lot", 8)
    'a mo…lot'
    """
    if len(reason) <= keep:
        return reason
    return f"{reason[: keep // 2].rstrip()}…{reason[-keep // 2 :].lstrip()}"


def remove_left(scratch: Path) -> None:
    """Remove a folder of processes' folders, and the temporary folders of processes killed."""
    for link in scratch.glob(f"*/{_TEMPORARY}"):
        if link.is_symlink() and (temporary := link.readlink()).name.startswith(_PREFIX):
            shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


class Process:
    """A process that measures points of a task one after the other.

    Args:
        task: The task.
        points: Those of its points that are to be measured.
        folder: An empty folder for what the process hands over.
        basis: Facts that its results rest on.

    Attributes:
        ended: Whether the process has ended before it had measured all.
    """

    def __init__(
        self, task: Task, points: Sequence[Point], folder: Path, basis: Mapping[str, str]
    ) -> None:
        self._task, self._basis, self._state = task, basis, "starting"
        self._begin_s = time.monotonic()
        self._heard = self._printed = b""
        self._events: deque[dict[str, Any]] = deque()
        self.ended = False
        with ExitStack() as stack, ExitStack() as given:
            ear, speak = os.pipe()
            output, entry = os.pipe()
            life, hold = os.pipe()
            for descriptor in (ear, output, hold):
                stack.callback(os.close, descriptor)
            for descriptor in (speak, entry, life):  # the process has them, or was not started
                given.callback(os.close, descriptor)
            os.set_blocking(output, False)
            with suppress(OSError):  # more than this user may have
                fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _AT_ONCE_BYTES)
            temporary = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
            )
            (folder / _TEMPORARY).symlink_to(temporary)
            numbers = [task.points.index(point) for point in points]
            places = (str(folder), str(Path.cwd()))
            self._job = Job(
                task.to_json(), numbers, dict(basis), *places, self._begin_s, speak, life
            )
            path = folder / "job.json"
            path.write_text(json.dumps(asdict(self._job)), encoding="utf-8")
            threads = points[0].threads
            limited = dict.fromkeys(THREAD_NUMBERS, str(threads)) if threads else {}
            self._process = subprocess.Popen(
                # -P: a torch.py in the working directory must not be imported instead of PyTorch.
                [sys.executable, "-P", "-c", _PROGRAM, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=entry,
                stderr=entry,
                env={**os.environ, **_OFFLINE, **limited, "TMPDIR": temporary},
                pass_fds=(speak, life),
                start_new_session=True,  # Ctrl-C reaches the parent only, which ends the process
            )
            self._resources = stack.pop_all()
        self._family = Family(self._process.pid)
        self._ear, self._output = ear, output
        self._sources = select.poll()
        for pipe in (ear, output):
            self._sources.register(pipe, select.POLLIN)

    def result(self, point: Point, tell: Tell) -> tuple[Row, Path | None]:
        """Return the row and trace of the point that is next, or the row of the process's end.

        Args:
            point: The point.
            tell: Called with the point and what is done with it.

        Raises:
            ExportError: The process could not save what it has to hand over.
        """
        began, look_s = time.monotonic(), 0.0
        tell(point, self._state if self._state == "starting" else "loading")
        while True:
            gone = self._process.poll() is not None
            if not self._events:
                self._hear()
            if self._events:
                event = self._events.popleft()
                if "unable" in event:
                    raise ExportError(event["unable"])
                if "row" in event:
                    self._begin_s = time.monotonic()
                    trace = self._job.trace(self._task.points.index(point))
                    return event["row"], trace if trace.exists() else None
                self._state = event["state"]
                tell(point, self._state)
            elif gone:
                # Status, reason and limit of a process that has ended by itself.
                code = self._process.returncode
                said = (
                    f"its process {ending_of(code)} while it was {self._state}{self._last_lines()}"
                )
                if code == -signal.SIGKILL:
                    death = OUT_OF_MEMORY, said, MEMORY_LIMIT
                else:
                    death = CRASHED, said, ""
                return self._end(point, began, *death), None
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                if end := self._exceeded():
                    # At once: what exceeds a limit may go on to do so.
                    with suppress(ProcessLookupError):  # it has just ended by itself
                        os.killpg(self._process.pid, signal.SIGKILL)
                    return self._end(point, began, *end), None

    def left_children(self) -> bool:
        """Return whether processes run that this one has started."""
        return self._family.left()

    def close(self) -> None:
        """End the process and all that it started, and remove what it left."""
        try:
            end_process(self._process, self._family.members)
        finally:
            self._resources.close()

    def _end(self, point: Point, began: float, status: str, reason: str, limit: str) -> Row:
        """Return the row of the point that was under way when the process ended."""
        self.ended = True
        # A higher limit is a reason to try again.
        limits = {limit: limit_facts(self._task.limits)[limit]} if limit else {}
        took_s = time.monotonic() - began
        basis = {**self._basis, **limits}
        return row_without(self._task, point, status, shortened(reason), took_s=took_s, basis=basis)

    def _hear(self) -> None:
        """Wait a moment for what the process says, and drain what it prints."""
        for pipe, _ in self._sources.poll(int(1000 * _LOOK_S)):
            if pipe == self._output:
                more = self._drain()
            else:
                piece = os.read(self._ear, 1 << 16)
                *lines, self._heard = (self._heard + piece).split(b"\n")
                self._events += [json.loads(line) for line in lines]
                more = bool(piece)
            if not more:
                self._sources.unregister(pipe)
                if pipe == self._ear:
                    with suppress(subprocess.TimeoutExpired):  # the process is ending
                        self._process.wait(_LOOK_S)

    def _drain(self) -> bool:
        """Read what is printed, a mebibyte at most; return whether there may be more to come."""
        try:
            piece = os.read(self._output, _AT_ONCE_BYTES)
        except BlockingIOError:
            return True
        self._printed = (self._printed + piece[-_KEPT_BYTES:])[-_KEPT_BYTES:]
        return bool(piece)

    def _last_lines(self) -> str:
        """Return the last lines printed, behind a colon; empty where nothing was printed."""
        self._drain()
        lines = self._printed.decode(errors="replace").strip().splitlines()
        return ": " + "\n".join(lines[-_LINES:]) if lines else ""

    def _exceeded(self) -> tuple[str, str, str] | None:
        """Return status, reason and limit of a process that uses more than it may."""
        limits, after = self._task.limits, f"while it was {self._state}"
        if used := self._family.exceeds(limits.memory_bytes):
            reason = (
                f"it had {text_of('memory_bytes', used)} of memory resident {after}, above the "
                f"limit of {limit_facts(limits)[MEMORY_LIMIT]}, and was ended"
            )
            return OUT_OF_MEMORY, reason, MEMORY_LIMIT
        if time.monotonic() - self._begin_s > limits.time_s:
            reason = f"it took more than the limit of {limits.time_s:g} s {after}, and was ended"
            return TIME_OUT, reason + self._last_lines(), TIME_LIMIT
        return None


class Family:
    """A process and all that it starts.

    Attributes:
        members: The descendants seen so far, of which some may have ended.
    """

    def __init__(self, leader: int) -> None:
        self.members: set[psutil.Process] = set()
        self._leader = psutil.Process(leader)

    def exceeds(self, limit_bytes: int | None) -> int:
        """Look for descendants, and return the memory resident if that is above the limit, or 0."""
        with suppress(psutil.Error):
            self.members.update(self._leader.children(recursive=True))
        if limit_bytes is None:
            return 0
        used = self._bytes("memory_info", "rss")
        if used > limit_bytes and self.members:
            # What processes share is counted for each of them; the exact number takes longer.
            used = self._bytes("memory_full_info", "pss")
        return used if used > limit_bytes else 0

    def left(self) -> bool:
        """Return whether any descendant still runs."""
        self.exceeds(None)
        running = False
        for process in self.members:
            with suppress(psutil.Error):
                running |= process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return running

    def _bytes(self, kind: str, number: str) -> int:
        used = 0
        for process in (self._leader, *self.members):
            with suppress(psutil.Error):  # it has ended
                used += int(getattr(getattr(process, kind)(), number))
        return used
