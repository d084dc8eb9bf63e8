"""Starts the helper, and makes readings of what it wrote."""

from __future__ import annotations

import functools
import os
import select
import subprocess
import sys
import sysconfig
from contextlib import suppress
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

_ROOT = Path(__file__).parents[2]
_READY_S = 5.0  # NVML may take seconds to start where the driver is not kept loaded
_ENDING_S = 1.0  # for the last sample
_ROWS = np.dtype(
    [("time_ns", "i8"), ("since_ns", "i8"), ("device", "i4"), ("metric", "i4"), ("value", "f8")]
)
_KILLED = (
    "the monitor's helper process ended early, so readings from then on are missing. Measure again "
    "if you need them."
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
        self._helper: subprocess.Popen[bytes] | None = None
        self._file = -1

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
        self._file = os.memfd_create("xsp-readings", 0)
        os.truncate(self._file, HEADER)
        environment = dict(os.environ)
        if str(_ROOT) not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-P", "-m", "xsp_levels.monitor.helper"]
        try:
            self._helper = subprocess.Popen(
                [*command, str(self._file), str(os.getpid()), ",".join(_available())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(self._file,),
                start_new_session=True,  # Ctrl-C is for the program
            )
        except OSError as error:
            os.close(self._file)
            raise ProviderError(f"The monitor's helper cannot start ({error}).") from error
        if request.monitored:
            self._await_first()

    def _await_first(self) -> None:
        poll, helper = select.poll(), self._helper
        assert helper is not None
        for _ in range(int(_READY_S * 1000)):
            if self._counts()[0] or helper.poll() is not None:
                return
            poll.poll(1)

    def _counts(self) -> tuple[int, ...]:
        return COUNTS.unpack(os.pread(self._file, COUNTS.size, 0))

    def stop(self) -> Records:
        """End the helper, and take what it wrote."""
        helper, self._helper = self._helper, None
        if helper is None:
            return Records(HelperRows(b""))
        file = self._file
        early = helper.poll() is not None
        try:
            assert helper.stdin is not None
            with suppress(BrokenPipeError):
                helper.stdin.close()
            # A helper that has not begun would take a while to notice.
            with suppress(subprocess.TimeoutExpired):
                helper.wait(_ENDING_S if self._counts()[0] else 0)
            helper.kill()
            helper.wait()
            _, rows, samples, late, cpu_ns = self._counts()
            size = rows * ROW.size
            written = os.pread(file, size, HEADER)
            notes = os.pread(file, HEADER, 0)[COUNTS.size :].partition(b"\0")[0]
        finally:
            os.close(file)
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


@functools.cache
def _available() -> tuple[str, ...]:
    """Name the sources that can be read here; asked once, as vendors' libraries take a while."""
    return tuple(name for name, (_, unavailable, _) in SOURCES.items() if unavailable() is None)
