"""Finds the steps in rows of the host: those that the profiler marked, else calls of the model."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.matching import nearest
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.reading.importers.kineto.nesting import Integers


def steps(marked: pl.DataFrame, rows: pl.DataFrame, around: Integers) -> SpanRows:
    """Return the steps, one after the other; none if the whole recording is one.

    Args:
        marked: The steps that the profiler marked: `name`, `start_ns`, `end_ns` and `thread`.
        rows: Rows of the host, as `nesting` returns them.
        around: Index of the row around each row, -1 for none.
    """
    found = _one_after_the_other(marked) if marked.height else _calls(rows, around)
    if not found.height:
        return no_rows()
    times = found.select("start_ns", "end_ns", "thread").to_dict()
    return span_rows({"kind": Kind.REGION.value, "name": found["name"], **times})


def _one_after_the_other(marked: pl.DataFrame) -> pl.DataFrame:
    """Return steps without those that begin before the step before them has ended."""
    found = marked.sort("start_ns", "end_ns", descending=[False, True])
    ended = found["end_ns"].cum_max().shift(1)
    return found.filter((pl.col("start_ns") >= ended).fill_null(value=True))


def _calls(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return a step for each call of the model, none if it was called once at most."""
    # Which rows lie in no layer, and not in the backward pass.
    is_layer = rows["kind"] == Kind.LAYER.value
    is_backward = (rows["attr.phase"] == "backward").fill_null(value=False)
    outermost = nearest(around, around, (is_layer | is_backward).to_numpy()) < 0
    modules = rows.filter(pl.col("attr.module_class").is_not_null(), pl.lit(outermost))
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    most = modules.group_by("thread", "name", maintain_order=True).agg(took.alias("ns"))
    if not most.height:
        return modules
    thread, name, _ = most.sort("ns", descending=True, maintain_order=True).row(0)
    calls = modules.filter(pl.col("thread") == thread, pl.col("name") == name).sort("start_ns")
    if calls.height < 2:
        return calls.clear()
    if modules.height == calls.height and not (rows["forward_thread"] > 0).any():
        return calls
    last = rows["end_ns"].max()
    return calls.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(last))
