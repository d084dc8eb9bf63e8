"""Samples what the forked children of a recorded program run, each in the child itself.

A child inherits a file in memory, to which its sampling thread appends lines. Such a file has no
name and ends with the processes that have it open, so nothing stays behind, whoever is killed. The
parent reads it whole, and empties it when the recording ends, which ends the children's threads.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic_ns
from types import FrameType
from typing import Any

import numpy as np

from xsp.record.program.line_sampler import Ints, LineSampler, LineSamples, Place

_NAME = "xsp workers"  # as /proc/PID/fd shows the file
# A child that closes all descriptors opens its own at the lowest numbers, never at such a one.
_HIGH = 512
_MOST_BYTES = 64 << 20  # of all children: 1,000,000 samples or more
_EVERY_NS = 250_000_000  # between two writes of a child, which may be killed at any time
_MANY = 5_000  # samples, in 500 s; then a child's rate falls with its age: 26,000 in ten hours
# A look that let go of Python's lock, as `open` does, would get it back after 5 ms only.
_LIBC = ctypes.PyDLL(None)
_FUTEX = {"x86_64": b"202", "aarch64": b"98"}.get(platform.machine())
RUNNING, BLOCKED, IN_LOCK = 0, 1, 2  # what a thread does; in a lock it may wait for the sampler
_BEGUN = b"\n"  # an empty file means that the recording is over


@dataclass(frozen=True, slots=True)
class WorkerSamples:
    """Samples of one forked child.

    Attributes:
        process: Its process id.
        lines: What the thread ran that had made the child; calls before the fork are left out.
        active_ns: For how long the thread ran or could have run, since the sample before.
        state: `RUNNING`, `BLOCKED` or `IN_LOCK`.
    """

    process: int
    lines: LineSamples
    active_ns: Ints
    state: Ints


class WorkerSampler:
    """Has the children sampled that are forked between `begin` and `end`."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._inode = 0
        self._process = self._parent = 0
        self._sampler: LineSampler | None = None
        self._began_ns = self._written_ns = 0
        self._places: dict[Place, int] = {}
        self._active: list[int] = []
        self._states: list[int] = []
        self._active_ns = 0
        self._kept: tuple[WorkerSamples, ...] = ()

    def begin(self) -> None:
        """Make the file; where the system has none in memory, children are not sampled."""
        self._process = os.getpid()
        if not hasattr(os, "memfd_create"):
            return
        with suppress(OSError), open(os.memfd_create(_NAME), "rb") as made:
            least = min(_HIGH, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
            self._file = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, least)
            fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # each write goes to the end
            self._inode = os.fstat(self._file).st_ino
            os.write(self._file, _BEGUN)

    def sample(self, frame: FrameType | None) -> None:
        """Begin to sample this process, the child of a fork, on the thread that is left.

        Args:
            frame: The frame that forks.
        """
        if self._file is None:
            return
        self._parent, self._process = self._process, os.getpid()
        self._began_ns = self._written_ns = monotonic_ns()
        self._places, self._active, self._states, self._active_ns = {}, [], [], 0
        self._thread = threading.get_native_id()
        self._sampler = LineSampler(threading.get_ident(), self._write, many=_MANY, of_child=True)
        self._sampler.begin(frame)

    def samples(self) -> tuple[WorkerSamples, ...]:
        """Return what the children have written so far."""
        if self._file is None or not self._is_mine(self._file):
            return self._kept
        size = os.fstat(self._file).st_size
        content = b"".join(
            os.pread(self._file, 1 << 24, at) for at in range(0, size, 1 << 24)
        ).split(b"\n")
        of_process: dict[tuple[int, int], list[Any]] = {}
        for line in filter(None, content):
            with suppress(ValueError):  # a child that was killed while it wrote
                process, began_ns, *rest = json.loads(line)
                of_process.setdefault((process, began_ns), []).append(rest)
        return self._kept + tuple(
            _samples_of(process, pieces) for (process, _), pieces in of_process.items()
        )

    def forget(self) -> None:
        """Let go of the samples."""
        self._kept = ()

    def end(self) -> None:
        """Let go of the file, and have the children's sampling threads end."""
        file = self._file
        if file is not None and self._is_mine(file):
            self._kept = self.samples()
            os.truncate(file, 0)
            os.close(file)
        self._file = None

    def _is_mine(self, file: int) -> bool:
        """Tell whether the program has left the file open, and opened no other in its place."""
        try:
            return os.fstat(file).st_ino == self._inode
        except OSError:
            return False

    def _write(self, now_ns: int) -> None:
        """Append what was sampled since the last time; called by the child after each sample."""
        active_ns, state = _activity(self._thread)
        self._active.append(active_ns - self._active_ns)
        self._states.append(state)
        self._active_ns = active_ns
        # At first often, for a child may live for a moment only.
        if now_ns - self._written_ns < min(_EVERY_NS, (now_ns - self._began_ns) // 4):
            return
        sampler, file = self._sampler, self._file
        assert sampler is not None
        assert file is not None
        taken, known = sampler.take(), len(self._places)
        stacks = [
            [self._places.setdefault(place, len(self._places)) for place in stack]
            for stack in taken.stacks
        ]
        piece = (
            self._process,
            self._began_ns,
            [*self._places][known:],
            stacks,
            int(taken.time_ns[0] - taken.lasts_ns[0]),
            taken.lasts_ns.tolist(),
            taken.stack.tolist(),
            self._active,
            self._states,
        )
        self._active, self._states = [], []
        try:
            about = os.fstat(file)
            mine = about.st_ino == self._inode
            if mine and 0 < about.st_size < _MOST_BYTES and os.getppid() == self._parent:
                os.write(file, json.dumps(piece, separators=(",", ":")).encode() + b"\n")
                self._written_ns = now_ns
                return
            if mine:
                os.close(file)
        except OSError:  # the child has closed it
            pass
        self._file = None
        sampler.stop()


def _activity(thread: int) -> tuple[int, int]:
    """Return how long a thread of this process has run or could have (ns), and what it does.

    Where the system does not tell, that is 0, and `RUNNING`.
    """
    times = _read(b"/proc/self/task/%d/schedstat" % thread).split()
    call = _read(b"/proc/self/task/%d/syscall" % thread).split()
    active_ns = int(times[0]) + int(times[1]) if len(times) > 1 else 0
    if not call or call[0] == b"running":
        return active_ns, RUNNING
    return active_ns, IN_LOCK if call[0] == _FUTEX else BLOCKED


def _read(path: bytes) -> bytes:
    file = _LIBC.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        return b""
    content = ctypes.create_string_buffer(256)
    size = _LIBC.read(file, content, len(content))
    _LIBC.close(file)
    return content.raw[: max(size, 0)]


def _samples_of(process: int, pieces: list[Any]) -> WorkerSamples:
    """Return the samples of one child, which it wrote piece by piece."""
    places: list[Place] = []
    stacks: list[tuple[Place, ...]] = []
    parts: list[Ints] = [np.zeros((5, 0), np.int64)]
    for new, made, begin_ns, lasts, numbers, active, states in pieces:
        places += [(name, file, line) for name, file, line in new]
        times = [*accumulate(lasts, initial=begin_ns)][1:]
        stack = [n + len(stacks) if n >= 0 and made[n] else -1 for n in numbers]
        stacks += [tuple(places[number] for number in each) for each in made]
        parts.append(np.array((times, lasts, stack, active, states), dtype=np.int64))
    table = np.concatenate(parts, axis=1)
    time_ns, lasts_ns, stack_of, active_ns, state = table[:, table[2] >= 0]
    return WorkerSamples(
        process, LineSamples(time_ns, lasts_ns, stack_of, (*stacks,)), active_ns, state
    )
