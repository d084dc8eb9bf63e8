"""Events in; rows and sentences on functions that were traced to graphs anew, out."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.xplane import read_space
from xsp_levels.framework.tensorflow.profiler.run import innermost
from xsp_levels.framework.tensorflow.program.effect import traced_anew

_BUILDING = "tf.function-graph_building"
_TRACED = "traced"  # how `tf_function_call` begins of a call for which a graph was made
_FIRST = 2  # a function that makes variables is traced twice at first


def tracing_rows(events: pl.DataFrame) -> SpanRows:
    """Return a row for each time that a function was traced anew, outside of others.

    What the first call of a function traces is left out: it is in no evaluation that counts.
    """
    if not events.width:
        return no_rows()
    built, calls = events.filter(pl.col("name") == _BUILDING), _again(events)
    around = innermost(calls, built)
    outermost = innermost(built, built.with_columns(pl.col("start_ns") - 1)) < 0
    kept = pl.Series((around >= 0) & outermost, dtype=pl.Boolean)
    built = built.filter(kept)
    return span_rows(
        {
            "kind": Kind.PIPELINE.value,
            "name": "trace " + calls["name"].gather(pl.Series(around).filter(kept)),
            "start_ns": built["start_ns"],
            "end_ns": built["end_ns"],
            "thread": built["thread"],
        }
    )


def retraced(space: bytes) -> tuple[str, ...]:
    """Return a sentence for each function that was traced again after it had been called."""
    plane = read_space(space).plane("/host:CPU") if b"traced-" in space else None
    if plane is None:
        return ()
    stats = {"tf_function_call": pl.String, "tracing_count": pl.Int64}
    names = _again(plane.events(stats).frame)["name"].unique(maintain_order=True)
    return tuple(map(traced_anew, names))


def _again(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in which a function was traced that had been called before."""
    traced = pl.col("tf_function_call").str.starts_with(_TRACED)
    return events.filter(traced, pl.col("tracing_count") > _FIRST)
