"""Samples sources in a process of its own, until a pipe is closed.

`python -m xsp_levels.monitor.helper FILE PROGRAM PIPE SOURCES`: FILE is an inherited descriptor
that takes the readings, PROGRAM the process to watch, PIPE a descriptor to read from, SOURCES
their names with commas.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from xsp_levels.monitor.row import COUNTS, HEADER, METRICS, ROW, Readings
from xsp_levels.monitor.source import FAST_NS, SLOW_NS, SOURCES, Source

_MOST_ROWS = 100_000  # after as many the pace is halved, and so on: 6 minutes of one GPU
_LATE_NS = 1_000_000
_CODES = {metric: code for code, metric in enumerate(METRICS)}


class Writer:
    """Writes readings and counts to the file.

    Args:
        file: Descriptor of the file.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.rows = self.samples = self.late = 0
        self.notes: list[str] = []

    def write(self, readings: Readings) -> None:
        """Append the readings of one sample."""
        rows = []
        for metric, value, device, stamp_ns, since_ns in readings:
            at_ns = stamp_ns or time.monotonic_ns()
            rows.append(ROW.pack(at_ns, since_ns, device, _CODES[metric], value))
        os.pwrite(self._file, b"".join(rows), HEADER + self.rows * ROW.size)
        self.rows += len(rows)
        self.samples += 1

    def count(self) -> None:
        """Write the counts and notes, by which the reader knows how many rows are whole."""
        numbers = COUNTS.pack(1, self.rows, self.samples, self.late, time.process_time_ns())
        notes = "\n".join(self.notes).encode()[: HEADER - COUNTS.size - 1]
        os.pwrite(self._file, numbers + notes + b"\0", 0)


def main(arguments: list[str]) -> None:
    """Sample until the pipe is closed or the program has ended."""
    file, program, pipe = map(int, arguments[:3])
    writer = Writer(file)
    sources: dict[str, Source] = {}
    for name in arguments[3].split(","):
        try:
            sources[name] = SOURCES[name][2](program)
        except Exception as error:  # noqa: BLE001  a vendor's library may raise anything
            writer.notes.append(f"{name} cannot be read ({type(error).__name__}: {error}).")
    poll = select.poll()
    poll.register(pipe, select.POLLHUP)
    # A killed program's forks may keep the pipe open.
    with suppress(OSError):
        poll.register(os.pidfd_open(program), select.POLLIN)
    tasks = [
        (name, read, period)
        for name, source in sources.items()
        for reader, period in (("fast", FAST_NS), ("slow", SLOW_NS))
        if (read := getattr(source, reader, None)) is not None
    ]
    due = [time.monotonic_ns()] * len(tasks)
    while tasks:
        wait_ns = max(min(due) - time.monotonic_ns(), 0)
        if poll.poll((wait_ns + 500_000) // 1_000_000 if wait_ns else 0):
            break
        _sample(tasks, due, writer)
        writer.notes += [n for s in sources.values() for n in s.notes if n not in writer.notes]
        writer.count()
    _sample(tasks, [0] * len(tasks), writer)
    writer.count()
    os._exit(0)  # a vendor's library may take long to end


def _sample(
    tasks: list[tuple[str, Callable[[], Readings], int]], due: list[int], writer: Writer
) -> None:
    """Take the samples that are due, and say when the next ones are."""
    pace = 1 << writer.rows // _MOST_ROWS
    for at, (name, read, period) in reversed(list(enumerate(tasks))):
        now = time.monotonic_ns()
        if now < due[at] - _LATE_NS // 2:
            continue
        writer.late += now - due[at] > _LATE_NS and due[at] > 0
        try:
            writer.write(read())
        except Exception as error:  # noqa: BLE001  a vendor's library may raise anything
            writer.notes.append(
                f"{name} failed ({type(error).__name__}: {error}), so its later readings are "
                "missing."
            )
            del tasks[at], due[at]
            continue
        step = period * pace
        due[at] += step * max(1, -(-(time.monotonic_ns() - due[at]) // step))


if __name__ == "__main__":
    main(sys.argv[1:])
