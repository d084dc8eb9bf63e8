"""Makes rows of operators, inside the layers that the operators' nodes belong to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import Provenance, SpanRows, span_rows
from xsp.scope import CALL, layer_scopes, layered
from xsp.xplane import Graph, inputs_of
from xsp_levels.framework.keras.index import LayerIndex

_GRADIENT = "gradient_tape"  # outermost scope of what a gradient is computed by
_BACKWARD = "backward"
_OPTIMIZER, _LOADING = "optimizer", "data loading"
_PARAMETERS, _RANDOM = "parameters", "random numbers"
_NO_LAYERS = {_OPTIMIZER, _LOADING, _PARAMETERS, _RANDOM}
_READS = "ReadVariableOp"
# Where branches are added TensorFlow adds their offsets, too, which are parameters, at the start.
_REWRITTEN = r"/ArithmeticOptimizer/AddOpsRewrite_Leaf_\d+"
_BRIEF_NS = 50_000  # of these TensorFlow itself ceases to record those of less than some 3 us
# What the profiler leaves out takes 3 us, by TensorFlow's own measure; this is well beyond.
_CHEAP_NS = 20_000
_LOADS = {"IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue"}
# Scopes that optimizers open, which are their names unless the user gave others.
_OPTIMIZERS = re.compile(
    r"^(?:adadelta|adafactor|adagrad|adam|adamax|adamw|ftrl|lamb|lion|loss_scale_optimizer|muon"
    r"|nadam|rmsprop|sgd|SGD|Adam\w*|RMSprop)(?:_\d+)?$"
)


def in_layers(  # noqa: PLR0913
    table: pl.DataFrame,
    columns: Mapping[str, pl.Series],
    layers: LayerIndex,
    ahead: Mapping[str, Mapping[str, str]],
    graphs: Mapping[str, Graph],
    *,
    brief_left_out: bool = False,
    whole: bool = False,
) -> SpanRows:
    """Return rows of operators, and of the layers, optimizers and loads that hold them.

    Args:
        table: Operators (`operator_table`, `with_instructions`, `with_main`).
        columns: More columns of the rows of operators, by their names.
        layers: The layers that nodes can be of.
        ahead: Nodes that depend on no data, by the function (`parameter_nodes`). They run before
            their layers do, and are in a part of the program called `parameters` or, where a layer
            draws them itself, `random numbers`; reads are left out, and what takes less than 50 us.
        graphs: Graphs by the function, or XLA's module.
        brief_left_out: Whether the profiler leaves out operators that it knows to be brief.
        whole: Whether it never does, so that only reads are left out.
    """
    nodes = table.select(pl.col("origin").append(pl.col("fused").explode()).unique().drop_nulls())
    named = _Named(nodes.to_series().to_list(), layers)
    early = pl.Series("early", _early(table, ahead, named), dtype=pl.String)
    sums = table["node"].str.contains(_REWRITTEN).fill_null(value=False)
    brief = table["end_ns"] - table["start_ns"] < (0 if whole else _BRIEF_NS)
    kept = ~((early.is_not_null() | sums) & (brief | (table["name"] == _READS)))
    columns = {name: column.filter(kept) for name, column in columns.items()}
    table = table.with_columns(early).filter(kept)
    phases = [_BACKWARD if is_backward(node) else None for node in table["origin"].to_list()]
    of_xla = pl.col("sort") == "xla"
    keys = table.select(graph=pl.when(of_xla).then("hlo_module").otherwise("function"), node="node")
    columns = {**columns, **_fused(table, named), "attr.inputs": inputs_of(keys, graphs)}
    rows = _rows(table, phases, columns)
    found = layered(
        rows,
        pl.Series(_paths(table, named), dtype=pl.List(pl.String)),
        steps=table["run"].rank("dense").cast(pl.Int64),
        phases=pl.Series(phases, dtype=pl.String),
        describe=lambda path: layers.describe(path) or named.describe(path),
    )
    return _with_unsteady(_parts(found)) if brief_left_out else _parts(found)


def _early(
    table: pl.DataFrame, ahead: Mapping[str, Mapping[str, str]], named: _Named
) -> list[str | None]:
    """Return of each operator that depends on no data of which part of the program it is.

    What a layer computes of random numbers that were drawn outside of it is its work: an image of
    noise, say. Of a function that is gone only that it reads a variable tells. An optimizer
    computes with the variables that it has just written.
    """
    told = table.select("function", "node", "name", "sort").iter_rows()
    return [
        _part(ahead.get(function), node, name, named)
        if sort == "node"
        and not is_backward(node)
        and (name == _READS or named.path(node) != (_OPTIMIZER,))
        else None
        for function, node, name, sort in told
    ]


def _part(known: Mapping[str, str] | None, node: str, name: str, named: _Named) -> str | None:
    if known is None:
        return _PARAMETERS if name == _READS else None
    drawn = known.get(node)
    if not drawn:
        return None if drawn is None else _PARAMETERS
    return _RANDOM if named.path(drawn) == named.path(node) != () else None


class _Named:
    """The layers around nodes: those of Keras, else those that the scopes of a SavedModel name."""

    def __init__(self, nodes: Collection[str], layers: LayerIndex) -> None:
        self._known = {node: node_path(node, layers) for node in nodes}
        plain = all(path in ((), (_OPTIMIZER,)) for path in self._known.values())
        self._scopes = Scopes([node for node in nodes if plain and not is_backward(node)])

    def path(self, node: str | None) -> tuple[str, ...]:
        """Return the layers around a node, outermost first."""
        return () if node is None else self._known.get(node) or self._scopes.path(node)

    def describe(self, path: tuple[str, ...]) -> Mapping[str, Any] | None:
        """Return the attributes of a layer that scopes name; None of others."""
        return self._scopes.describe(path) if path[0] not in _NO_LAYERS else None


def _paths(table: pl.DataFrame, named: _Named) -> list[tuple[str, ...]]:
    paths = []
    for node, name, early in table.select("origin", "name", "early").iter_rows():
        path = (_LOADING,) if node and name in _LOADS else named.path(node)
        paths.append((early,) if early else path)
    return paths


def _fused(table: pl.DataFrame, named: _Named) -> dict[str, pl.Series]:
    """Return the paths of the other layers that operators were fused of."""
    found = []
    for nodes in table["fused"].to_list():
        own, *others = [named.path(node) for node in nodes or ()] or [()]
        paths = dict.fromkeys(path for path in others if path != own[: len(path)])
        found.append([".".join(path[1:] or path) for path in paths] or None)
    return {"attr.fused_layers": pl.Series(found, dtype=pl.List(pl.String))}


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


def _parts(rows: SpanRows) -> SpanRows:
    """Return rows in which optimizers and loads are parts of the program, and no layers."""
    is_part = (pl.col("kind") == Kind.LAYER.value) & pl.col("name").is_in(list(_NO_LAYERS))
    return _whole_parts(rows, is_part & (pl.col("name") != _LOADING)).with_columns(
        kind=pl.when(is_part)
        .then(pl.lit(Kind.REGION.value))
        .otherwise("kind")
        .cast(rows.schema["kind"])
    )


def _whole_parts(rows: SpanRows, is_part: pl.Expr) -> SpanRows:
    """Return rows in which a part such as the optimizer is one row, unless a loop ran it again.

    An optimizer updates one weight like the other, each as soon as its gradient is there, so that
    the operators look like several calls of a layer. Only a loop runs a node twice.

    Args:
        rows: Operators in derived layers.
        is_part: Which rows are such parts.
    """
    parts = rows.filter(is_part).select("id", "name", around="parent_id")
    inside = rows.select("attr.node", id="parent_id").join(parts, on="id")
    one = inside.group_by("name", "around").agg(
        first=pl.col("id").min(), again=pl.col("attr.node").is_duplicated().any()
    )
    ids = parts.join(one.filter(~pl.col("again")), on=["name", "around"], nulls_equal=True)
    ids = ids.filter(pl.len().over("first") > 1).select("id", "first")
    if not ids.height:
        return rows
    whole = (
        rows.join(ids, on="id")
        .group_by("first")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("attr.operators_ns").sum())
    )
    others = ids.filter(pl.col("id") != pl.col("first"))["id"].to_list()
    kept = rows.filter(~pl.col("id").is_in(others) | pl.col("id").is_null())
    first = pl.col("id").is_in(ids["first"].to_list()).fill_null(value=False)
    kept = kept.with_columns(
        pl.col("parent_id").replace(ids["id"], ids["first"]),
        pl.when(~first).then("attr.call_index").alias("attr.call_index"),
    )
    return kept.update(whole.rename({"first": "id"}), on="id")


def _with_unsteady(rows: SpanRows) -> SpanRows:
    """Return rows with `attr.unsteady`, which marks operators that another recording may lack.

    That is a brief operator of a graph, one of which the time decides whether it is left out, and a
    derived layer of nothing but these.
    """
    in_graph = (pl.col("kind") == Kind.OP.value) & pl.col("attr.node").is_not_null()
    early = rows.filter(pl.col("name").is_in([_PARAMETERS, _RANDOM]))["id"].to_list()
    brief = pl.col("end_ns") - pl.col("start_ns") < _CHEAP_NS
    brief = brief | pl.col("parent_id").is_in(early).fill_null(value=False)
    derived = pl.col("provenance") == Provenance.DERIVED.value
    parents = dict(rows.filter(derived).select("id", "parent_id").rows())
    steady: set[int] = set()
    for each in rows.filter(in_graph & ~brief)["parent_id"].drop_nulls().unique().to_list():
        around: int | None = each
        while around is not None and around in parents and around not in steady:
            steady.add(around)
            around = parents[around]
    known = pl.col("id").is_in(list(steady)).fill_null(value=False)
    unsteady = (in_graph & brief) | (derived & ~known)
    return rows.with_columns(pl.when(unsteady).then(unsteady).alias("attr.unsteady"))


# Finds layers by the scopes of a graph's nodes, where no layer of Keras is known.

Path = tuple[str, ...]

_NUMBERED = re.compile(r"^(.+)_\d+$")


class Scopes:
    """The layers that the scopes of some nodes name.

    Args:
        nodes: Names of all nodes, those too that lie in none.
    """

    def __init__(self, nodes: Collection[str]) -> None:
        found = {node: _scopes(node) for node in nodes}
        # TensorFlow makes the names of Keras's layers unique by a number at the end of each.
        numbered = all(_NUMBERED.match(scope) for path in found.values() for scope in path)
        self._paths = {
            node: tuple(map(_plain, path)) if numbered else path for node, path in found.items()
        }
        outermost = {path[0] for path in self._paths.values() if path}
        self._rooted = len(outermost) == 1

    def path(self, node: str) -> Path:
        """Return the layers around a node, outermost first."""
        return self._paths.get(node, ())

    def describe(self, path: Sequence[str]) -> Mapping[str, Any]:
        """Return the attributes of a layer; paths begin inside the model, where there is one."""
        return {
            "framework": "tensorflow",
            "module_path": ".".join(path[1:] if self._rooted else path),
        }


def _scopes(node: str) -> Path:
    """Return the scopes of a node that was inlined, up to the first that is no layer's.

    >>> _scopes("StatefulPartitionedCall/net_1/fc_1/Tensordot/MatMul"), _scopes("net_1/fc_1/MatMul")
    (('net_1', 'fc_1'), ())
    """
    call, *scopes = node.split("/")[:-1] or [""]
    return layer_scopes(scopes) if CALL.match(call) else ()


def _plain(scope: str) -> str:
    found = _NUMBERED.match(scope)
    return found[1] if found else scope
