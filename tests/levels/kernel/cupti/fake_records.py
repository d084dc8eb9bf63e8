"""NVIDIA's structures of activity records: names, offsets and sizes as in CUPTI 13."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np


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
