"""Exemplars: for every rung one run as it was measured, kept beside the merged tree.

A trace hands them out as `runs`; its file holds them as text beside the table.
"""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError

# Columns of `trace.runs`: one row per span of a run, one run after the other.
RUN_SCHEMA: dict[str, Any] = {
    "rung": pl.String,
    "run_latency_ns": pl.Int64,
    "span_id": pl.UInt64,  # that of the merged span of the same path
    "parent_id": pl.UInt64,  # null at the root
    "kind": pl.String,
    "level": pl.String,
    "name": pl.String,
    "path": pl.String,
    "start_ns": pl.Int64,  # as measured, from 0 at the root's start
    "end_ns": pl.Int64,
    "thread": pl.Int64,
    "device": pl.Int32,
    "stream": pl.Int64,
    "correlation_id": pl.Int64,
}


def no_runs() -> pl.DataFrame:
    """Return what a trace without exemplars has: no rows."""
    return pl.DataFrame(schema=RUN_SCHEMA)


def check_columns(runs: pl.DataFrame) -> None:
    """Verify names, order and types of the columns.

    Raises:
        TraceFormatError: They are not those of `RUN_SCHEMA`.
    """
    if runs.schema != pl.Schema(RUN_SCHEMA):
        found = ", ".join(f"{name} {dtype}" for name, dtype in runs.schema.items())
        expected = ", ".join(f"{name} {dtype}" for name, dtype in pl.Schema(RUN_SCHEMA).items())
        raise TraceFormatError(f"the columns of runs are {expected}; these are {found or 'none'}")


def pack(runs: pl.DataFrame) -> str:
    """Return runs as the text that a file keeps; empty for no rows.

    It is a checksum and base64 of a Parquet file: key-value metadata of Parquet must be
    text. Not of an Arrow file: polars ends the whole process over a damaged one.
    """
    if not runs.height:
        return ""
    buffer = io.BytesIO()
    runs.write_parquet(buffer)
    content = buffer.getbuffer()
    return f"{zlib.crc32(content):08x} {base64.b64encode(content).decode('ascii')}"


def unpack(text: str) -> pl.DataFrame:
    """Return the runs that `pack` made a text of.

    Raises:
        TraceFormatError: The text is damaged.
    """
    if not text:
        return no_runs()
    checksum, _, encoded = text.partition(" ")
    try:
        content = base64.b64decode(encoded, validate=True)
        if f"{zlib.crc32(content):08x}" != checksum:
            raise _damaged("its checksum is another")
        runs = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise _damaged(error) from error
    check_columns(runs)
    return runs


def _damaged(reason: object) -> TraceFormatError:
    return TraceFormatError(
        "the runs kept in this trace are damaged and cannot be read, all else in it can: "
        f"copy the file anew or measure again ({reason})"
    )
