"""The process of a task, loads and measures a model, batch by batch.

A trace is whole before the process hands over its row. How far it is, and why it cannot go on, it
says on the same pipe. Weights are random, and connections of Python code to
other machines are refused: results must not depend on what another machine answers, or how fast.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from xsp.answer.zoo.process import MEMORY_LIMIT, Job, limit_facts, shortened
from xsp.answer.zoo.row import FAILED, OUT_OF_MEMORY, row_of, row_without
from xsp.answer.zoo.task import Point, Task
from xsp.errors import ExportError, XspError
from xsp.machine import is_loopback
from xsp.measuring.target import Subject, measure_here
from xsp.trace import Trace
from xsp.warning import TraceWarning

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_FIRST_TO_GO = "500"  # of the kernel's choice whom to end where memory ends, -1000 to 1000
_STEP = 0.1  # of a measurement, in which progress is said
_OFFLINE_ERRORS = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
_HUB = "huggingface.co"
_RULE = "xsp measures models with random weights and downloads none"
_DIFFERENT = "outputs-differ"
UNKNOWN = "outputs-unknown"
_TEXTS = "OSU"  # kinds of arrays of objects, bytes and texts


def main(path: str) -> None:
    """Measure what the job in a file says, and end the process."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    # Make this process end with the one that started it, and be the first that memory costs.
    for descriptor in (job.speak, job.life):
        os.set_inheritable(descriptor, False)
    # The kernel ends the group when the pipe is closed, whatever Python is doing then.
    fcntl.fcntl(job.life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(job.life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(job.life, fcntl.F_SETFL, fcntl.fcntl(job.life, fcntl.F_GETFL) | os.O_ASYNC)
    # Processes whose parents have ended become children of this one, by which they are found.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
    part = _Part(job)
    try:
        for number in job.points:
            part.carry(number)
    except ExportError as error:
        part.say({"unable": str(error)})
    # What frameworks do at the end of a program takes long, and may fail.
    os._exit(0)


class _Part:
    """The part of the process, point by point.

    Args:
        job: Its work.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._task = job, Task.from_json(job.task)
        self._refusals = Refusals()
        self._refusals.begin()
        self._said = 0.0
        self._same: bool | None = None

    def say(self, event: dict[str, Any]) -> None:
        """Say something to the process that started this one."""
        rest = json.dumps(event).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._job.speak, rest) :]

    def carry(self, number: int) -> None:
        """Measure a point, and hand over its row and its trace.

        Raises:
            ExportError: They could not be saved.
        """
        began = self._job.begin_s if number == self._job.points[0] else time.monotonic()
        os.chdir(self._job.directory)  # the model before may have changed it
        point = self._task.points[number]
        self.say({"state": "loading"})
        try:
            trace = self._measured(point)
        except (XspError, OSError) as error:
            row = self._without(point, error, began)
        else:
            trace.save(self._job.trace(number))
            took_s = time.monotonic() - began
            row = row_of(self._task, point, trace, took_s=took_s, basis=self._job.basis)
            row["same_output"] = self._same
        self.say({"row": row})
        gc.collect()  # the next model needs the memory of this one

    def _measured(self, point: Point) -> Trace:
        self._refusals.hosts.clear()
        trace = measure_here(point.spec, self._task.plan, self._report, look=self._look)
        metadata = {**trace.metadata, "settings": point.settings}
        return trace.replaced(metadata=metadata)

    def _look(self, subject: Subject) -> Iterable[TraceWarning]:
        warnings: list[TraceWarning] = []
        self._same = None
        if self._task.check:
            self.say({"state": "comparing outputs"})
            self._same, warnings = compared(subject)
        self._said = 0.0
        self.say({"state": "measuring"})
        return warnings

    def _report(self, fraction: float) -> None:
        if fraction - self._said >= _STEP:
            self._said = fraction
            self.say({"state": f"measuring, {100 * fraction:.0f} %"})

    def _without(self, point: Point, error: XspError | OSError, began: float) -> dict[str, Any]:
        memory = getattr(error, "out_of_memory", False)
        status = OUT_OF_MEMORY if memory else FAILED
        traceback = getattr(error, "traceback", "")
        reason = shortened(self._refusals.explain(str(error), traceback))
        took_s = time.monotonic() - began
        # Another limit is a reason to try again.
        limits = limit_facts(self._task.limits)
        limit = {MEMORY_LIMIT: limits[MEMORY_LIMIT]} if memory else {}
        basis = {**self._job.basis, **limit}
        return row_without(self._task, point, status, reason, took_s=took_s, basis=basis)


def compared(call: Callable[[], Any]) -> tuple[bool | None, list[TraceWarning]]:
    """Return whether two calls of a function give the same output, and the warning if they do not.

    Arrays and tensors of numbers are compared as they are, wherever they stand in lists, mappings
    and tuples; None where there are none.
    """
    first, second = list(_arrays(call())), list(_arrays(call()))
    if not first and not second:
        said = "two calls could not be compared: they return no arrays of numbers"
        return None, [TraceWarning(UNKNOWN, said)]
    if [(a.shape, a.dtype) for a in first] != [(a.shape, a.dtype) for a in second]:
        return False, [
            TraceWarning(_DIFFERENT, "two calls gave outputs of different shapes or types")
        ]
    pairs = list(zip(first, second, strict=True))
    if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
        return True, []
    most = max(_difference(*pair) for pair in pairs)
    said = f"two calls gave different outputs, by up to {most:.2g} of the largest value"
    return False, [TraceWarning(_DIFFERENT, said)]


def _arrays(output: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(output, Mapping):
        yield from _arrays(list(output.values()))
    elif isinstance(output, (list, tuple)):
        for each in output:
            yield from _arrays(each)
    elif hasattr(output, "detach"):  # a tensor of PyTorch
        try:
            yield output.numpy(force=True)
        except TypeError:  # bfloat16 and float8, which NumPy does not know; float32 holds them
            yield output.float().numpy(force=True)
    elif hasattr(output, "__array__"):
        array = np.asarray(output)
        if array.dtype.kind not in _TEXTS:
            yield array


def _difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays over the largest value."""
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf
    one, other = one[finite], other[finite]
    if not one.size:
        return 0.0
    largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
    return float(np.abs(one - other).max()) / largest if largest else 0.0


class Refusals:
    """The connections that were refused in this process.

    Attributes:
        hosts: The hosts that were asked for, each once, in their order.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, None] = {}

    def begin(self) -> None:
        """Refuse connections from now on, for as long as the process lives."""
        for name in ("connect", "connect_ex"):
            self._guard_socket(name)
        self._guard_lookup()

    def explain(self, reason: str, traceback: str = "") -> str:
        """Return a reason with the hosts that the model tried to reach before it failed.

        Args:
            reason: Why it failed.
            traceback: The traceback, which tells of libraries that did not even try.
        """
        hosts = list(self.hosts)
        if not hosts and any(name in traceback for name in _OFFLINE_ERRORS):
            hosts = [_HUB]
        if hosts:
            return f"it tried to reach {', '.join(hosts)}, and {_RULE}: {reason}"
        return reason

    def _guard_socket(self, name: str) -> None:
        original = getattr(socket.socket, name)

        def guarded(this: socket.socket, address: Any) -> Any:
            if this.family in (socket.AF_INET, socket.AF_INET6):
                self._check(str(address[0]))
            return original(this, address)

        setattr(socket.socket, name, guarded)

    def _guard_lookup(self) -> None:
        original = socket.getaddrinfo

        # Where no name server answers, looking a name up alone takes long.
        def guarded(host: Any, *rest: Any, **named: Any) -> Any:
            self._check(host.decode() if isinstance(host, bytes) else str(host or "localhost"))
            return original(host, *rest, **named)

        setattr(socket, "getaddrinfo", guarded)  # noqa: B010  # mypy takes no assignment

    def _check(self, host: str) -> None:
        if is_loopback(host) or host in ("", "0.0.0.0", "::", socket.gethostname()):
            return
        self.hosts[host] = None
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}, to {host}: {_RULE}"
        )
