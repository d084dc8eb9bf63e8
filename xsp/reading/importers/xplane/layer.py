"""Puts TensorFlow's operators in the layers that scopes name, and finds the steps of JAX."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import nearest
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.correlation import enclosing
from xsp.scope import layered, node_layers

_PROGRAM = r"^PjitFunction\(.+\)$"  # a call of a jitted function
_LONG = pl.col("end_ns") - pl.col("start_ns")


def in_layers(rows: SpanRows, steps: SpanRows) -> SpanRows:
    """Return rows of the host in which operators of TensorFlow lie in layers.

    Args:
        rows: All rows of the host, with `attr.framework` and `attr.scope`.
        steps: The steps; operators of two steps share no call of a layer.
    """
    if not rows.height:
        return rows
    of_graph = (rows["attr.framework"] == "tensorflow") & rows["attr.scope"].str.contains("/")
    rows = rows.with_columns(parent_id=pl.when(of_graph).then(_asked(rows)).otherwise("parent_id"))
    ops = rows.filter(of_graph.fill_null(value=False))
    known = {node: node_layers(node) for node in ops["attr.scope"].unique().to_list()}
    if not any(layers for layers, _ in known.values()):
        return rows
    nodes = ops["attr.scope"].to_list()
    paths = pl.Series([known[node][0] for node in nodes], dtype=pl.List(pl.String))
    phases = pl.Series(["backward" if known[node][1] else None for node in nodes], dtype=pl.String)
    number = steps["start_ns"].sort().search_sorted(ops["start_ns"], side="right")
    others = rows.filter(~of_graph.fill_null(value=False))
    made = layered(ops, paths, steps=number.cast(pl.Int64), phases=phases)
    return concat_rows([others, made])


def _asked(rows: SpanRows) -> pl.Series:
    """Return what each row, or else the innermost row around it on its thread, states as parent.

    The run of a graph is on the thread that asked for it; its operators run on others, where each
    lies in a range that states the run.
    """
    thread, start, end = (rows[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    around = enclosing(thread, start, end, np.zeros(rows.height, np.int64))
    stated = rows["parent_id"]
    found = nearest(around, np.arange(rows.height), stated.is_not_null().to_numpy())
    return stated.gather(pl.Series(found).set(pl.Series(found < 0), None))


def program_calls(rows: SpanRows) -> SpanRows:
    """Return a step for each call of the jitted function that took most time, none of one call.

    A call returns before devices have worked, so a step lasts until the next one begins.
    """
    if not rows.height:
        return no_rows()
    calls = rows.filter(
        (pl.col("kind") == Kind.CALL.value) & pl.col("name").str.contains(_PROGRAM)
    ).sort("start_ns", -_LONG)
    # JAX marks a call twice, by the same name, the one in the other.
    before = pl.col("end_ns").cum_max().shift(1).over("thread")
    outermost = calls.filter(before.is_null() | (pl.col("start_ns") >= before))
    most = outermost.group_by("thread", "name").agg(_LONG.sum().alias("ns"), pl.len())
    if not most.height:
        return no_rows()
    thread, name, _, count = most.sort("ns", "name", descending=True).row(0)
    if count < 2:
        return no_rows()
    own = outermost.filter(pl.col("thread") == thread, pl.col("name") == name)
    last = rows["end_ns"].max()
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": [f"call {number}" for number in range(own.height)],
            "start_ns": own["start_ns"],
            "end_ns": own["start_ns"].shift(-1).fill_null(last),
            "thread": own["thread"],
        }
    )
