"""The part of a node: a task in, the row of each of its points, and the bytes of its trace, out."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from xsp.session import usable_cores
from xsp.sweep import machine_facts
from xsp.zoo import core
from xsp.zoo.results import Row
from xsp.zoo.task import Task

CarryOut = Callable[..., Iterator[tuple[Row, Path | None]]]
"""What measures points of a task: `xsp.zoo.work.carry_out`, or what a test has in its place."""

_OMP = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Examined:
    """What a node says of itself.

    Attributes:
        facts: Machine and software, as `machine_facts` says.
        usable: How many cores are usable to a process that holds 1, 2, … of them.
        files: Checksums by name of those files that were asked for, and are there.
    """

    facts: Mapping[str, str]
    usable: tuple[float, ...]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    """What a node is to do.

    Attributes:
        task: The task, as `Task.to_json` has it.
        points: Numbers of the points that are to be measured.
        cores: How many cores it may have.
        basis: What its results rest on.
        folder: Folder in which the driver runs.
    """

    task: Mapping[str, Any]
    points: tuple[int, ...]
    cores: int
    basis: Mapping[str, str]
    folder: str


def examined(files: Sequence[str], folder: str | None = None) -> Examined:
    """Return what this node is.

    Args:
        files: Names of files that targets are in.
        folder: Folder in which the driver runs.
    """
    with _surroundings(folder):
        most = min(len(core.usable()), max(1, int(usable_cores())))
        usable = []
        for number in range(1, most + 1):
            with core.pinned(core.chosen(number)):
                usable.append(usable_cores())
        return Examined(machine_facts(), tuple(usable), checksums(files))


def checksums(files: Sequence[str]) -> dict[str, str]:
    """Return the checksums of those files that are here, by name."""
    found = {}
    for name in files:
        if Path(name).is_file():
            with Path(name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def carry(order: Order, carry_out: CarryOut) -> Iterator[tuple[Row, bytes | None]]:
    """Hold the cores of a task, measure its points there, and yield the row and trace of each.

    Rows and traces are read and sent on the same cores: elsewhere this would disturb the
    measurements of others.

    Args:
        order: What to do.
        carry_out: What measures.
    """
    task = Task.from_json(order.task)
    points = [task.points[number] for number in order.points]
    with ExitStack() as stack:
        stack.enter_context(_surroundings(order.folder))
        stack.enter_context(core.held(order.cores))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xsp-zoo-")))
        rows = carry_out(task, points, scratch, _ignore, basis=order.basis)
        stack.callback(rows.close)  # type: ignore[attr-defined]  # a generator
        for row, trace in rows:
            yield row, None if trace is None else _moved(trace)


def _ignore(*state: object) -> None:
    """Tell nobody how far a measurement is: a message a second from each node is too many."""


def _moved(trace: Path) -> bytes:
    content = trace.read_bytes()
    trace.unlink()
    return content


@contextmanager
def _surroundings(folder: str | None) -> Iterator[None]:
    """Be where the driver is, if there is such a folder here, and without Ray's number of threads.

    Ray tells OpenMP how many threads a task was given, where nobody else has: the cores that are
    held say so already, and results elsewhere do not rest on that variable.
    """
    added = _OMP in os.environ and _OMP not in psutil.Process().environ()
    value = os.environ.pop(_OMP) if added else None
    try:
        # A job that Ray brought the files for is in the right folder already.
        with chdir(folder if folder and Path(folder).is_dir() else Path.cwd()):
            yield
    finally:
        if value is not None:
            os.environ[_OMP] = value
