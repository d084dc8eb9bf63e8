"""The CUPTI provider records launches and device activities, and later makes rows of the records.

CUPTI records every call of CUDA in the process, whichever framework makes the call.
Correlation ids tie each device activity to its launch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xsp.clock import Clock
from xsp.errors import ProviderError
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows
from xsp_levels.arming import OWN
from xsp_levels.kernel.cupti import library
from xsp_levels.kernel.cupti.buffer import COUNT, Buffers
from xsp_levels.kernel.cupti.error import TAKEN, explain, explain_code
from xsp_levels.kernel.cupti.node import Lineage, NodeLog
from xsp_levels.kernel.cupti.record import CuptiRecords, nodes_that_ran, rows
from xsp_levels.kernel.cupti.session import PATIENCE_S, CuptiSession, RawRecords
from xsp_levels.kernel.cupti.stray import (
    empty_graph_launches,
    unfinished,
    untimed,
    without_strays,
)
from xsp_levels.kernel.cupti.table import Table
from xsp_levels.native import forked_child, stub, thread
from xsp_levels.native.alignment import Alignment

_UNTIMED = (
    "{count} kernels and copies have no times, because the device lacked memory for them. Free "
    "device memory, or measure less at once."
)
_UNFINISHED = (
    "{count} kernels and copies still ran {ms:.0f} ms after the function returned and are "
    "missing. Call torch.cuda.synchronize() before it returns."
)
_STRAYS = (
    "{count} kernels and copies have impossible times and are missing, because another profiler "
    "(PyTorch's, for example) changed CUPTI's clock. Measure in a fresh process."
)
_EMPTY_GRAPHS = (
    "{count} of {all} launches of CUDA graphs lack their kernels; CUPTI before CUDA 13.1 update "
    "1 may lose or mix them up. Update CUPTI, or capture the graph in the measured function."
)
_ASTRAY = (
    "CUPTI's times are up to {ms:.1f} ms off, because another tool changed its clock; kernels "
    "are misplaced by as much. Measure in a fresh process."
)
_INJECTION = "NVTX_INJECTION64_PATH"
_NO_RANGES = (
    "xsp cannot see NVTX ranges, and so NCCL's calls; all else is right. Set "
    "NVTX_INJECTION64_PATH to the path of libcupti before the program starts."
)
_ASTRAY_NS = 1_000_000
_UNCERTAIN = (
    "CUPTI's clock changed while it recorded, so kernels are misplaced by up to {us:.0f} µs; "
    "their lengths are right."
)
_UNCERTAIN_NS = 10_000


class Cupti:
    """Observes launches and device activities of this process."""

    name = "cupti"
    level = Level.KERNEL
    kinds = frozenset({Kind.LAUNCH, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC})
    record_type = CuptiRecords

    def __init__(self) -> None:
        self._cupti: Any = None
        self._library: Any = None
        self._buffers: Buffers | None = None
        self._nodes: NodeLog | None = None
        self._lineage = Lineage()
        self._session: CuptiSession | None = None
        self._clock: Clock | None = None
        self._kinds: frozenset[Kind] = frozenset()
        self._first: list[Reading] = []
        self._begun_ns = 0
        self._devices: Table | None = None  # recorded once: CUPTI never frees the names in it

    def unavailable(self) -> str | None:
        """Return why CUPTI cannot be used here, or None if CUPTI can, without initializing CUDA."""
        return library.unavailable()

    def remark(self) -> str | None:
        """Return which spans are not seen here, and a remedy; None if all are."""
        return None if os.environ.get(_INJECTION) else _NO_RANGES

    def start(self, clock: Clock, request: Request) -> None:
        """Subscribe to CUPTI and enable records.

        The first call takes longer: CUPTI is loaded and tried out.

        Raises:
            ProviderError: CUPTI refused; the message says why, and names a remedy.
        """
        self._abandon_or_end()
        if not self.kinds & request.kinds:
            return
        # Tell whether PyTorch's profiler runs for the user.
        # It need not subscribe to CUPTI, and CUPTI before CUDA 13 does not tell what it has
        # enabled.
        torch = sys.modules.get("torch")
        torch_profiles = (
            torch is not None and "kineto" not in OWN and torch.autograd._profiler_enabled()
        )
        if torch_profiles:
            raise ProviderError(explain_code(TAKEN) or "")
        try:
            if self._cupti is None:
                # Load CUPTI and record once, as CUPTI's first use can take seconds.
                cupti = library.vendor()
                cupti.get_timestamp()
                self._library = library.libcupti()
                self._cupti = cupti
                _armed.add(self)
                forked_child.register(self)
                self._open(detail=False)
                session, self._session = self._session, None
                if session is not None:
                    self._with_devices(session.stop().tables)
            self._begun_ns = clock.now()
            self._open(request.detail)
            self._first = read(clock.now, self._cupti.get_timestamp)
        except Exception as error:
            self._abandon_or_end()
            raise ProviderError(explain(error)) from error
        self._clock, self._kinds = clock, request.kinds

    def stop(self) -> Records:
        """Flush, disable, unsubscribe, and return the records.

        Raises:
            ProviderError: CUPTI failed; nothing is left enabled.
        """
        session, self._session = self._session, None
        clock, self._clock = self._clock, None
        if session is None or clock is None:
            return Records(CuptiRecords(self._kinds))
        try:
            last = read(clock.now, self._cupti.get_timestamp)
            recorded = session.stop()
            return self._records(recorded, align(self._first, last), clock.now())
        except Exception as error:
            raise ProviderError(explain(error)) from error
        finally:
            session.end()

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows. Pure."""
        data: CuptiRecords = records.data
        return rows(data)

    def _records(self, recorded: RawRecords, alignment: Alignment, ended_ns: int) -> Records:
        calls = self._calls(recorded.tables)
        tables = self._with_devices(recorded.tables)
        tables, strays = without_strays(tables, alignment, self._begun_ns, ended_ns)
        lost, running = untimed(tables), unfinished(tables)
        if not recorded.idle:
            lost, running = 0, lost + running
        # By how much the converted times of calls lie outside of the recording.
        astray = 0
        for name in ("runtime", "driver"):
            if name in tables and len(tables[name]["start"]):
                start = alignment.convert(tables[name]["start"].astype(np.int64))
                astray = max(astray, self._begun_ns - int(start.min()), int(start.max()) - ended_ns)
        empty, launched = empty_graph_launches(recorded.tables, calls)
        error = alignment.error_ns
        said = (
            (lost, _UNTIMED.format(count=lost)),
            (running, _UNFINISHED.format(count=running, ms=PATIENCE_S * 1e3)),
            (strays, _STRAYS.format(count=strays)),
            (empty, _EMPTY_GRAPHS.format(count=empty, all=launched)),
            (astray > _ASTRAY_NS, _ASTRAY.format(ms=astray / 1e6)),
            (error > _UNCERTAIN_NS, _UNCERTAIN.format(us=error / 1e3)),
        )
        warnings = recorded.warnings + tuple(sentence for is_so, sentence in said if is_so)
        created = self._lineage.learn(recorded.nodes)
        data = CuptiRecords(
            self._kinds,
            tables,
            recorded.texts,
            calls,
            thread.names(),
            alignment,
            created,
            self._lineage.captured(nodes_that_ran(tables)),
        )
        return Records(data, recorded.dropped + lost + running + strays, warnings)

    def _with_devices(self, tables: dict[str, Table]) -> dict[str, Table]:
        """Return tables with that of the devices, which one recording told for all."""
        self._devices = tables.get("device", self._devices)
        return tables if self._devices is None else {**tables, "device": self._devices}

    def _open(self, detail: bool) -> None:
        if self._buffers is None or self._buffers.worn:
            self._buffers = _new_buffers()
        if self._nodes is None:
            self._nodes = NodeLog(stub.address_of(self._library.cuptiGetGraphNodeId))
        dumped = ("CONTEXT",) if self._devices is not None else ("DEVICE", "CONTEXT")
        self._session = CuptiSession(
            self._cupti, self._library, self._buffers, self._nodes, detail=detail, dumped=dumped
        )

    def _calls(self, tables: Any) -> dict[tuple[str, int], str]:
        domains = self._cupti.CallbackDomain
        calls = {}
        for name, domain in {"runtime": domains.RUNTIME_API, "driver": domains.DRIVER_API}.items():
            for number in np.unique(tables[name]["cbid"]).tolist() if name in tables else ():
                # CUPTI may record calls without a name; rows then show the call's number.
                with contextlib.suppress(self._cupti.cuptiError):
                    calls[name, number] = self._cupti.get_callback_name(domain, number)
        return calls

    def _abandon_or_end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def abandon(self) -> None:
        """Forget the recording in a process that was forked: CUPTI does not work there."""
        self._session = self._clock = self._cupti = None

    def finish(self) -> None:
        """End the recording under way, if any, when the interpreter exits."""
        self._abandon_or_end()


def _new_buffers(count: int = COUNT) -> Buffers:
    """Return `count` buffers, or fewer if the system does not reserve as much address space."""
    try:
        return Buffers(count)
    except OSError:
        if count < 16:
            raise
    return _new_buffers(count // 4)


_armed: weakref.WeakSet[Cupti] = weakref.WeakSet()


def _finish_all() -> None:
    # Python's own exit handlers run before CUDA's and CUPTI's.
    for provider in list(_armed):
        provider.finish()


atexit.register(_finish_all)


# Aligns CUPTI's clock with the measurement's clock.

REPEATS = 16  # any reading may be interrupted: the tightest bounds count


_RATE = 1e-3  # clocks that count nanoseconds differ by less


@dataclass(frozen=True, slots=True)
class Reading:
    """CUPTI's clock (`theirs`), read between two readings of the measurement's in nanoseconds."""

    before: int
    theirs: int
    after: int


def read(
    ours: Callable[[], int], theirs: Callable[[], int], repeats: int = REPEATS
) -> list[Reading]:
    """Return readings of CUPTI's clock between readings of the measurement's clock."""
    return [Reading(ours(), theirs(), ours()) for _ in range(repeats)]


def align(first: Sequence[Reading], last: Sequence[Reading]) -> Alignment:
    """Return the alignment that readings at the beginning and at the end of a recording tell.

    If one offset suits all readings, the offset is constant. Else the clocks ran apart: the
    offset changes evenly, and the error covers a change at a single moment. If CUPTI's clock does
    not count nanoseconds, rate and offset are those of a line through the readings, and the error
    is by how much the line misses them.

    >>> align([Reading(10, 100, 14)], [Reading(50, 140, 54)])
    Alignment(times=(100, 140), offsets=(-88, -88), error_ns=2)
    """
    # Tell whether CUPTI's clock surely runs at a rate of its own, at each end and in between.
    # A clock that was set runs at the same rate as ours at each end.
    spans = (first[0], first[-1]), (last[0], last[-1]), (first[0], last[-1])
    rates = [_rate(*span) for span in spans]
    counts_otherwise = all(low > 1 + _RATE for low, _ in rates) or all(
        high < 1 - _RATE for _, high in rates
    )
    if counts_otherwise:
        return _fitted(first, last)
    (low, high), (later_low, later_high) = _bounds(first), _bounds(last)
    times = first[0].theirs, last[-1].theirs
    if max(low, later_low) <= min(high, later_high):
        low, high = max(low, later_low), min(high, later_high)
        return Alignment(times, ((low + high) // 2,) * 2, _half(low, high))
    offsets = (low + high) // 2, (later_low + later_high) // 2
    step = abs(offsets[1] - offsets[0])
    return Alignment(times, offsets, step + max(_half(low, high), _half(later_low, later_high)))


def _rate(begin: Reading, end: Reading) -> tuple[float, float]:
    """Return the least and the greatest rate of CUPTI's clock between two readings."""
    passed, most = end.theirs - begin.theirs, max(1, end.after - begin.before)
    least = end.before - begin.after
    return passed / most, passed / least if least > 0 else float("inf")


def _fitted(first: Sequence[Reading], last: Sequence[Reading]) -> Alignment:
    """Return the line through the tightest reading at each end; its error is all readings'."""
    ends = [min(readings, key=lambda one: one.after - one.before) for readings in (first, last)]
    times = ends[0].theirs, ends[1].theirs
    offsets = _middle(ends[0]) - times[0], _middle(ends[1]) - times[1]
    line = Alignment(times, offsets)
    readings = (*first, *last)
    met = line.convert(np.array([one.theirs for one in readings], np.int64)).tolist()
    pairs = zip(met, readings, strict=True)
    missed = max(max(one.before - at, at - one.after) for at, one in pairs)
    widest = max(_half(one.before, one.after) for one in ends)
    return Alignment(times, offsets, widest + max(0, missed))


def _middle(reading: Reading) -> int:
    return (reading.before + reading.after) // 2


def _bounds(readings: Sequence[Reading]) -> tuple[int, int]:
    """Return the least and the greatest offset that suit all readings."""
    low = max(reading.before - reading.theirs for reading in readings)
    high = min(reading.after - reading.theirs for reading in readings)
    return min(low, high), max(low, high)


def _half(low: int, high: int) -> int:
    return (high - low + 1) // 2
