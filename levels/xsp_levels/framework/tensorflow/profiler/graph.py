"""Operators with the names of their nodes in; rows of operators, in the layers they are of, out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, span_rows
from xsp_levels.framework.keras.index import LayerIndex
from xsp_levels.framework.scope import layered

_GRADIENT = "gradient_tape"  # outermost scope of what a gradient is computed by
_BACKWARD = "backward"
_OPTIMIZER, _LOADING, _PARAMETERS = "optimizer", "data loading", "parameters"
_NO_LAYERS = {_OPTIMIZER, _LOADING, _PARAMETERS}
_READS = "ReadVariableOp"
_BRIEF_NS = 50_000  # of these TensorFlow itself ceases to record those of less than some 3 us
_LOADS = {"IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue"}
# Scopes that optimizers open, which are their names unless the user gave others.
_OPTIMIZERS = re.compile(
    r"^(?:adadelta|adafactor|adagrad|adam|adamax|adamw|ftrl|lamb|lion|loss_scale_optimizer|muon"
    r"|nadam|rmsprop|sgd|SGD|Adam\w*|RMSprop)(?:_\d+)?$"
)


def in_layers(
    table: pl.DataFrame,
    columns: Mapping[str, pl.Series],
    layers: LayerIndex,
    ahead: Mapping[str, Collection[str]],
) -> SpanRows:
    """Return rows of operators, and of the layers, optimizers and loads that hold them.

    Args:
        table: Operators (`operator_table`, `with_instructions`).
        columns: More columns of the rows of operators, by their names.
        layers: The layers that nodes can be of.
        ahead: Nodes that depend on parameters alone, by the function. They run before their
            layers do, in calls of these layers of their own, which are in a part of the program
            called `parameters`; where they take less than 50 us they are left out.
    """
    early = _early(table, ahead)
    brief = table["end_ns"] - table["start_ns"] < _BRIEF_NS
    kept = ~(pl.Series(early, dtype=pl.Boolean) & brief)
    columns = {name: column.filter(kept) for name, column in columns.items()}
    table = table.filter(kept).with_columns(early=pl.Series(early, dtype=pl.Boolean).filter(kept))
    phases = [_BACKWARD if is_backward(node) else None for node in table["origin"].to_list()]
    rows = _rows(table, phases, columns)
    found = layered(
        rows,
        pl.Series(_paths(table, layers), dtype=pl.List(pl.String)),
        steps=table["run"].rank("dense").cast(pl.Int64),
        phases=pl.Series(phases, dtype=pl.String),
        describe=lambda path: _described(path, layers),
    )
    return _parts(found)


def _early(table: pl.DataFrame, ahead: Mapping[str, Collection[str]]) -> list[bool]:
    """Tell of each operator whether it depends on parameters alone.

    Of a function that is gone only that it reads a variable tells.
    """
    nodes = {(function, node) for function, found in ahead.items() for node in found}
    told = table.select("function", "node", "name", "sort").iter_rows()
    return [
        sort == "node"
        and not is_backward(node)
        and ((function, node) in nodes if function in ahead else name == _READS)
        for function, node, name, sort in told
    ]


def _paths(table: pl.DataFrame, layers: LayerIndex) -> list[tuple[str, ...]]:
    nodes = table["origin"].to_list()
    known = {node: node_path(node, layers) for node in set(nodes) if node is not None}
    paths = []
    for node, name, early in table.select("origin", "name", "early").iter_rows():
        path = (_LOADING,) if node and name in _LOADS else known.get(node, ())
        paths.append((_PARAMETERS, *path) if early else path)
    return paths


def node_path(node: str, layers: LayerIndex) -> tuple[str, ...]:
    """Return the layers around a node, outermost first; of an optimizer's node the optimizer."""
    path = layers.path(node)
    if not path and any(_OPTIMIZERS.match(scope) for scope in node.split("/")[:-1]):
        return (_OPTIMIZER,)
    return path


def is_backward(node: str | None) -> bool:
    """Tell whether a node is of the computation of gradients.

    >>> is_backward("gradient_tape/net_1/dense_1/MatMul/MatMul"), is_backward("net_1/dense_1/add")
    (True, False)
    """
    return any(scope.startswith(_GRADIENT) for scope in (node or "").split("/")[:-1])


def _rows(
    table: pl.DataFrame, phases: Sequence[str | None], columns: Mapping[str, pl.Series]
) -> SpanRows:
    scope = table.select(pl.col("origin").str.extract(r"^(.*)/[^/]*$"))
    return span_rows(
        {
            "kind": Kind.OP.value,
            "name": table["name"],
            "start_ns": table["start_ns"],
            "end_ns": table["end_ns"],
            "thread": table["thread"],
            "id": table["id"],
            "parent_id": table["parent_id"],
            "attr.framework": "tensorflow",
            "attr.node": table["node"],
            "attr.scope": scope.to_series(),
            "attr.phase": pl.Series(phases, dtype=pl.String),
            "attr.hlo_op": table["hlo_op"],
            "attr.hlo_module": table["hlo_module"],
            **columns,
        }
    )


def _described(path: tuple[str, ...], layers: LayerIndex) -> Mapping[str, Any] | None:
    own = path[1:] if path[0] == _PARAMETERS else path
    return layers.describe(own) if own else None


def _parts(rows: SpanRows) -> SpanRows:
    """Return rows in which optimizers and loads are parts of the program, and no layers."""
    rows = _whole_optimizers(rows)
    is_part = (pl.col("kind") == Kind.LAYER.value) & pl.col("name").is_in(list(_NO_LAYERS))
    return rows.with_columns(
        kind=pl.when(is_part)
        .then(pl.lit(Kind.PIPELINE.value))
        .otherwise("kind")
        .cast(rows.schema["kind"])
    )


def _whole_optimizers(rows: SpanRows) -> SpanRows:
    """Return rows in which an optimizer steps once, unless a loop in the graph ran it again.

    An optimizer updates one weight like the other, as soon as the weight's gradient is there, so
    that its operators look like several calls of a layer. Only a loop runs a node twice.
    """
    calls = rows.filter(pl.col("name") == _OPTIMIZER, pl.col("kind") == Kind.LAYER.value)
    if calls.height < 2:
        return rows
    inside = rows.filter(pl.col("parent_id").is_in(calls["id"].implode()))
    nodes = calls.select("id", around="parent_id").join(
        inside.select("parent_id", "attr.node"), left_on="id", right_on="parent_id"
    )
    once = nodes.group_by("around").agg(
        first=pl.col("id").min(), again=pl.col("attr.node").is_duplicated().any()
    )
    one = once.filter(~pl.col("again")).select(parent_id="around", first="first")
    merged = calls.join(one, on="parent_id", nulls_equal=True)
    ids = dict(merged.select("id", "first").rows())
    times = merged.group_by("first").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("attr.operators_ns").sum()
    )
    kept = rows.filter(
        pl.col("id").is_null() | ~pl.col("id").is_in([each for each in ids if ids[each] != each])
    ).with_columns(pl.col("parent_id").replace(ids))
    return kept.update(times.rename({"first": "id"}), on="id").with_columns(
        **{
            "attr.call_index": pl.when(pl.col("id").is_in(list(ids.values())))
            .then(None)
            .otherwise("attr.call_index")
        }
    )
