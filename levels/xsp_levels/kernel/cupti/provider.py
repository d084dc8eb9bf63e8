"""The CUPTI provider: a request to record in; records, and later rows made of them, out.

CUPTI records every call of CUDA in the process, whichever framework makes the call.
Correlation ids tie each device activity to its launch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import Any

import numpy as np

from xsp.clock import Clock
from xsp.errors import ProviderError
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows
from xsp_levels.arming import OWN
from xsp_levels.kernel import inductor
from xsp_levels.kernel.cupti import library
from xsp_levels.kernel.cupti.buffer import COUNT, Buffers
from xsp_levels.kernel.cupti.clock import Reading, align, read
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
    "{count} kernels and copies have no times, for CUPTI had no place on the device for them; "
    "free device memory, or measure less at once"
)
_UNFINISHED = (
    "{count} kernels and copies had not ended {ms:.0f} ms after the measured function had, so they "
    "are left out; wait for the device before it returns, as with torch.cuda.synchronize()"
)
_STRAYS = (
    "{count} kernels and copies have times before their launch or after the recording, and are "
    "left out: another profiler, such as PyTorch's, changed CUPTI's clock; measure in a fresh "
    "process"
)
_EMPTY_GRAPHS = (
    "{count} of {all} launches of CUDA graphs have no kernel in CUPTI's records. CUPTI may lose "
    "the kernels of graphs that were captured in an earlier recording, and older ones than that of "
    "CUDA 13.1 update 1 mix up their numbers: update CUPTI, or have the measured function capture "
    "the graph each time"
)
_ASTRAY = (
    "CUPTI's times lie up to {ms:.1f} ms outside of the recording: another tool gave CUPTI a "
    "clock of its own, and kernels are misplaced by as much; measure in a fresh process"
)
_INJECTION = "NVTX_INJECTION64_PATH"
_NO_RANGES = (
    "NVTX ranges, by which NCCL tells of its calls, are not seen; set NVTX_INJECTION64_PATH to the "
    "path of libcupti before the program starts to see them"
)
_ASTRAY_NS = 1_000_000
_UNCERTAIN = (
    "CUPTI's clock was set while it recorded, or settled only when CUDA began: kernels are "
    "misplaced by up to {us:.0f} µs"
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
        if _torch_profiles():
            raise ProviderError(explain_code(TAKEN) or "")
        try:
            if self._cupti is None:
                self._warm_up()
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
        astray = _astray_ns(tables, alignment, self._begun_ns, ended_ns)
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
        problems = recorded.problems + tuple(sentence for is_so, sentence in said if is_so)
        created = self._lineage.learn(recorded.nodes)
        data = CuptiRecords(
            self._kinds,
            tables,
            recorded.texts,
            calls,
            thread.names(),
            alignment,
            inductor.sources(recorded.texts.values()),
            created,
            self._lineage.captured(nodes_that_ran(tables)),
        )
        return Records(data, recorded.dropped + lost + running + strays, problems)

    def _warm_up(self) -> None:
        """Load CUPTI and record once, as CUPTI's first use can take seconds."""
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


def _torch_profiles() -> bool:
    """Tell whether PyTorch's profiler runs for the user.

    It need not subscribe to CUPTI, and CUPTI before CUDA 13 does not tell what it has enabled.
    """
    torch = sys.modules.get("torch")
    return torch is not None and "kineto" not in OWN and torch.autograd._profiler_enabled()


def _new_buffers(count: int = COUNT) -> Buffers:
    """Return `count` buffers, or fewer if the system does not reserve as much address space."""
    try:
        return Buffers(count)
    except OSError:
        if count < 16:
            raise
    return _new_buffers(count // 4)


def _astray_ns(tables: Any, alignment: Alignment, begin: int, end: int) -> int:
    """Return by how much the converted times of calls lie outside of the recording."""
    furthest = 0
    for name in ("runtime", "driver"):
        if name in tables and len(tables[name]["start"]):
            start = alignment.convert(tables[name]["start"].astype(np.int64))
            furthest = max(furthest, begin - int(start.min()), int(start.max()) - end)
    return furthest


_armed: weakref.WeakSet[Cupti] = weakref.WeakSet()


def _finish_all() -> None:
    # Python's own exit handlers run before CUDA's and CUPTI's.
    for provider in list(_armed):
        provider.finish()


atexit.register(_finish_all)
