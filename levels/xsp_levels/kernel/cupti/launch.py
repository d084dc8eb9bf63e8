"""Rows of launches in; the rows with device memory, ids, cost and captured nodes out. Pure.

Here are also rows of what lies around launches: NVTX's ranges of libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import Provenance, SpanRows, no_rows, span_rows
from xsp_levels.kernel.cupti.table import Table
from xsp_levels.native import thread
from xsp_levels.native.alignment import Alignment

_START, _END = 1 << 1, 1 << 2  # CUPTI_ACTIVITY_FLAG_MARKER_START, _END
_LOGGED = re.compile(r"cublas|cudnn", re.IGNORECASE)  # domains of libraries with loggers
_ALLOCATION, _RELEASE = 1, 2  # of CUpti_ActivityMemoryOperationType
# The attribute by CUpti_ActivityOverheadKind. Others (unknown, of managed memory) are nobody's.
_CUPTI, _LOADING, _FULL = "attr.cupti_overhead_ns", "attr.module_loading_ns", "attr.queue_full_ns"
_COSTS = {
    1: _LOADING,  # the driver's compiler
    1 << 16: _CUPTI,  # flushing buffers
    2 << 16: _CUPTI,  # instrumentation
    3 << 16: _CUPTI,  # resources
    4 << 16: _LOADING,  # a module that the runtime loads
    5 << 16: _LOADING,  # a function that is loaded when first launched
    6 << 16: _FULL,  # no room for commands
    7 << 16: _CUPTI,  # asking for a buffer
}


def annotated(frame: SpanRows, tables: Mapping[str, Table], alignment: Alignment) -> SpanRows:
    """Return launches with the attributes that tables other than the launches' own hold.

    Args:
        frame: The launches.
        tables: Columns of CUPTI's records, by name of the table.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
    """
    for name, attributes in _ATTRIBUTES.items():
        if (table := tables.get(name)) is not None:
            found = attributes(table, alignment)
            frame = frame.join(found, on="correlation_id", how="left", maintain_order="left")
    return frame


def captured_by(
    frame: SpanRows, created: Table, threads: Mapping[int, int], *, error_ns: int
) -> SpanRows:
    """Return launches with the numbers of the nodes that each captured into a graph.

    Args:
        frame: The launches; no launch lies within another on the same thread.
        created: `time`, `thread` (the kernel's number) and `node` of each captured node.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        error_ns: By how much the times of launches may be wrong; if a launch is shorter
            than that, its node may be given to a neighbour.
    """
    if not len(created.get("node", ())) or not frame.height:
        return frame
    numbered = frame.with_row_index("call")
    nodes = pl.DataFrame(
        {
            "time": created["time"],
            "thread": thread.named(created["thread"], threads),
            "attr.created_nodes": created["node"],
        }
    ).sort("time")
    calls = numbered.select("call", "thread", "start_ns", "end_ns").sort("start_ns")
    certain = _within(nodes, calls)
    rest = nodes.join(certain, on=nodes.columns, how="anti")
    widened = calls.with_columns(pl.col("start_ns") - error_ns, pl.col("end_ns") + error_ns)
    found = pl.concat([certain, _within(rest, widened)])
    lists = found.sort("time", maintain_order=True).group_by("call").agg("attr.created_nodes")
    return numbered.join(lists, on="call", how="left", maintain_order="left").drop("call")


def _within(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes that lie in a call of their thread, with the call's number; both sorted."""
    found = nodes.join_asof(
        calls, left_on="time", right_on="start_ns", by="thread", check_sortedness=False
    )
    return found.filter(pl.col("time") <= pl.col("end_ns")).select(*nodes.columns, "call")


def _overheads(table: Table, alignment: Alignment) -> pl.DataFrame:
    """Return what else took time in each launch: CUPTI's own work, and the driver's."""
    start, end = (alignment.convert(table[name].astype(np.int64)) for name in ("start", "end"))
    cost = pl.DataFrame(
        {
            "correlation_id": table["correlation_id"].astype(np.int64),
            "kind": table["overhead_kind"].astype(np.int64),
            "length": end - start,
        }
    )
    named = cost.with_columns(
        pl.col("kind").replace_strict(_COSTS, default=None, return_dtype=pl.String)
    )
    return named.group_by("correlation_id").agg(
        _sum_or_null(pl.col("length").filter(pl.col("kind") == name)).alias(name)
        for name in dict.fromkeys(_COSTS.values())
    )


def _sum_or_null(values: pl.Expr) -> pl.Expr:
    """Return the sum of values, null for no values at all: what was not told is not zero."""
    return pl.when(values.len() > 0).then(values.sum())


def _external_ids(table: Table, _: Alignment) -> pl.DataFrame:
    """Return the id that another tool or the framework pushed around each launch.

    Several may push, each ids of a kind of its own. The ids of one kind are taken: the lowest, for
    Kineto pushes operators' ids as that, and ids of the user's ranges as the next.
    """
    ids = pl.DataFrame(
        {
            "correlation_id": table["correlation_id"].astype(np.int64),
            "attr.external_id": table["external_id"].astype(np.int64),
            "kind": table["external_kind"].astype(np.int64),
        }
    )
    ids = ids.filter(pl.col("kind") == pl.col("kind").min()).drop("kind")
    return ids.unique("correlation_id", keep="last", maintain_order=True)


def _memory(table: Table, _: Alignment) -> pl.DataFrame:
    """Return the device memory that each launch allocated or freed."""
    operation, size = pl.col("operation"), pl.col("size")
    changes = pl.DataFrame(
        {
            "correlation_id": table["correlation_id"].astype(np.int64),
            "operation": table["memory_operation_type"].astype(np.int64),
            "size": table["bytes"].astype(np.int64),
        }
    )
    return changes.group_by("correlation_id").agg(
        size.filter(operation == _ALLOCATION).sum().alias("attr.allocated_bytes"),
        size.filter(operation == _RELEASE).sum().alias("attr.freed_bytes"),
    )


# Attributes of launches by correlation id, by the table that CUPTI tells them in.
_ATTRIBUTES: dict[str, Callable[[Table, Alignment], pl.DataFrame]] = {
    "external": _external_ids,
    "overhead": _overheads,
    "memory": _memory,
}


def range_rows(
    table: Table | None,
    texts: Mapping[int, str],
    threads: Mapping[int, int],
    alignment: Alignment,
) -> SpanRows:
    """Return one row per range of a library, such as NCCL, that was both begun and ended.

    CUPTI sees ranges of NVTX only if the environment variable NVTX_INJECTION64_PATH named libcupti
    before NVTX was first used. They are recorded on the kernels' rung, so their latency is taken
    from that rung. Ranges without a domain are the user's own and left out; so are those of cuBLAS
    and cuDNN, whose calls the library level tells of.

    Args:
        table: Markers as CUPTI recorded them.
        texts: The texts that the table's pointers point to, by pointer.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
    """
    if table is None:
        return no_rows()
    flags, ends = table["flags_"], {}
    for at in np.flatnonzero(flags & _END).tolist():
        ends[int(table["id"][at])] = at
    begun = [
        at
        for at in np.flatnonzero(flags & _START).tolist()
        if int(table["id"][at]) in ends and _is_told(texts.get(int(table["domain"][at])))
    ]
    ended = [ends[int(table["id"][at])] for at in begun]
    times = alignment.convert(table["timestamp"].astype(np.int64))
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": [texts.get(int(table["name"][at]), "range") for at in begun],
            "start_ns": times[begun],
            "end_ns": times[ended],
            "thread": thread.named(table["object_id"][begun].astype(np.int64), threads),
            "provenance": Provenance.MARKER.value,
            "attr.library": pl.Series(
                [texts[int(table["domain"][at])] for at in begun], dtype=pl.String
            ),
            "attr.placement": "ends",
        }
    )


def _is_told(domain: str | None) -> bool:
    """Tell whether ranges of a domain become rows."""
    return domain is not None and domain != "" and not _LOGGED.match(domain)
