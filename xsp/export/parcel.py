"""The parcel: a trace and the options of its export in; its pictures out, typical runs included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.export.picture import Linked, Picture
from xsp.export.reduction import reduce
from xsp.level import Kind
from xsp.trace import SPAN_SCHEMA, Trace

# Kinds whose spans are linked to the run of a rung: the kinds that the rung adds.
_LINKED = {
    kind.value: [other.value for other in Kind if other.order == kind.order] for kind in Kind
}


@dataclass(frozen=True, slots=True)
class Parcel:
    """A trace to be exported; its pictures have the same ids each time they are made.

    Attributes:
        trace: The trace.
        most: Most spans of each picture; None for no limit.
        typical_runs: Whether typical runs are exported with the trace.
        parent: W3C `traceparent` to hang the root under; None for the trace's own.
    """

    trace: Trace
    most: int | None = None
    typical_runs: bool = False
    parent: str | None = None

    def pictures(self) -> list[Picture]:
        """Return the picture of the trace, then the pictures of its typical runs."""
        trace, runs = self.trace, []
        if self.typical_runs:
            rungs = trace.typical_runs.partition_by("rung", maintain_order=True)
            runs = [_run_picture(run, trace.metadata, self.most) for run in rungs]
        linked = tuple(linked for _, linked in runs)
        reduced = reduce(trace.spans, self.most)
        whole = Picture(reduced, trace.metadata, parent=self.parent, linked=linked)
        return [whole, *(picture for picture, _ in runs)]


def _run_picture(
    run: pl.DataFrame, metadata: Mapping[str, Any], most: int | None
) -> tuple[Picture, Linked]:
    """Return the picture of a rung's typical run, and how spans of the merged tree link to it.

    A merged span is linked to the run of the rung that its latency is from.

    Args:
        run: Rows of `trace.typical_runs` of one rung.
        metadata: The trace's metadata.
        most: Span budget; None for no limit.
    """
    rung = run["rung"][0]
    reduced = reduce(_as_trace(run), most)
    told = {"name": f"{metadata.get('name') or 'trace'} ({rung} run)", "problems": ()}
    # A run is a trace of its own: under the caller's span it would stand beside the merged trace.
    picture = Picture(reduced, {**metadata, **told, "traceparent": None, "tracestate": ""})
    return picture, Linked(tuple(_LINKED[rung]), picture.identity)


def _as_trace(run: pl.DataFrame) -> pl.DataFrame:
    """Return a run in the columns of `trace.spans`; each latency is that of this run alone."""
    measured = {"measured_start_ns": "start_ns", "measured_end_ns": "end_ns"}
    known = run.with_columns(
        latency_ns=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64),
        runs=pl.lit(1, pl.Int64),
        **{name: pl.col(source) for name, source in measured.items()},
    )
    lacking = SPAN_SCHEMA.keys() - set(known.columns)
    nothing = {name: pl.lit(None, SPAN_SCHEMA[name]) for name in lacking}
    exact = pl.struct(exact=pl.lit(None, pl.Boolean))
    return known.with_columns(**nothing).select(*SPAN_SCHEMA, attributes=exact)
