"""Stands in for cupti-python and libcupti: real names, real buffers, scripted records.

What is enabled is kept as CUPTI keeps it; buffers come and go through the callbacks
that were registered, which are called as CUPTI calls them: from C.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from fake_records import (
    API,
    CONTEXT,
    DEVICE,
    DTYPES,
    EXTERNAL,
    KERNEL,
    MARKER,
    MEMCPY,
    MEMORY,
    MEMSET,
    OVERHEAD,
    PEER,
    SYNC,
    ActivityKind,
    without_end,
)

REQUESTED = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)

NODE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_NODE_ID = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))


@_NODE_ID  # type: ignore[untyped-decorator]
def _node_id(node: int | None, number: Any) -> int:
    number[0] = node or 0
    return 0


class ActivityAttribute(IntEnum):
    ATTR_ZEROED_OUT_BUFFER = 5


class ActivityThreadIdType(IntEnum):
    DEFAULT = 0
    SYSTEM = 1


class CallbackDomain(IntEnum):
    DRIVER_API = 1
    RUNTIME_API = 2


RuntimeCalls = IntEnum(
    "RuntimeCalls",
    {
        "INVALID": 0,
        "cudaGetDevice_v3020": 17,
        "cudaLaunchKernel_v7000": 211,
        "cudaGraphInstantiate_v10000": 305,
        "cudaGraphLaunch_v10000": 311,
    },
)
DriverCalls = IntEnum("DriverCalls", {"INVALID": 0, "cuCtxGetDevice": 9, "cuLaunchKernel": 307})


class cuptiError(Exception):  # noqa: N801  # NVIDIA's name
    def __init__(self, status: int) -> None:
        super().__init__(f"ERROR ({status})")
        self.status = status


@dataclass
class FakeCupti:
    """Module and library in one.

    Attributes:
        script: Records that the next flush delivers, in buffers of so many each.
        failing: Status that a function of that name fails with.
        lengths: Bytes of a record of each kind, in this libcupti.
        dropped: How many records are said to be lost.
        running: Records of kernels that still run, in a buffer handed out for them, and when
            (`time.monotonic_ns`) they have ended. CUPTI gives such a buffer back once they have,
            or by force without their ends.
        late_s: Seconds after a flush at which CUPTI gives buffers back, on a thread of its own.
        rival_kinds: Numbers of the kinds that another tool has enabled; None where this CUPTI
            cannot be asked.
        log: Names of the functions called, in order.
    """

    script: list[list[bytes]] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)
    lengths: dict[ActivityKind, int] = field(
        default_factory=lambda: {kind: dtype.itemsize for kind, dtype in DTYPES.items()}
    )
    dropped: int = 0
    running: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    late_s: float = 0.0
    rival_kinds: tuple[int, ...] | None = None
    incomplete: set[int] = field(default_factory=set)  # addresses of records without their rest
    log: list[str] = field(default_factory=list)
    enabled: set[str] = field(default_factory=set)
    offset_ns: int = 1_000_000_000_000
    thread_id_type: ActivityThreadIdType = ActivityThreadIdType.DEFAULT
    subscribed: bool = False
    callbacks: tuple[int, int] | None = None
    node_callback: Any = None

    cuptiGetGraphNodeId = _node_id  # noqa: N815  # NVIDIA's name
    ActivityKind = ActivityKind
    ActivityAttribute = ActivityAttribute
    ActivityThreadIdType = ActivityThreadIdType
    CallbackDomain = CallbackDomain
    runtime_api_trace_cbid = RuntimeCalls
    driver_api_trace_cbid = DriverCalls
    cuptiError = cuptiError  # noqa: N815  # NVIDIA's name
    activity_kernel11_dtype = KERNEL
    activity_api_dtype = API
    activity_memcpy6_dtype = MEMCPY
    activity_memcpy_pto_p4_dtype = PEER
    activity_memset4_dtype = MEMSET
    activity_synchronization2_dtype = SYNC
    activity_overhead3_dtype = OVERHEAD
    activity_external_correlation_dtype = EXTERNAL
    activity_marker2_dtype = MARKER
    activity_memory4_dtype = MEMORY
    activity_memory_dtype = MEMORY
    activity_device6_dtype = DEVICE
    activity_context4_dtype = CONTEXT

    def get_timestamp(self) -> int:
        return time.monotonic_ns() + self.offset_ns

    def cuptiSubscribe(self, handle: Any, callback: ctypes.c_void_p, user: None) -> int:  # noqa: N802
        self.log.append("subscribe")
        if self.subscribed or "subscribe" in self.failing:
            return self.failing.get("subscribe", 39)
        handle._obj.value = 1
        self.node_callback = NODE(callback.value or 0)
        self.subscribed = True
        return 0

    def unsubscribe(self, subscriber: int) -> None:
        self._call("unsubscribe")
        assert subscriber == 1
        self.subscribed = False

    def enable_callback(self, enable: int, subscriber: int, domain: int, cbid: int) -> None:
        assert (subscriber, domain) == (1, 3)
        self._switch(f"resource {cbid}", enable)

    def node(self, cbid: int, node: int, original: int = 0) -> None:
        """Tell of a node that was created (13) or cloned (20); its number is its address."""
        if f"resource {cbid}" not in self.enabled:
            return
        data = (ctypes.c_uint64 * 10)()
        data[2], data[5], data[6] = ctypes.addressof(data) + 24, node, original
        self.node_callback(None, 3, cbid, ctypes.addressof(data))

    def activity_enable(self, kind: IntEnum) -> None:
        self._call("activity_enable")
        self.enabled.add(kind.name)
        if kind is ActivityKind.DRIVER:
            self.enabled |= {f"driver {int(call)}" for call in DriverCalls}

    def activity_enable_and_dump(self, kind: IntEnum) -> None:
        self._call("activity_enable_and_dump")
        self.enabled.add(kind.name)

    def activity_disable(self, kind: IntEnum) -> None:
        self._call("activity_disable")
        self.enabled.discard(kind.name)
        if kind is ActivityKind.DRIVER:
            self.enabled -= {f"driver {int(call)}" for call in DriverCalls}

    def activity_enable_latency_timestamps(self, enable: int) -> None:
        self._switch("latency", enable)

    def activity_enable_runtime_api(self, cbid: int, enable: int) -> None:
        self._switch(f"runtime {cbid}", enable)

    def activity_enable_driver_api(self, cbid: int, enable: int) -> None:
        """Single calls are recorded of a process that has not used CUDA yet, so here none is."""
        if "DRIVER" in self.enabled:
            self._switch(f"driver {cbid}", enable)

    def activity_set_attribute(self, attribute: int, size: int, value: int) -> None:
        self._switch("zeroed", ctypes.c_uint8.from_address(value).value)

    def get_thread_id_type(self) -> int:
        return int(self.thread_id_type)

    def set_thread_id_type(self, type: int) -> None:
        assert not self.enabled - {"zeroed"}
        self.thread_id_type = ActivityThreadIdType(type)

    def thread_id(self) -> int:
        """Number the calling thread as records do."""
        if self.thread_id_type is ActivityThreadIdType.SYSTEM:
            return threading.get_native_id()
        return threading.get_ident() & 0xFFFFFFFF

    def get_callback_name(self, domain: int, cbid: int) -> str:
        calls = RuntimeCalls if domain == CallbackDomain.RUNTIME_API else DriverCalls
        if cbid not in list(calls):
            raise cuptiError(1)
        return calls(cbid).name

    def activity_enable_all_sync_records(self, enable: int) -> None:
        self._switch("no vain queries", 1 - enable)

    def activity_flush_all(self, flag: int) -> None:
        self._call("activity_flush_all")
        assert self.callbacks is not None
        script, self.script = self.script, []
        for records in script:
            self.deliver(b"".join(records))
        running, self.running = self.running, []
        for ended_ns, buffer, records in running:
            if time.monotonic_ns() >= ended_ns:
                self._complete(buffer, b"".join(records))
            elif flag:
                self._complete(buffer, b"".join(without_end(one) for one in records))
            else:
                self.running.append((ended_ns, buffer, records))

    def run(self, records: list[bytes], ended_ns: int) -> None:
        """Have records come back once their kernels have ended."""
        buffer, _ = self.request()
        assert buffer is not None
        self.running.append((ended_ns, buffer, records))

    def deliver(self, content: bytes) -> None:
        assert self.callbacks is not None
        buffer, size = self.request()
        if buffer is None:
            self.dropped += 1
            return
        assert len(content) <= size
        if self.late_s:
            threading.Timer(self.late_s, self._complete, (buffer, content)).start()
        else:
            self._complete(buffer, content)

    def _complete(self, buffer: int, content: bytes) -> None:
        assert self.callbacks is not None
        ctypes.memmove(buffer, content, len(content))
        COMPLETED(self.callbacks[1])(None, 0, buffer, 1 << 16, len(content))

    def request(self) -> tuple[int | None, int]:
        assert self.callbacks is not None
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(7)
        pointers = ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most)
        REQUESTED(self.callbacks[0])(*pointers)
        assert most.value == 0
        return buffer.value, size.value

    def cuptiActivityRegisterCallbacks(self, requested: int, completed: int) -> int:  # noqa: N802
        self.callbacks = requested, completed
        return self.failing.get("cuptiActivityRegisterCallbacks", 0)

    def cuptiActivityGetNextRecord(self, buffer: int, length: int, pointer: Any) -> int:  # noqa: N802
        at = pointer._obj.value
        kind = ctypes.c_uint32.from_address(at).value
        if kind not in DTYPES or at in self.incomplete:
            return 21
        following = at + self.lengths[ActivityKind(kind)]
        if following >= buffer + length:
            return 12
        pointer._obj.value = following
        return 0

    def __getattr__(self, name: str) -> Any:
        if name == "cuptiActivityGetEnabledKinds" and self.rival_kinds is not None:
            return self._enabled_kinds
        raise AttributeError(name)

    def _enabled_kinds(self, subscriber: None, kinds: Any, size: Any, count: Any) -> int:
        found = self.rival_kinds or ()
        assert len(found) <= size._obj.value
        kinds[: len(found)] = found
        count._obj.value = len(found)
        return 0

    def cuptiActivityGetNumDroppedRecords(  # noqa: N802
        self, context: None, stream: int, pointer: Any
    ) -> int:
        pointer._obj.value, self.dropped = self.dropped, 0
        return 0

    def _switch(self, name: str, enable: int) -> None:
        self._call(name)
        (self.enabled.add if enable else self.enabled.discard)(name)

    def _call(self, name: str) -> None:
        self.log.append(name)
        if name in self.failing:
            raise cuptiError(self.failing[name])
