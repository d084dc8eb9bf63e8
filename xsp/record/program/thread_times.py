"""Reads for how long each thread of this process has run, and has waited for a processor."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Times of one thread since it began, as the kernel counts them.

    Attributes:
        name: Its name.
        python: Whether Python knows the thread.
        running_ns: Time on processors.
        runnable_ns: Time in which it could have run, and waited for a processor.
    """

    name: str
    python: bool
    running_ns: int
    runnable_ns: int


def thread_times() -> dict[int, ThreadTime]:
    """Return the times of all threads, by the kernel's numbers; none where it does not count."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    result: dict[int, ThreadTime] = {}
    with suppress(OSError):
        for task in os.listdir(_TASKS):
            with suppress(OSError, ValueError):
                running, runnable = (_TASKS / task / "schedstat").read_text().split()[:2]
                number = int(task)
                name = names.get(number) or (_TASKS / task / "comm").read_text().strip()
                known = number in names
                result[number] = ThreadTime(name, known, int(running), int(runnable))
    return result


def since(before: dict[int, ThreadTime], after: dict[int, ThreadTime]) -> dict[int, ThreadTime]:
    """Return the times of the threads that live, since they were read before."""
    nothing = ThreadTime("", False, 0, 0)
    return {
        number: ThreadTime(
            now.name,
            now.python,
            now.running_ns - before.get(number, nothing).running_ns,
            now.runnable_ns - before.get(number, nothing).runnable_ns,
        )
        for number, now in after.items()
    }
