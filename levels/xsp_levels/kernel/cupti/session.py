"""Collects the records that CUPTI makes during one recording into tables.

A `CuptiSession` subscribes to CUPTI and enables records when the object is made; `stop`
flushes and reads the records. Between the two no Python runs on CUPTI's behalf.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from xsp_levels.arming import undone_on_failure
from xsp_levels.kernel.cupti.buffer import Buffers
from xsp_levels.kernel.cupti.error import TAKEN
from xsp_levels.kernel.cupti.node import CLONED, CREATED, RESOURCE, Events, NodeLog, no_events
from xsp_levels.kernel.cupti.table import Layout, Table, gather, join, layout, walk

_ALWAYS = (
    "CONCURRENT_KERNEL",  # never KERNEL, which makes kernels run one after the other
    "MEMCPY",
    "MEMCPY2",
    "MEMSET",
    "RUNTIME",
    "DRIVER",
    "SYNCHRONIZATION",
    "OVERHEAD",
    "EXTERNAL_CORRELATION",
    "MARKER",
    # GRAPH_TRACE is left out: with it, CUPTI records a graph, but no kernel of the graph.
)
_DETAIL = ("MEMORY2",)
# Runtime calls that are frequent, short, and do not concern the device.
_NOISE = re.compile(
    r"cuda(Get|Peek|SetDevice|SetValid|Driver|Runtime|Choose|DeviceGet|DeviceCanAccess|Func[GS]et"
    r"|Occupancy|PointerGet|EventQuery|EventCreate|EventDestroy|StreamQuery|StreamGet"
    r"|StreamIsCapturing|ThreadExchange|CtxResetPersisting)",
)
# Driver calls, but for those that programs make without a runtime call around: Triton launches so,
# JAX builds graphs so.
_NO_LAUNCH = re.compile(
    r"cu(?!Launch|Graph(Launch|Add|Instantiate)|Memcpy|Memset|MemAlloc|MemFree"
    r"|(Ctx|Stream|Event)Synchronize)"
)
_COMPLETE, _FORCED = 0, 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_LIMIT_REACHED, _INVALID_KIND = 12, 21  # CUPTI_ERROR_MAX_LIMIT_REACHED, _INVALID_KIND
_WARNING = 34  # CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE, with which the recording goes on
_KERNELS = {3, 10}  # CUPTI_ACTIVITY_KIND_KERNEL, _CONCURRENT_KERNEL
_MOST_KINDS = 256
_PAUSE_S = 0.0005
PATIENCE_S = 0.1  # how long CUPTI may take to give buffers back, and kernels to end


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The records of one session.

    Attributes:
        tables: Columns of the records, by name of the table; see `table.FORMS`.
        texts: The texts that pointers in the tables point to, by pointer.
        nodes: Events of nodes of CUDA graphs.
        dropped: Number of records that CUPTI says were lost.
        warnings: Sentences about records that are missing or could not be read.
        idle: Whether the devices had ended all work: what has no times had no place for them.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    nodes: Events = field(default_factory=no_events)
    dropped: int = 0
    warnings: tuple[str, ...] = ()
    idle: bool = True


class CuptiSession:
    """A recording, from the making of this object until `stop`.

    Args:
        cupti: The module `cupti.cupti`.
        library: libcupti.
        buffers: Buffers for the records.
        nodes: Log for the events of graph nodes.
        detail: Whether device memory, which costs time, is recorded as well. When kernels were
            queued is never asked for: CUPTI tells that only if it is asked before CUDA begins,
            may not be asked again, and some releases then hang at a launch.
        dumped: Kinds that are recorded once, of devices and contexts that exist already.

    Raises:
        Exception: Whatever cupti-python raises; nothing is left enabled.
    """

    def __init__(
        self,
        cupti: Any,
        library: Any,
        buffers: Buffers,
        nodes: NodeLog,
        *,
        detail: bool,
        dumped: Sequence[str],
    ) -> None:
        self._cupti, self._library = cupti, library
        self._buffers, self._nodes = buffers, nodes
        self._kinds = (*_ALWAYS, *(_DETAIL if detail else ()))
        self._dumped = dumped
        self._unfinished_bytes = self._status = 0
        self._kept_before = buffers.missing
        self._held = contextlib.ExitStack()  # undoes the settings of CUPTI that recording needs
        self._enabled = contextlib.ExitStack()  # disables each kind of record
        with undone_on_failure(self.end):
            self._begin()

    def _begin(self) -> None:
        cupti = self._cupti
        self._refuse_rivals()
        subscriber = self._subscribe()
        _check(
            cupti,
            self._library.cuptiActivityRegisterCallbacks(
                self._buffers.requested, self._buffers.completed
            ),
        )
        self._no_clearing()
        # The kernel's numbers of threads, which the providers of other levels know as well.
        self._held.callback(cupti.set_thread_id_type, cupti.get_thread_id_type())
        cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
        # Have CUPTI record no query of an event or a stream that was answered with "not yet".
        enable = getattr(self._cupti, "activity_enable_all_sync_records", None)
        if enable is not None:
            with contextlib.suppress(self._cupti.cuptiError):
                enable(0)
                self._held.callback(enable, 1)
        for name in self._kinds:
            self._enable(getattr(cupti.ActivityKind, name))
        for name in self._dumped:
            kind = getattr(cupti.ActivityKind, name)
            cupti.activity_enable_and_dump(kind)
            self._enabled.callback(cupti.activity_disable, kind)
        self._choose_calls()
        for event in (CREATED, CLONED):
            self._cupti.enable_callback(1, subscriber, RESOURCE, event)
            self._enabled.callback(self._cupti.enable_callback, 0, subscriber, RESOURCE, event)

    def _refuse_rivals(self) -> None:
        """Raise if another tool has kernels recorded: its buffers would come to us, and be lost.

        Tools need not subscribe for that; Kineto does not since PyTorch 2.15.
        """
        enabled_kinds = getattr(self._library, "cuptiActivityGetEnabledKinds", None)
        if enabled_kinds is None:
            return
        kinds = (ctypes.c_int32 * _MOST_KINDS)()
        size, count = ctypes.c_uint32(_MOST_KINDS), ctypes.c_uint32()
        status = enabled_kinds(None, kinds, ctypes.byref(size), ctypes.byref(count))
        if status == 0 and _KERNELS & set(kinds[: min(count.value, _MOST_KINDS)]):
            raise self._cupti.cuptiError(TAKEN)

    def _subscribe(self) -> int:
        """Subscribe; CUPTI refuses if another tool has, and refuses others from now on."""
        cupti, handle = self._cupti, ctypes.c_void_p()
        callback = ctypes.c_void_p(self._nodes.callback)
        _check(cupti, self._library.cuptiSubscribe(ctypes.byref(handle), callback, None))
        subscriber = handle.value or 0
        self._held.callback(cupti.unsubscribe, subscriber)
        return subscriber

    def end(self) -> None:
        """Disable everything, and forget the records; a step that fails stops no other step."""
        try:
            self._disable()
        finally:
            self._buffers.recycle()
            self._nodes.take()

    def stop(self) -> RawRecords:
        """Flush, disable, and read the records.

        The caller has waited for the devices, as far as the framework can. A flush by force gives
        kernels that still run without their ends, and never again, so CUPTI is first given time.
        """
        try:
            idle = self._flush(_COMPLETE, again=True)
            self._enabled.close()
            self._flush(_FORCED)  # records that other threads made in between
            dropped = self._dropped()
            self._disable()
            tables, texts, unread = self._read()
            nodes, unnoted = self._nodes.take()
            warnings = tuple(self._warnings(unread, unnoted))
            return RawRecords(tables, texts, nodes, dropped, warnings, idle)
        finally:
            self.end()

    def _flush(self, how: int, *, again: bool = False) -> bool:
        """Have CUPTI return its buffers within a short wait, and return whether it did.

        CUPTI may do so on a thread of its own, a little after the call that asked for it.
        """
        self._cupti.activity_flush_all(how)
        late = time.monotonic() + PATIENCE_S
        while self._buffers.missing > self._kept_before and time.monotonic() < late:
            time.sleep(_PAUSE_S)
            if again:
                self._cupti.activity_flush_all(how)
        return self._buffers.missing <= self._kept_before

    def _disable(self) -> None:
        with self._held:  # undone last
            self._enabled.close()

    def _warnings(self, unread: int, unnoted: int) -> Iterator[str]:
        missing, refused = self._buffers.missing - self._kept_before, self._buffers.refused
        if missing > 0:
            yield (
                f"CUPTI kept {missing} buffers to itself when recording ended; their records are "
                "lost"
            )
        if refused:
            yield (
                f"CUPTI asked for {refused} more buffers than there is room for, and their records "
                "are lost; measure less at once"
            )
        if unread:
            yield (
                f"{unread} bytes of CUPTI's records could not be read; install the cupti-python of "
                "the CUDA that is loaded"
            )
        if self._unfinished_bytes:
            yield (
                f"{self._unfinished_bytes} bytes of CUPTI's records were not finished when "
                "recording ended, and are lost; wait for the device before the measured function "
                "returns"
            )
        if unnoted:
            yield (
                f"there was no room to note {unnoted} nodes of CUDA graphs; measure fewer captures "
                "at once"
            )

    def _enable(self, kind: Any) -> None:
        self._cupti.activity_enable(kind)
        self._enabled.callback(self._cupti.activity_disable, kind)

    def _choose_calls(self) -> None:
        """Leave frequent runtime calls out, and all driver calls but those that launch work.

        Asking for single driver calls instead of their kind would do where CUDA has not begun; in a
        process that has used CUDA, CUPTI then records none of them (seen with CUDA 13.0).
        """
        cupti = self._cupti
        for number in _matching(cupti.runtime_api_trace_cbid, _NOISE):
            cupti.activity_enable_runtime_api(number, 0)
        for number in _matching(cupti.driver_api_trace_cbid, _NO_LAUNCH):
            # A newer cupti-python knows calls that this CUPTI does not.
            with contextlib.suppress(cupti.cuptiError):
                cupti.activity_enable_driver_api(number, 0)

    def _no_clearing(self) -> None:
        """Tell CUPTI that buffers are zero already, so that CUPTI does not stall to clear them."""
        attribute = getattr(self._cupti.ActivityAttribute, "ATTR_ZEROED_OUT_BUFFER", None)
        if attribute is None:
            return
        for value in (1, 0):
            size, flag = ctypes.c_size_t(1), ctypes.c_uint8(value)
            setting = (
                self._cupti.activity_set_attribute,
                attribute,
                ctypes.addressof(size),
                ctypes.addressof(flag),
            )
            if value:
                setting[0](*setting[1:])
            else:
                self._held.callback(_kept_alive, (size, flag), *setting)

    def _dropped(self) -> int:
        count = ctypes.c_size_t()
        status = self._library.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(count))
        _check(self._cupti, status)
        return count.value

    def _read(self) -> tuple[dict[str, Table], dict[int, str], int]:
        how = layout(self._cupti)
        parts: dict[str, list[Table]] = {}
        texts: dict[int, str] = {}
        unread = 0
        for address, content in self._buffers.filled():
            found, left = walk(content, self._sizes(address, len(content)))
            if left and self._status == _INVALID_KIND and self._is_known(content, left, how):
                self._unfinished_bytes += left
            else:
                unread += left
            for kind, places in found.items():
                if form := how.forms.get(kind):
                    table = gather(content, places, how.dtypes[kind], form)
                    parts.setdefault(form.table, []).append(table)
                    for name in form.texts:
                        # Read texts while CUPTI still holds them; records share texts, so each is
                        # read once.
                        pointers = table[name]
                        for pointer in set(pointers.tolist()) - texts.keys():
                            if pointer:
                                texts[pointer] = ctypes.string_at(pointer).decode(errors="replace")
        return {name: join(tables) for name, tables in parts.items()}, texts, unread

    def _sizes(self, address: int, length: int) -> Callable[[int, int], int | None]:
        """Return a function that asks CUPTI for the length of a record."""

        def size_of(kind: int, at: int) -> int | None:
            record = ctypes.c_void_p(address + at)
            status = self._library.cuptiActivityGetNextRecord(address, length, ctypes.byref(record))
            if status == 0 and record.value is not None:
                return record.value - address - at
            self._status = status
            return length - at if status == _LIMIT_REACHED else None  # the buffer's last record

        return size_of

    @staticmethod
    def _is_known(content: memoryview, left: int, how: Layout) -> bool:
        """Tell whether the record that CUPTI does not step over is of a kind that it made."""
        at = len(content) - left
        return int.from_bytes(content[at : at + 4], "little") in how.forms


@cache
def _matching(calls: Any, names: re.Pattern[str]) -> tuple[int, ...]:
    """Return the numbers of the calls of an enumeration whose names match."""
    return tuple(int(call) for call in calls if names.match(call.name))


def _kept_alive(values: tuple[Any, ...], function: Callable[..., Any], *args: Any) -> None:
    del values  # held until now: `args` are their addresses
    function(*args)


def _check(cupti: Any, status: int) -> None:
    if status not in (0, _WARNING):
        raise cupti.cuptiError(status)
