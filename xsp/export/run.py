"""Typical runs as traces of their own: what a merged span's latency was measured in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from xsp.export.picture import Linked, Picture
from xsp.export.reduction import reduce
from xsp.level import Kind
from xsp.trace import SPAN_SCHEMA

_LINKED = {
    kind.value: [other.value for other in Kind if other.order == kind.order] for kind in Kind
}


def run_pictures(
    runs: pl.DataFrame, metadata: Mapping[str, Any], most: int | None
) -> list[tuple[Picture, Linked]]:
    """Return the picture of each rung's typical run, and how the merged spans link to it.

    A merged span is linked to the run of the rung that its latency is from.

    Args:
        runs: The frame `trace.runs`.
        metadata: The trace's metadata.
        most: Span budget of each picture; None for no limit.
    """
    rungs = runs.partition_by("rung", maintain_order=True)
    return [_picture(run, metadata, most) for run in rungs]


def _picture(
    run: pl.DataFrame, metadata: Mapping[str, Any], most: int | None
) -> tuple[Picture, Linked]:
    rung = run["rung"][0]
    reduced = reduce(_spans(run), most)
    told = {"name": f"{metadata.get('name') or 'trace'} ({rung} run)", "problems": ()}
    # Runs are traces of their own: under the caller's span they would stand beside the result.
    picture = Picture(reduced, {**metadata, **told, "traceparent": None, "tracestate": ""})
    return picture, Linked(tuple(_LINKED[rung]), picture.identity)


def _spans(run: pl.DataFrame) -> pl.DataFrame:
    """Return a run in the columns of a trace; its latencies are those of this one run."""
    measured = {"measured_start_ns": "start_ns", "measured_end_ns": "end_ns"}
    known = run.with_columns(
        latency_ns=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64),
        runs=pl.lit(1, pl.Int64),
        **{name: pl.col(source) for name, source in measured.items()},
    )
    missing = [name for name in SPAN_SCHEMA if name not in known.columns]
    return known.select(
        *(
            pl.lit(None, dtype).alias(name) if name in missing else pl.col(name)
            for name, dtype in SPAN_SCHEMA.items()
        ),
        attributes=pl.struct(exact=pl.lit(None, pl.Boolean)),
    )
