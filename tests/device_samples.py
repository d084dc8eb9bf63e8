"""Makes traces of devices' timelines that are written by hand, a row for each span."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.trace.document import SPAN_SCHEMA, Trace

_FIELDS: dict[str, Any] = {
    "exact": pl.Boolean,
    "inexact": pl.List(pl.String),
    "process": pl.Int64,
    "rank": pl.Int64,
    "collective": pl.String,
    "collective_group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "in_elements": pl.Int64,
    "out_elements": pl.Int64,
    "element_type": pl.String,
    "source": pl.String,
    "destination": pl.String,
    "transfer_bytes": pl.Int64,
    "direction": pl.String,
    "node": pl.String,
    "inputs": pl.List(pl.String),
}

Row = dict[str, Any]


def host(kind: str, name: str, start: int, end: int, **more: Any) -> Row:
    """Return a span of the host, on thread 1 if nothing else is said."""
    return {"kind": kind, "name": name, "start_ns": start, "end_ns": end, "thread": 1} | more


def call(
    start: int, end: int, number: int | None, name: str = "cudaLaunchKernel", **more: Any
) -> Row:
    return host("launch", name, start, end, correlation_id=number, **more)


def work(start: int, end: int, number: int | None = None, **more: Any) -> Row:
    """Return a kernel on stream 7 of device 0, if nothing else is said."""
    row = {"kind": "kernel", "name": "gemm", "device": 0, "stream": 7, "correlation_id": number}
    return row | {"start_ns": start, "end_ns": end} | more


def timeline(end: int, *rows: Row, name: str = "step", thread: int | None = 1) -> Trace:
    """Return a trace from 0 to `end`; rows lie in the root, or in row number `inside`, from 1."""
    whole = [host("region", name, 0, end, thread=thread), *rows]
    columns: dict[str, list[Any]] = {column: [] for column in SPAN_SCHEMA}
    attributes = []
    for number, row in enumerate(whole):
        latency = float(row["end_ns"] - row["start_ns"])
        known = {
            "span_id": number + 1,
            "parent_id": row.get("inside", 0) + 1 if number else None,
            "level": Kind(row["kind"]).level.label,
            "path": f"{name}/{number}" if number else name,
            "latency_ns": latency,
            "self_ns": latency,
            "measured_start_ns": row["start_ns"],
            "measured_end_ns": row["end_ns"],
            "runs": 1,
        } | row
        for column in SPAN_SCHEMA:
            columns[column].append(known.get(column))
        attributes.append({field: row.get(field) for field in _FIELDS} | {"exact": True})
    spans = pl.DataFrame(columns, schema=SPAN_SCHEMA).with_columns(
        pl.Series("attributes", attributes, dtype=pl.Struct(_FIELDS))
    )
    return Trace(spans, {"name": name, "warnings": [], "levels": {"model": "measured"}})


def random_timeline(seed: int, works: int = 30) -> Trace:
    """Return a host that launches work on three streams of two devices and sometimes waits."""
    chance = random.Random(seed)
    now, rows, free = 0, list[Row](), dict[tuple[int, int], int]()
    for number in range(works):
        now += chance.randrange(20)
        returned = now + chance.randrange(1, 10)
        rows.append(call(now, returned, number))
        where = (chance.randrange(2), chance.randrange(3))
        start = max(free.get(where, 0), chance.choice([now, returned]) + chance.randrange(6))
        free[where] = start + chance.choice([1, 5, 40])
        kind = chance.choice(["kernel", "kernel", "memcpy", "memset"])
        name = chance.choice(["gemm", "ncclDevKernel_AllReduce"]) if kind == "kernel" else kind
        place = {"device": where[0], "stream": where[1], "kind": kind, "name": name}
        rows.append(work(start, free[where], number if chance.random() < 0.9 else None, **place))
        now = returned
        if chance.random() < 0.1:
            done = max(now, *free.values()) + chance.randrange(3)
            rows.append(call(now, done, None, "cudaDeviceSynchronize"))
            now = done
    return timeline(now + chance.randrange(5), *rows)


def rows_of(table: pl.DataFrame, *columns: str) -> Sequence[tuple[Any, ...]]:
    return table.select(*columns).rows()
