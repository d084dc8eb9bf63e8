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

import numpy as np
import numpy.typing as npt

REQUESTED = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)

NODE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_NODE_ID = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))

Records = npt.NDArray[Any]


@_NODE_ID  # type: ignore[untyped-decorator]
def _node_id(node: int | None, number: Any) -> int:
    number[0] = node or 0
    return 0


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    DEVICE = 8
    CONTEXT = 9
    CONCURRENT_KERNEL = 10
    MARKER = 12
    OVERHEAD = 17
    MEMCPY2 = 22
    SYNCHRONIZATION = 38
    EXTERNAL_CORRELATION = 39
    MEMORY2 = 49


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


def structure(size: int, **fields: tuple[str, int]) -> np.dtype[Any]:
    """Return a data type with fields at their offsets in NVIDIA's structure."""
    names, places = list(fields), list(fields.values())
    return np.dtype(
        {
            "names": ["kind", *names],
            "formats": ["i4", *(kind for kind, _ in places)],
            "offsets": [0, *(at for _, at in places)],
            "itemsize": size,
        }
    )


def _u4(**offsets: int) -> dict[str, tuple[str, int]]:
    return {name: ("u4", at) for name, at in offsets.items()}


def _u8(**offsets: int) -> dict[str, tuple[str, int]]:
    return {name: ("u8", at) for name, at in offsets.items()}


KERNEL = structure(
    224,
    registers_per_thread=("u2", 6),
    **_u8(start=16, end=24, queued=120, submitted=128, graph_node_id=144),
    **_u4(device_id=40, context_id=44, stream_id=48, correlation_id=92, graph_id=156),
    **_u4(grid_x=52, grid_y=56, grid_z=60, block_x=64, block_y=68, block_z=72),
    **_u4(static_shared_memory=76, dynamic_shared_memory=80, shared_memory_executed=140),
    name=("i8", 104),
)
API = structure(
    40,
    **_u8(start=8, end=16),
    **_u4(cbid=4, process_id=24, thread_id=28, correlation_id=32, return_value=36),
)
MEMCPY = structure(
    96,
    copy_kind=("u1", 4),
    src_kind=("u1", 5),
    dst_kind=("u1", 6),
    **_u8(bytes=8, start=16, end=24, graph_node_id=64),
    **_u4(device_id=32, context_id=36, stream_id=40, correlation_id=44, graph_id=72),
)
PEER = structure(
    96,
    copy_kind=("u1", 4),
    src_kind=("u1", 5),
    dst_kind=("u1", 6),
    **_u8(bytes=8, start=16, end=24, graph_node_id=72),
    **_u4(device_id=32, context_id=36, stream_id=40, correlation_id=60, graph_id=80),
)
MEMSET = structure(
    88,
    memory_kind=("u2", 50),
    **_u8(bytes=8, start=16, end=24, graph_node_id=64),
    **_u4(value=4, device_id=32, context_id=36, stream_id=40, correlation_id=44, graph_id=72),
)
SYNC = structure(
    56,
    **_u8(start=8, end=16),
    **_u4(type=4, correlation_id=24, context_id=28, stream_id=32),
)
OVERHEAD = structure(56, overhead_kind=("i4", 4), **_u8(start=24, end=32), **_u4(correlation_id=40))
EXTERNAL = structure(24, external_kind=("i4", 4), **_u8(external_id=8), **_u4(correlation_id=16))
_THREAD = np.dtype([("process_id", "u4"), ("thread_id", "u4")])
MARKER = structure(
    56,
    flags_=("i4", 4),
    object_kind=("i4", 20),
    object_id=(np.dtype({"names": ["pt"], "formats": [_THREAD], "itemsize": 12}), 24),  # type: ignore[arg-type]
    **_u8(timestamp=8),
    **_u4(id=16),
    name=("i8", 40),
    domain=("i8", 48),
)
MEMORY = structure(
    128,
    **_u8(bytes=24, timestamp=32),
    **_u4(memory_operation_type=4, memory_kind=8, correlation_id=12),
)
DEVICE = structure(
    192,
    **_u4(
        max_warps_per_multiprocessor=52,
        max_blocks_per_multiprocessor=56,
        max_shared_memory_per_multiprocessor=60,
        max_registers_per_multiprocessor=64,
        compute_capability_major=104,
        compute_capability_minor=108,
        id=112,
    ),
)
CONTEXT = structure(40, **_u4(context_id=4, device_id=8))

DTYPES = {
    ActivityKind.CONCURRENT_KERNEL: KERNEL,
    ActivityKind.RUNTIME: API,
    ActivityKind.DRIVER: API,
    ActivityKind.MEMCPY: MEMCPY,
    ActivityKind.MEMCPY2: PEER,
    ActivityKind.MEMSET: MEMSET,
    ActivityKind.SYNCHRONIZATION: SYNC,
    ActivityKind.OVERHEAD: OVERHEAD,
    ActivityKind.EXTERNAL_CORRELATION: EXTERNAL,
    ActivityKind.MARKER: MARKER,
    ActivityKind.MEMORY2: MEMORY,
    ActivityKind.DEVICE: DEVICE,
    ActivityKind.CONTEXT: CONTEXT,
}


def record(kind: ActivityKind, **values: Any) -> bytes:
    """Return one record; fields that are not given are zero."""
    one = np.zeros(1, DTYPES[kind])
    one["kind"] = kind
    for name, value in values.items():
        if name == "object_id":
            one["object_id"]["pt"]["thread_id"] = value
        else:
            one[name] = value
    return one.tobytes()


def without_end(made: bytes) -> bytes:
    """Return a record as CUPTI gives it back by force: a kernel that runs has no end yet."""
    kind = ActivityKind(int.from_bytes(made[:4], "little"))
    if kind is not ActivityKind.CONCURRENT_KERNEL:
        return made
    one = np.frombuffer(made, DTYPES[kind]).copy()
    one["end"] = 0
    return one.tobytes()


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

    def activity_enable_and_dump(self, kind: IntEnum) -> None:
        self._call("activity_enable_and_dump")
        self.enabled.add(kind.name)

    def activity_disable(self, kind: IntEnum) -> None:
        self._call("activity_disable")
        self.enabled.discard(kind.name)

    def activity_enable_latency_timestamps(self, enable: int) -> None:
        self._switch("latency", enable)

    def activity_enable_runtime_api(self, cbid: int, enable: int) -> None:
        self._switch(f"runtime {cbid}", enable)

    def activity_enable_driver_api(self, cbid: int, enable: int) -> None:
        self._switch(f"driver {cbid}", enable)

    def activity_set_attribute(self, attribute: int, size: int, value: int) -> None:
        self._switch("zeroed", ctypes.c_uint8.from_address(value).value)

    def get_thread_id_type(self) -> int:
        return int(self.thread_id_type)

    def set_thread_id_type(self, type: int) -> None:
        assert not self.enabled - {"zeroed"}
        self.thread_id_type = ActivityThreadIdType(type)

    def thread_id(self) -> int:
        """Return what records call the calling thread."""
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
