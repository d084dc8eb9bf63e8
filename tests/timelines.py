"""Frames of traces with threads, devices and overlaps, for the tests of the timeline and CTF."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import strategies as st

from xsp.level import Kind
from xsp.trace.integrity import RUN_SCHEMA, SPAN_SCHEMA

FIELDS: dict[str, Any] = {
    "module_path": pl.String,
    "module_class": pl.String,
    "input_shapes": pl.List(pl.List(pl.Int64)),
    "allocated_bytes": pl.Int64,
    "freed_bytes": pl.Int64,
    "user.ratio": pl.Float64,
}


def row(span_id: int, parent: int | None, start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a span; fields of `attributes` are given among the columns."""
    kind = more.get("kind", "region" if parent is None else "op")
    device = more.get("device")
    known: dict[str, Any] = {
        "span_id": span_id,
        "parent_id": parent,
        "kind": kind,
        "level": Kind(kind).level.label,
        "name": f"span {span_id}",
        "path": f"span {span_id}",
        "start_ns": start,
        "end_ns": end,
        "latency_ns": float(end - start),
        "runs": 3,
        "thread": 1 if device is None else None,
    }
    return known | more


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    columns = {name: [r.get(name) for r in rows] for name in SPAN_SCHEMA}
    fields = [{name: r.get(name) for name in FIELDS} for r in rows]
    return pl.DataFrame(columns, schema=SPAN_SCHEMA).with_columns(
        pl.Series("attributes", fields, dtype=pl.Struct(FIELDS))
    )


def typical_run(*rows: tuple[str, str, int, int, int], pass_: str = "syscall") -> pl.DataFrame:
    """Return a typical run: kind, name, start, end and thread of each row, the root first."""
    names = ("kind", "name", "start_ns", "end_ns", "thread")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {"pass": pass_, "run_latency_ns": rows[0][3], "level": "system"}
    columns |= {"span_id": range(1, len(rows) + 1), "parent_id": [None] + [1] * (len(rows) - 1)}
    frame = pl.DataFrame({"path": columns["name"], **columns}, strict=False)
    lacking = [pl.lit(None).alias(name) for name in RUN_SCHEMA if name not in frame.columns]
    level = pl.when(pl.col("kind") == "syscall").then(pl.lit("system")).otherwise(pl.lit("model"))
    return frame.with_columns(*lacking, level=level).select(
        pl.col(name).cast(dtype) for name, dtype in RUN_SCHEMA.items()
    )


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    """Draw any spans on two threads and two streams, each within its parent."""
    end = draw(st.integers(0, 60))
    rows = [row(1, None, 0, end)]
    for span_id in range(2, draw(st.integers(1, 14)) + 1):
        parent = draw(st.sampled_from([r for r in rows if r.get("device") is None]))
        start = draw(st.integers(parent["start_ns"], parent["end_ns"]))
        stop = draw(st.integers(start, parent["end_ns"]))
        correlation = draw(st.none() | st.integers(1, 3))
        place: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {},
                    {"thread": 2},
                    {"thread": None},
                    {"kind": "launch", "correlation_id": correlation},
                    {"kind": "kernel", "device": 0, "stream": 7, "correlation_id": correlation},
                    {"kind": "memcpy", "device": 1, "stream": None, "correlation_id": correlation},
                ]
            )
        )
        rows.append(row(span_id, parent["span_id"], start, stop, **place))
    return frame(*rows)
