"""Makes rows of kernels, copies, sets and waits from events of devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.reading.importers.kineto.table import Sort, Tables
from xsp.text import full_name, short_name

# The profilers of NVIDIA, Intel (M is the host's memory), and older ones of AMD.
_COPY = re.compile(r"\b(?:([HDAP])to([HDAP])|([MD])2([MD]))\b")
_OLD_COPY = re.compile(r"(Host|Device)To(Host|Device)")
_MEMORIES = re.compile(r"\((\w[\w ]*?)(?: -> (\w[\w ]*))?\)")
_WAITS = {
    "Stream Wait Event": "synchronize stream wait event",
    "Stream Sync": "synchronize stream",
    "Event Sync": "synchronize event",
    "Context Sync": "synchronize context",
}
_TRIPLE = pl.List(pl.Int64)
_SYNC_ROWS = 1_000_000  # added to a stream's number for the row of its waits
_NO_STREAM = (1 << 32) - 1  # CUPTI's, of a wait for all streams


def device_events(tables: Tables, resident_threads: Mapping[int, int]) -> pl.DataFrame:
    """Return rows of all events of devices.

    The columns are `kind`, `name`, `start_ns`, `end_ns`, `device`, `stream`, `correlation_id`, and
    attributes.

    Args:
        tables: The events.
        resident_threads: How many threads each device can hold at a time, where known.
    """
    table = tables.table(Sort.MEMSET)
    where = tables.texts.read(table["name"], lambda name: _memory(name, 1), pl.String)
    sets = _common(tables, table, Kind.MEMSET, lambda _: "memset").with_columns(
        table["bytes"].alias("attr.transfer_bytes"),
        where.alias("attr.destination"),
        *_of_graph(table),
    )
    rows = [_kernels(tables, resident_threads), _copies(tables), sets, _waits(tables)]
    return pl.concat(rows, how="diagonal")


def _common(tables: Tables, table: pl.DataFrame, kind: Kind, name: Any) -> pl.DataFrame:
    rows = table.select(
        "start_ns",
        "end_ns",
        kind=pl.lit(kind.value),
        name=tables.texts.read(table["name"], name, pl.String),
        device=pl.coalesce("device", "pid", pl.lit(0)).clip(-1, 1 << 30).cast(pl.Int32),
        stream=_positive(pl.coalesce("stream", "tid")),
        correlation_id=_positive(pl.col("correlation")),
    )
    return rows.with_columns(table["context"].alias("attr.context"))


def _positive(number: pl.Expr) -> pl.Expr:
    """Return numbers, null for those that stand for none."""
    return pl.when(number >= 0).then(number)


def _of_graph(table: pl.DataFrame) -> list[pl.Series]:
    """Return graph and node of each row; null for rows that are no node."""
    node = table.select(_positive(pl.col("graph_node").replace(0, None))).to_series()
    graph = table["graph"].set(node.is_null(), None)
    return [graph.alias("attr.graph"), node.alias("attr.graph_node")]


def _kernels(tables: Tables, resident_threads: Mapping[int, int]) -> pl.DataFrame:
    table, texts = tables.table(Sort.KERNEL), tables.texts
    rows = _common(tables, table, Kind.KERNEL, lambda name: short_name(full_name(name)))
    rows = rows.with_columns(
        texts.read(table["name"], full_name, pl.String).alias("attr.full_name"),
        texts.read(table["grid"], _triple, _TRIPLE).alias("attr.grid"),
        texts.read(table["block"], _triple, _TRIPLE).alias("attr.block"),
        table["registers"].alias("attr.registers"),
        table["shared_memory"].alias("attr.shared_bytes"),
        *_of_graph(table),
    )
    # The occupancy in percent that the resources of each kernel allow, null if not known.
    # The profiler's estimate is no more than what the grid fills of the device. Where that is what
    # limits the estimate, it tells nothing of the resources.
    estimate = table["occupancy"]
    blocks, threads = (
        pl.col(f"attr.{name}").cast(pl.List(pl.Float64)).list.eval(pl.element().product()).list[0]
        for name in ("grid", "block")
    )
    room = pl.col("device").replace_strict(
        dict(resident_threads), default=None, return_dtype=pl.Float64
    )
    filled = rows.select(100.0 * blocks * threads / room).to_series()
    limited = (estimate >= 100) | (estimate < filled - 0.5)
    known = estimate.cast(pl.Float64).set(~limited.fill_null(value=False), None)
    occupancy = known.alias("attr.occupancy_pct")
    rows = rows.with_columns(occupancy)
    return rows.hstack(tables.collectives(table["collective"]))


def _copies(tables: Tables) -> pl.DataFrame:
    table, read = tables.table(Sort.MEMCPY), tables.texts.read
    rows = _common(tables, table, Kind.MEMCPY, lambda name: f"memcpy {_direction(name)}")
    return rows.with_columns(
        table["bytes"].alias("attr.transfer_bytes"),
        read(table["name"], _direction, pl.String).alias("attr.direction"),
        read(table["name"], lambda name: _memory(name, 1), pl.String).alias("attr.source"),
        read(table["name"], lambda name: _memory(name, 2), pl.String).alias("attr.destination"),
        *_of_graph(table),
    )


def _waits(tables: Tables) -> pl.DataFrame:
    table = tables.table(Sort.SYNC)
    rows = _common(tables, table, Kind.SYNC, lambda name: _WAITS.get(name, "synchronize"))
    stream = pl.col("stream").replace(_NO_STREAM, None)
    # Newer files draw them on a row of their own beside the stream.
    own = pl.when(stream >= _SYNC_ROWS).then(stream - _SYNC_ROWS).otherwise(stream)
    return rows.with_columns(own.alias("stream"))


def _direction(name: str) -> str:
    """Return from where to where a copy goes.

    >>> [_direction(name) for name in ("Memcpy HtoD (Pinned -> Device)", "Memcpy M2D", "memcpy")]
    ['HtoD', 'HtoD', 'unknown']
    """
    found = _COPY.search(name) or _OLD_COPY.search(name)
    if found is None:
        return "unknown"
    source, target = (part[0].replace("M", "H") for part in found.groups() if part)
    return f"{source}to{target}"


def _memory(name: str, which: int) -> str | None:
    """Return the kind of memory that a copy is from (1) or to (2), or that is set (1).

    >>> _memory("Memcpy HtoD (Pinned -> Device)", 1), _memory("Memset (Device)", 1)
    ('pinned', 'device')
    """
    found = _MEMORIES.search(name)
    return found[which].lower() if found and found[which] else None


def _triple(text: bytes) -> list[int] | None:
    found = json.loads(text.decode(errors="replace"))
    if isinstance(found, list) and all(type(n) is int and abs(n) < 1 << 63 for n in found):
        return found
    return None
