"""Reads buffers that CUPTI has filled into a table of columns for each kind of record.

A buffer holds records of all kinds one after the other. Each record begins with the number
of its kind, and all records of a kind are of one length in one version of CUPTI.
cupti-python's data types tell the offsets of fields in NVIDIA's structures; later versions
only append fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Table = dict[str, npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]

_PLACE = ("device_id", "context_id", "stream_id")
_DEVICE_WORK = ("start", "end", *_PLACE, "correlation_id", "graph_id", "graph_node_id")
_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_CALL = ("start", "end", "cbid", "thread_id", "correlation_id")


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of one kind of record that are read.

    Attributes:
        table: Name of the table.
        kind: Name in `cupti.ActivityKind`.
        dtype: Pattern of the name of cupti-python's data type; of several data types that
            match, the one with the highest last number is taken.
        fields: Names of the fields.
        texts: Names of the fields that point to text.
    """

    table: str
    kind: str
    dtype: str
    fields: tuple[str, ...]
    texts: tuple[str, ...] = ()


FORMS: tuple[Form, ...] = (
    Form(
        "kernel",
        "CONCURRENT_KERNEL",
        r"activity_kernel\d+_dtype",
        (
            *_DEVICE_WORK,
            *_SHAPE,
            "name",
            "registers_per_thread",
            "static_shared_memory",
            "dynamic_shared_memory",
            "shared_memory_executed",
            "queued",
        ),
        ("name",),
    ),
    Form(
        "memcpy",
        "MEMCPY",
        r"activity_memcpy\d+_dtype",
        (*_DEVICE_WORK, "bytes", "copy_kind", "src_kind", "dst_kind"),
    ),
    Form(
        "peer",
        "MEMCPY2",
        r"activity_memcpy_pto_p\d+_dtype",
        (*_DEVICE_WORK, "bytes", "copy_kind", "src_kind", "dst_kind"),
    ),
    Form(
        "memset",
        "MEMSET",
        r"activity_memset\d+_dtype",
        (*_DEVICE_WORK, "bytes", "memory_kind"),
    ),
    Form("runtime", "RUNTIME", "activity_api_dtype", _CALL),
    Form("driver", "DRIVER", "activity_api_dtype", _CALL),
    Form(
        "sync",
        "SYNCHRONIZATION",
        r"activity_synchronization\d+_dtype",
        ("start", "end", "type", "correlation_id", "context_id", "stream_id"),
    ),
    Form(
        "overhead",
        "OVERHEAD",
        r"activity_overhead\d+_dtype",
        ("start", "end", "overhead_kind", "correlation_id"),
    ),
    Form(
        "external",
        "EXTERNAL_CORRELATION",
        "activity_external_correlation_dtype",
        ("external_kind", "external_id", "correlation_id"),
    ),
    Form(
        "marker",
        "MARKER",
        r"activity_marker\d+_dtype",
        ("timestamp", "flags_", "id", "object_id", "name", "domain"),
        ("name", "domain"),
    ),
    Form(
        "memory",
        "MEMORY2",
        r"activity_memory\d+_dtype",
        ("memory_operation_type", "bytes", "correlation_id"),
    ),
    Form(
        "device",
        "DEVICE",
        r"activity_device\d+_dtype",
        (
            "id",
            "compute_capability_major",
            "compute_capability_minor",
            "max_warps_per_multiprocessor",
            "max_blocks_per_multiprocessor",
            "max_registers_per_multiprocessor",
            "max_shared_memory_per_multiprocessor",
        ),
    ),
    Form("context", "CONTEXT", r"activity_context\d+_dtype", ("context_id", "device_id")),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The structure of records in this cupti-python.

    Attributes:
        forms: The form of each kind, by the kind's number.
        dtypes: The data type of each kind, by the kind's number.
    """

    forms: Mapping[int, Form]
    dtypes: Mapping[int, np.dtype[Any]]


def layout(cupti: Any) -> Layout:
    """Return the structure of records, without kinds that this cupti-python does not know.

    Args:
        cupti: The module `cupti.cupti`.
    """
    forms, dtypes = {}, {}
    names = [name for name in dir(cupti) if name.endswith("_dtype")]
    for form in FORMS:
        found = max((n for n in names if re.fullmatch(form.dtype, n)), key=_version, default=None)
        kind = getattr(cupti.ActivityKind, form.kind, None)
        if found is not None and kind is not None:
            forms[int(kind)] = form
            dtypes[int(kind)] = np.dtype(getattr(cupti, found))
    return Layout(forms, dtypes)


def _version(name: str) -> int:
    """Return the last number in a name.

    >>> _version("activity_memcpy_pto_p4_dtype"), _version("activity_api_dtype")
    (4, 0)
    """
    return int(([0, *re.findall(r"\d+", name)])[-1])


def walk(
    buffer: memoryview, size_of: Callable[[int, int], int | None]
) -> tuple[dict[int, list[int]], int]:
    """Return the offsets of the records of each kind, and the count of bytes not read.

    A kind's length is asked for until two records agree on it: CUPTI may step over a record.

    Args:
        buffer: Records one after the other.
        size_of: Returns the length of a record, given its kind and offset; None for an
            unknown length, which ends the walk.
    """
    places: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}  # that two records of the kind agree on
    before: dict[int, int] = {}  # of the kind's record before
    words = buffer.cast("B")[: len(buffer) & ~3].cast("I")
    at, end = 0, len(words) * 4
    while at < end:
        kind = words[at >> 2]
        size = sizes.get(kind)
        if size is None:
            found = size_of(kind, at)
            if not found or found < 4 or found % 4:
                return places, end - at
            if before.get(kind) == found:
                sizes[kind] = found
            size = before[kind] = found
            places.setdefault(kind, [])
        places[kind].append(at)
        at += size
    return places, 0


def gather(buffer: memoryview, places: Sequence[int], dtype: np.dtype[Any], form: Form) -> Table:
    """Return the fields of the records at some offsets; a field that is missing is zero.

    Args:
        buffer: The buffer that holds the records.
        places: Offset of each record, a multiple of 4.
        dtype: The records' data type.
        form: The fields that are read.
    """
    content = np.zeros(len(buffer) + dtype.itemsize, np.uint8)
    content[: len(buffer)] = np.frombuffer(buffer, np.uint8)
    everywhere: Any = np.ndarray((len(buffer) // 4 + 1,), dtype=dtype, buffer=content, strides=(4,))
    records = everywhere[np.asarray(places, np.int64) // 4]
    return {name: _column(records, name) for name in form.fields}


def join(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of all tables."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _column(records: Any, name: str) -> npt.NDArray[Any]:
    if name not in records.dtype.fields:
        return np.zeros(len(records), np.int64)
    column = records[name]
    if name == "object_id":  # of a marker: the thread that made the marker
        column = column["pt"]["thread_id"]
    return np.ascontiguousarray(column)
