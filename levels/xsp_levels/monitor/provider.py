"""Starts the helper, and makes readings of what it wrote."""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import sys
import sysconfig
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from xsp.clock import Clock
from xsp.level import Level
from xsp.provider import (
    READING_SCHEMA,
    Kind,
    ProviderError,
    Readings,
    Records,
    Request,
    SpanRows,
    no_rows,
)
from xsp_levels.monitor.row import COUNTS, HEADER, METRICS, ROW, UNKNOWN
from xsp_levels.monitor.source import SOURCES, with_energy
from xsp_levels.native.own_file import File, close_own, file_of

_ROOT = Path(__file__).parents[2]
_READY_S = 5.0  # NVML may take seconds to start where the driver is not kept loaded
_ENDING_MS = 1000  # for the last sample
_ROWS = np.dtype(
    [("time_ns", "i8"), ("since_ns", "i8"), ("device", "i4"), ("metric", "i4"), ("value", "f8")]
)
_KILLED = (
    "the monitor's helper process ended early, so readings from then on are missing. Measure again "
    "if you need them."
)
_CLOSED = (
    "your program closed all files, so energy and utilization are missing. Close only files that "
    "it opened."
)


@dataclass(frozen=True, slots=True)
class HelperRows:
    """What the helper wrote.

    Attributes:
        rows: The readings, as `row.ROW` packs them.
        samples: How many samples it took.
        late: How many of these were more than 1 ms late.
        cpu_ns: Its own CPU time.
    """

    rows: bytes
    samples: int = 0
    late: int = 0
    cpu_ns: int = 0


class Monitor:
    """Reads energy, power and utilization in a process beside the program."""

    name = "monitor"
    level = Level.SYSTEM
    kinds: frozenset[Kind] = frozenset()
    record_type = HelperRows

    def __init__(self) -> None:
        self._helper: _Helper | None = None

    def unavailable(self) -> str | None:
        """Find the reason why nothing can be read here; None if the host can."""
        if not sys.platform.startswith("linux") or not sys.executable:
            return "xsp reads energy and utilization on Linux alone. Measure there."
        return SOURCES["host"][1]()

    def remark(self) -> str:
        """Return a line for each source: what it is, and whether it can be read."""
        return "\n".join(
            f"{title}: yes" if (why := unavailable()) is None else f"{title}: no: {why}"
            for title, unavailable, _ in SOURCES.values()
        )

    def has_energy(self) -> bool:
        """Tell whether there is a device or an energy counter, besides the host."""
        return with_energy(_available())

    def start(self, clock: Clock, request: Request) -> None:
        """Start the helper; wait for its first sample where the visit is for readings alone."""
        self._helper = helper = _started(",".join(_available()))
        polls = int(_READY_S * 1000) if request.monitored else 0
        for _ in range(polls):
            if helper.counts()[0] or helper.has_ended(wait_ms=1):
                return

    def stop(self) -> Records:
        """End the helper, and take what it wrote."""
        helper, self._helper = self._helper, None
        if helper is None:
            return Records(HelperRows(b""))
        try:
            if not helper.is_whole:
                return Records(HelperRows(b""), warnings=(_CLOSED,))
            early = helper.has_ended()
            close_own(helper.life, helper.files[1])
            # A helper that has not begun would take a while to notice.
            if not helper.has_ended(wait_ms=_ENDING_MS if helper.counts()[0] else 0):
                os.kill(helper.process, signal.SIGKILL)
            _, rows, samples, late, cpu_ns = helper.counts()
            written = os.pread(helper.rows, rows * ROW.size, HEADER)
            notes = os.pread(helper.rows, HEADER, 0)[COUNTS.size :].partition(b"\0")[0]
        finally:
            helper.close()
        warnings = notes.decode(errors="replace").splitlines()
        warnings += [_KILLED] if early and rows else []
        return Records(HelperRows(written, samples, late, cpu_ns), warnings=tuple(warnings))

    def spans(self, records: Records) -> SpanRows:
        """Return no rows: readings are no spans."""
        return no_rows()

    def readings(self, records: Records) -> Readings:
        """Turn records into readings, without side effects."""
        rows = np.frombuffer(records.data.rows, _ROWS)
        since = pl.Series(rows["since_ns"].copy())
        columns = {name: pl.Series(rows[name].copy()) for name in ("time_ns", "device", "value")}
        metric = pl.Series(METRICS).gather(rows["metric"].copy())
        return (
            pl.DataFrame({**columns, "metric": metric, "since_ns": since})
            .with_columns(since_ns=pl.when(pl.col("since_ns") != UNKNOWN).then("since_ns"))
            .select(pl.col(name).cast(dtype) for name, dtype in READING_SCHEMA.items())
            .sort("time_ns", maintain_order=True)
        )


@dataclass(slots=True)
class _Helper:
    """The helper, which is no child of this process, and the files that both have.

    Attributes:
        process: Its process id.
        rows: The file with its readings.
        life: A pipe that ends the helper when it is closed.
        end: A pipe that is closed when the helper ends.
        files: What tells the three files from others.
    """

    process: int
    rows: int
    life: int
    end: int
    files: tuple[File | None, ...]

    def counts(self) -> tuple[int, ...]:
        return COUNTS.unpack(os.pread(self.rows, COUNTS.size, 0))

    @property
    def is_whole(self) -> bool:
        """Whether the program has closed none of the files."""
        return tuple(map(file_of, (self.rows, self.life, self.end))) == self.files

    def has_ended(self, wait_ms: int = 0) -> bool:
        poll = select.poll()
        poll.register(self.end, select.POLLHUP)
        return bool(poll.poll(wait_ms))

    def close(self) -> None:
        for number, file in zip((self.rows, self.life, self.end), self.files, strict=True):
            close_own(number, file)
        # Where this process is the first of a container, orphans become its children.
        with suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def _started(sources: str) -> _Helper:
    """Start the helper by a shell that ends at once, so that the program has no child of xsp's.

    A program that waits for any child, or that goes on as another program (`os.execv`), would
    meet it.

    Raises:
        ProviderError: The system has no process or descriptor left.
    """
    environment = dict(os.environ)
    if str(_ROOT) not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with ExitStack() as undo, ExitStack() as theirs:
        try:
            rows = os.memfd_create("xsp-readings")
            undo.callback(os.close, rows)
            os.truncate(rows, HEADER)
            stopping, life = os.pipe()
            theirs.callback(os.close, stopping)
            undo.callback(os.close, life)
            end, living = os.pipe()
            undo.callback(os.close, end)
            theirs.callback(os.close, living)
            numbers = (str(each) for each in (rows, os.getpid(), stopping))
            command = [sys.executable, "-P", "-m", "xsp_levels.monitor.helper", *numbers, sources]
            shell = subprocess.run(
                ["/bin/sh", "-c", '"$@" >/dev/null & echo $!', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(rows, stopping, living),
                start_new_session=True,  # Ctrl-C is for the program
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise ProviderError(f"The monitor's helper cannot start ({error}).") from error
        undo.pop_all()
    files = tuple(map(file_of, (rows, life, end)))
    return _Helper(int(shell.stdout), rows, life, end, files)


@functools.cache
def _available() -> tuple[str, ...]:
    """Name the sources that can be read here; asked once, as vendors' libraries take a while."""
    return tuple(name for name, (_, unavailable, _) in SOURCES.items() if unavailable() is None)
