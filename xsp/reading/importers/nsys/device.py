"""Makes rows of the kernels, copies, sets and waits on one process's devices."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.nsys import table
from xsp.reading.importers.nsys.database import Database
from xsp.reading.importers.nsys.host import UNNAMED
from xsp.reading.importers.nsys.table import Tables

_AS_ONE = pl.col("name").str.starts_with("CUDA graph ")
_NO_STREAM = 0xFFFFFFFF  # CUPTI_SYNCHRONIZATION_INVALID_VALUE
_PREFIX = re.compile(r"^(CUDA_MEMCPY|CUDA_MEMOPR_MEMORY)_KIND_|^CUPTI_\w+_SYNCHRONIZATION_TYPE_")
# Names of the numbers where a file has no enumerations (NVIDIA, "SQLite Export Schema Reference",
# 2021.5). Nsight numbers kinds of memory one lower than CUPTI does.
_COPIES = (
    *("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP"),
    *("UVM_HTOD", "UVM_DTOH", "UVM_DTOD"),
)
_MEMORIES = (
    *("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED", "DEVICE_STATIC", "MANAGED_STATIC"),
    "UNKNOWN",
)
_WAITS = (
    *("UNKNOWN", "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT", "STREAM_SYNCHRONIZE"),
    "CONTEXT_SYNCHRONIZE",
)


def activities(database: Database, tables: Tables, launches: SpanRows) -> SpanRows:
    """Return one row per kernel, copy, set and wait, and per graph that is one row as a whole.

    Args:
        database: The file, for its names.
        tables: The process's tables.
        launches: The process's launches; a graph as a whole states its launch as its parent, so
            launches of graphs need an `id` that is their correlation id.
    """
    # For each node that is a copy the node that was captured: `node`, `captured`.
    # A graph may be copied before it is instantiated, which copies it again.
    nodes = tables[table.NODE]
    told = nodes.drop_nulls("originalGraphNodeId")
    original = dict(told.select("graphNodeId", "originalGraphNodeId").iter_rows())
    found = {node: _first(node, original) for node in original}
    schema = {"node": pl.Int64, "captured": pl.Int64}
    captured = pl.DataFrame([list(found), list(found.values())], schema=schema)
    kernels = _kernels(database, tables[table.KERNEL], captured)
    names = launches.drop_nulls("correlation_id").unique("correlation_id", keep="first")
    launched_by = names.select("correlation_id", pl.col("name").alias("attr.launched_by"))
    frame = tables[table.WAIT]
    if not frame.height:
        waits = no_rows()
    else:
        for_what = _worded(database, frame["syncType"], "ENUM_CUPTI_SYNC_TYPE", _WAITS)
        waits = span_rows(
            {
                "kind": Kind.SYNC.value,
                "name": "synchronize " + for_what.fill_null("unknown"),
                **_place(frame),
            }
        )
    worked = concat_rows(
        [
            kernels.join(launched_by, on="correlation_id", how="left", maintain_order="left"),
            _copies(database, tables[table.COPY], captured),
            _sets(database, tables[table.SET], captured),
            waits,
        ]
    )
    return concat_rows([worked, _graphs(tables[table.GRAPH], worked, launched_by)])


def graphs_as_one(rows: SpanRows) -> int:
    """Return how many of a process's rows stand for all that a graph launched."""
    return rows.filter((pl.col("kind") == Kind.KERNEL.value) & _AS_ONE).height


def _kernels(database: Database, frame: pl.DataFrame, captured: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    full, short = (database.strings(frame[name]) for name in ("demangledName", "shortName"))
    return span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": pl.select(pl.coalesce(short, full, pl.lit(UNNAMED))).to_series(),
            **_place(frame),
            **_node(frame, captured),
            "attr.full_name": full,
            "attr.grid": _triples(frame, "grid"),
            "attr.block": _triples(frame, "block"),
            "attr.registers": frame["registersPerThread"],
            "attr.static_shared_bytes": frame["staticSharedMemory"],
            "attr.dynamic_shared_bytes": frame["dynamicSharedMemory"],
        }
    )


def _copies(database: Database, frame: pl.DataFrame, captured: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    kind = _worded(database, frame["copyKind"], "ENUM_CUDA_MEMCPY_OPER", _COPIES)
    direction = kind.str.replace("unified ", "")
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": "memcpy " + kind.fill_null("unknown"),
            **_place(frame),
            **_node(frame, captured),
            "attr.transfer_bytes": frame["bytes"],
            "attr.direction": direction,
            "attr.source": _memory(database, frame["srcKind"]),
            "attr.destination": _memory(database, frame["dstKind"]),
        }
    )


def _sets(database: Database, frame: pl.DataFrame, captured: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.MEMSET.value,
            "name": "memset",
            **_place(frame),
            **_node(frame, captured),
            "attr.transfer_bytes": frame["bytes"],
            "attr.destination": _memory(database, frame["memKind"]),
        }
    )


def _graphs(frame: pl.DataFrame, worked: SpanRows, launched_by: pl.DataFrame) -> SpanRows:
    """Return one row per launch of a graph that was recorded as a whole.

    Such a row is busy from the graph's first activity to its last. Where the activities
    themselves were recorded, the row would count their time twice, and is left out.
    """
    node_by_node = worked.filter(pl.col("correlation_id").is_not_null())["correlation_id"]
    frame = frame.filter(~pl.col("correlationId").is_in(node_by_node.implode()))
    if not frame.height:
        return no_rows()
    place = _place(frame)
    rows = span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": frame.select(
                pl.format("CUDA graph {}", pl.col("graphId").cast(pl.String).fill_null("?"))
            ).to_series(),
            **place,
            "parent_id": place["correlation_id"],
            "attr.graph": frame["graphId"],
        }
    )
    return rows.join(launched_by, on="correlation_id", how="left", maintain_order="left")


def _place(frame: pl.DataFrame) -> dict[str, Any]:
    stream, call = pl.col("streamId"), pl.col("correlationId")
    known = frame.select(
        stream=pl.when(stream != _NO_STREAM).then(stream),
        correlation_id=pl.when(call != 0).then(call),  # 0 is the id of what no call launched
    )
    return {
        "start_ns": frame["start"],
        "end_ns": frame["end"],
        "device": frame["deviceId"],
        "stream": known["stream"],
        "correlation_id": known["correlation_id"],
        "attr.context": frame["contextId"],
    }


def _node(frame: pl.DataFrame, captured: pl.DataFrame) -> dict[str, Any]:
    """Return graph and node of activities that a graph launched; 0 is no graph."""
    node = pl.col("graphNodeId")
    asked = frame.select(
        graph=pl.when(pl.col("graphId") != 0).then("graphId"),
        node=pl.when(node != 0).then(node),
    )
    found = asked.join(captured, on="node", how="left", maintain_order="left")
    return {
        "attr.graph": found["graph"],
        "attr.graph_node": found["node"],
        "attr.captured_node": found["captured"],
    }


def _first(node: int, original: dict[int, int]) -> int:
    seen = {node}
    while (before := original.get(node)) is not None and before not in seen:
        seen.add(before)
        node = before
    return node


def _triples(frame: pl.DataFrame, name: str) -> pl.Series:
    return frame.select(pl.concat_list(f"{name}{axis}" for axis in "XYZ")).to_series()


def _memory(database: Database, numbers: pl.Series) -> pl.Series:
    return _worded(database, numbers, "ENUM_CUDA_MEM_KIND", _MEMORIES)


def _worded(
    database: Database, numbers: pl.Series, enumeration: str, default: tuple[str, ...]
) -> pl.Series:
    """Return words for an enumeration's numbers; null where there is no number."""
    names = database.enumeration(enumeration, dict(enumerate(default)))
    words = {number: _word(_PREFIX.sub("", name)) for number, name in names.items()}
    return numbers.replace_strict(words, default="unknown", return_dtype=pl.String).set(
        numbers.is_null(), None
    )


def _word(name: str) -> str:
    """Turn an enumeration's name into words.

    >>> [_word(name) for name in ("HTOD", "UVM_DTOH", "STREAM_SYNCHRONIZE", "MANAGED_STATIC")]
    ['HtoD', 'unified DtoH', 'stream', 'managed static']
    """
    if re.fullmatch(r"(UVM_)?[A-Z]TO[A-Z]", name):
        return name.replace("UVM_", "unified ").replace("TO", "to")
    return name.removesuffix("_SYNCHRONIZE").replace("_", " ").lower()
