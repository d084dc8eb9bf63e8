"""Makes traces of kernels that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.trace import Trace, find_attribute
from xsp.trace.document import SPAN_SCHEMA

_TYPES = {
    "Int64": pl.Int64,
    "Float64": pl.Float64,
    "String": pl.String,
    "List(String)": pl.List(pl.String),
    "List(List(Int64))": pl.List(pl.List(pl.Int64)),
}


def row(parent: int | None, kind: str, name: str, latency_ns: float = 0.0, **more: Any) -> Any:
    """Return a row: its parent's number, and attributes or columns of the trace by name."""
    return {"parent_id": None if parent is None else parent + 1, "kind": kind, "name": name} | {
        "latency_ns": float(latency_ns),
        **more,
    }


def trace_of(rows: Sequence[Mapping[str, Any]], **metadata: Any) -> Trace:
    """Return the trace of rows, parents before their children; all begin at once."""
    columns: dict[str, list[Any]] = {name: [] for name in SPAN_SCHEMA}
    attributes: list[dict[str, Any]] = []
    paths: list[str] = []
    for number, given in enumerate(rows):
        parent = given["parent_id"]
        above = f"{paths[parent - 1]}/" if parent else ""
        paths.append(f"{above}{given['name']}" + f"#{number}" * bool(parent))
        on_device = given["kind"] in ("kernel", "memcpy", "memset")
        known: dict[str, Any] = {
            "span_id": number + 1,
            "path": paths[-1],
            "level": Kind(given["kind"]).level.label,
            "start_ns": 0,
            "end_ns": int(given["latency_ns"] or 0),
            "thread": None if on_device else 1,
            "device": 0 if on_device else None,
        } | dict(given)
        for name, values in columns.items():
            values.append(known.pop(name, None))
        attributes.append(known)
    fields = {name: _type(name) for found in attributes for name in found}
    full = [dict.fromkeys(fields) | found for found in attributes]
    spans = pl.DataFrame(columns, schema=SPAN_SCHEMA)
    struct = pl.Series("attributes", full, dtype=pl.Struct(fields or {"step": pl.String}))
    return Trace(
        spans.with_columns(struct),
        {"name": "hand made", "warnings": [], "levels": {"model": "measured"}, **metadata},
    )


def _type(name: str) -> Any:
    attribute = find_attribute(name)
    assert attribute is not None, name
    return _TYPES[attribute.type]
