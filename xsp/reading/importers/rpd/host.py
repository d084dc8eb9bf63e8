"""Makes rows of launches, operators and ranges on the host. `attr.pid` is the process."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.reading import each_once
from xsp.reading.importers.rocm import range_columns
from xsp.reading.importers.rpd.table import Tables
from xsp.text import call_name

_MARKER = "UserMarker"
_API = r"^_{0,2}(hip|hsa)"  # names of calls of HIP and HSA
_OWN = r"^(\w+::writeRows|rpdflush|hcc_activity_callback)$"  # the tracer's own work


def host_rows(tables: Tables) -> tuple[SpanRows, int]:
    """Return the rows of the host, and how many ranges of the tracer's own work are left out."""
    frame = tables.sound(tables.calls, "calls")
    own, api = pl.col("name").str.contains(_OWN), pl.col("name").str.contains(_API)
    ranges = _ranges(tables, frame.filter(~own & ~api))
    count = int(frame.select(own.sum()).item())
    return concat_rows([ranges, _launches(frame.filter(api))]), count


def _ranges(tables: Tables, frame: pl.DataFrame) -> SpanRows:
    """Return roctx ranges, and functions that the tracer's decorator marked."""
    if not frame.height:
        return no_rows()
    marker = pl.col("name") == _MARKER
    said = pl.when(marker).then(pl.col("text").fill_null(_MARKER)).otherwise("name")
    columns = range_columns(frame.select(said.alias("said"))["said"].to_list())
    autograd = tables.frame("ext_autogradapi", id="api_ptr_id", number="seq")
    autograd = autograd.unique("id", keep="first").with_columns(is_op=pl.lit(value=True))
    found = frame.select("id").join(autograd, on="id", how="left", maintain_order="left")
    found = found.with_columns(**columns)
    is_op = pl.col("is_op").fill_null(value=False)
    return span_rows(
        {
            "kind": found.select(
                pl.when(is_op).then(pl.lit(Kind.OP.value)).otherwise("kind").alias("kind")
            )["kind"],
            "name": found["name"],
            **_placed(frame),
            "sequence": found.select(pl.coalesce("sequence", "number").alias("sequence"))[
                "sequence"
            ],
        }
    )


def _launches(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.LAUNCH.value,
            "name": each_once(frame["name"], call_name),
            **_placed(frame),
            "correlation_id": frame["id"],
        }
    )


def _placed(frame: pl.DataFrame) -> dict[str, Any]:
    return {
        **{name: frame[name] for name in ("start_ns", "end_ns", "thread")},
        "attr.pid": frame["pid"],
    }
