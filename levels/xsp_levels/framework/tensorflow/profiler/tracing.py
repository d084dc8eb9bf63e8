"""Events in; rows and sentences on functions that were traced to graphs anew, out."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.xplane import read_space
from xsp_levels.framework.tensorflow.profiler.run import innermost

_BUILDING = "tf.function-graph_building"
_TRACED = "traced"  # how `tf_function_call` begins of a call for which a graph was made
_FIRST = 2  # a function that makes variables is traced twice at first


def tracing_rows(events: pl.DataFrame) -> SpanRows:
    """Return a row for each time that a function was traced to a graph, outside of others."""
    if not events.width:
        return no_rows()
    built = events.filter(pl.col("name") == _BUILDING)
    built = built.filter(pl.Series(innermost(built, _inside(built)) < 0, dtype=pl.Boolean))
    calls = events.filter(pl.col("tf_function_call").is_not_null())
    names = pl.Series([*calls["name"].to_list(), "function"])
    return span_rows(
        {
            "kind": Kind.PIPELINE.value,
            "name": "trace " + names.gather(innermost(calls, built) % len(names)),
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
    calls = plane.events(stats).frame.filter(pl.col("tf_function_call").is_not_null())
    calls = calls.sort("start_ns")
    traced = calls["tf_function_call"].str.starts_with(_TRACED)
    again = traced & (calls["tracing_count"].fill_null(0) > _FIRST)
    again = again | (traced & ~calls["name"].is_first_distinct())
    return tuple(
        f"the function {name} was traced anew while it was measured, for inputs of another shape "
        "or type, or for another value in Python: that evaluation took longer; give the function "
        "tensors of fixed shapes, or an input_signature"
        for name in calls.filter(again)["name"].unique(maintain_order=True)
    )


def _inside(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ranges that lie in others, and not in themselves."""
    return ranges.with_columns(pl.col("start_ns") - 1)
