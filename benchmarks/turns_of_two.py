"""A plain process and one under a tool take turns: what does the tool cost?

The same program in two processes, one after the other, differs by more than most tools cost. So
both live at the same time and work in turns, in the order ABBA, and each turn gives one ratio:

    turn     0            1            2
             bare, tool   tool, bare   bare, tool
    ratio    tool / bare  tool / bare  tool / bare

This module knows processes, turns and ratios, and nothing of tools.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

STARTING_S, WORKING_S = 120.0, 60.0  # most seconds to wait for an answer
_LOOK_S = 0.2  # between two looks at whether a process still lives
_QUIET_S, _QUIET_NS, _LONGEST_S = 0.002, 100_000, 0.1  # of helpers after a turn
RESAMPLES = 2000
# glibc keeps memory: else a process gives it back in each step or in none, by its addresses, and
# the training step takes 13 or 16 ms.
STEADY_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}


class ToolError(Exception):
    """A tool is absent, or the program failed under it."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The steps that one process made in one turn.

    Attributes:
        cpu_ns: CPU time of the program's process.
        wall_ns: Wall time.
        beside_ns: CPU time of all other processes of the tree: the tool, helpers, workers.
        layers: Latencies of the calls of layers that the program timed, in ns.
    """

    cpu_ns: int
    wall_ns: int
    beside_ns: int = 0
    layers: Mapping[str, Sequence[int]] = field(default_factory=dict)


Turn = tuple[Visit, Visit]  # bare, and under the tool


class Peer(Protocol):
    """Makes steps when it is told to."""

    def steps(self, number: int) -> Visit:
        """Make steps and time them."""
        ...


def take_turns(bare: Peer, tool: Peer, turns: int, steps: int) -> list[Turn]:
    """Let two peers take turns.

    Args:
        bare: The plain program.
        tool: The program under a tool.
        turns: Number of turns; each peer has one visit in each.
        steps: Number of timed steps in a visit.
    """
    found = []
    for number in range(turns):
        if number % 2:
            watched = tool.steps(steps)
            found.append((bare.steps(steps), watched))
        else:
            plain = bare.steps(steps)
            found.append((plain, tool.steps(steps)))
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(pairs: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Estimate the median ratio of all turns of all pairs of processes, by a bootstrap.

    A resample draws pairs, then turns within each, so that the interval holds the spread between
    processes. With two or three pairs it reaches the median of each of them.

    Args:
        pairs: Ratios of the turns of each pair of processes, shape `[pairs, turns]`.
        seed: Seed of the resamples.
    """
    random, values = np.random.default_rng(seed), np.asarray(pairs)
    number, turns = values.shape
    chosen = random.integers(number, size=(RESAMPLES, number, 1))
    drawn = random.integers(turns, size=(RESAMPLES, number, turns))
    medians = np.median(values[chosen, drawn].reshape(RESAMPLES, -1), axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    return Estimate(float(np.median(values)), float(low), float(high))


class Process:
    """A program that makes steps when it is told to, in a process tree of its own.

    It speaks the protocol of `tool_program.py`, by named pipes.

    Args:
        command: The command that starts it, under a tool or not; the folder of the pipes stands
            in it.
        folder: A folder of its own, with the folder `pipes`, standard output and error.

    Attributes:
        enter_s: Time until the program was ready and the tool was on.
        finish_s: Time from the command to stop until the last process had ended.
        last: What the program said at its end.
        asked: Number of all steps while the tool was on.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.finish_s, self.asked, self.last = 0.0, 0, dict[str, Any]()
        self._stderr, self._buffer = folder / "stderr", b""
        pipes = folder / "pipes"
        pipes.mkdir(parents=True)
        for name in ("commands", "answers"):
            os.mkfifo(pipes / name)
        # A pipe that is open for both never waits for its other end.
        self._commands, self._answers = (
            os.open(pipes / name, os.O_RDWR) for name in ("commands", "answers")
        )
        began = time.perf_counter()
        with (folder / "stdout").open("wb") as out, self._stderr.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                env=os.environ | STEADY_MEMORY,
            )
        try:
            self._number = self._answer(STARTING_S)["process"]
            self._say("start")
            self._answer(STARTING_S)
        except BaseException:
            self.kill()
            raise
        self.enter_s = time.perf_counter() - began
        self._others: tuple[int, ...] = ()

    def warm_up(self, visits: int, steps: int) -> None:
        """Make steps that do not count, and find the processes of the tree."""
        for _ in range(visits):
            self.steps(steps)
        tree = psutil.Process(self._process.pid)
        numbers = {tree.pid, *(child.pid for child in tree.children(recursive=True))}
        self._others = tuple(numbers - {self._number})

    def steps(self, number: int) -> Visit:
        """Make one step that does not count, then so many that do."""
        before = self._beside_ns()
        self._say({"steps": number})
        self.asked += number + 1
        answer = self._answer(WORKING_S)
        return Visit(beside_ns=self._quiet_ns() - before, **answer)

    def stop(self) -> None:
        """Let the program end, and wait until the tool has written its file."""
        began = time.perf_counter()
        self._say("stop")
        self.last = self._answer(STARTING_S)
        try:
            self._process.wait(STARTING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ToolError(f"The tool did not end within {STARTING_S:.0f} s.") from None
        self.finish_s = time.perf_counter() - began
        self._close()

    def kill(self) -> None:
        """End all processes of the tree, whatever they do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._commands, self._answers):
            if pipe >= 0:
                os.close(pipe)
        self._commands = self._answers = -1

    def _say(self, command: Any) -> None:
        os.write(self._commands, json.dumps(command).encode() + b"\n")

    def _answer(self, longest_s: float) -> Any:
        until = time.monotonic() + longest_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], _LOOK_S)
            if ready:
                self._buffer += os.read(self._answers, 1 << 16)
            elif self._process.poll() is not None:
                raise ToolError(self._reason())
            elif time.monotonic() > until:
                raise ToolError(f"The program did not answer within {longest_s:.0f} s.")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _reason(self) -> str:
        said = self._stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1].strip() if said else f"It ended with code {self._process.returncode}."

    def _beside_ns(self) -> int:
        return sum(map(_process_ns, self._others))

    def _quiet_ns(self) -> int:
        """Wait until workers and helpers have done what the steps left to them."""
        until, last = time.monotonic() + _LONGEST_S, self._beside_ns()
        while self._others and time.monotonic() < until:
            time.sleep(_QUIET_S)
            now = self._beside_ns()
            if now - last < _QUIET_NS:
                return now
            last = now
        return last


def _process_ns(number: int) -> int:
    """Read the CPU time of all threads of a process, ended ones too; 0 if the process is gone."""
    try:
        return time.clock_gettime_ns(~number << 3 | 2)  # CPUCLOCK_SCHED, linux/posix-timers.h
    except OSError:
        return 0
