"""Finds the framework-neutral type of each layer and operator in a tree."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Tree
from xsp.layer_type import LayerType, layer_type, main_type
from xsp.level import Kind

_ORDER = {kind.value: place for place, kind in enumerate(LayerType)}


@once_per_trace
def layer_types(tree: Tree) -> pl.Series:
    """Return the type of each layer and operator (`xsp.layer_type`); null of what has none.

    What a span states itself comes first, then what its class or name tells, and of a layer
    without either what most of its operators' time is. docs/layer-types.md has all rules.
    """
    stated, fused = tree.attribute("layer_type"), _fused(tree)
    told = pl.select(pl.coalesce(stated, _told(tree), fused)).to_series()
    untold = tree.is_of(Kind.LAYER) & told.is_null().to_numpy()
    if untold.any():
        told = pl.select(pl.coalesce(told, _dominant(tree, told))).to_series()
    return told.alias("layer_type")


def holding_layers(tree: Tree) -> pl.Series:
    """Return whether layers lie in each span as the next layers below."""
    layers = tree.is_of(Kind.LAYER)
    holds = np.zeros(len(layers), np.bool_)
    above = tree.nearest(layers)[layers]
    holds[above[above >= 0]] = True
    return pl.Series("holds_layers", holds)


def _told(tree: Tree) -> pl.Series:
    """Look up the types of layer classes and operator names, once for each."""
    class_ = pl.coalesce(tree.attribute("module_class"), tree.spans["name"])
    asked = pl.select(
        pl.when(pl.Series(tree.is_of(Kind.LAYER, Kind.OP))).then(class_).alias("name"),
        tree.attribute("framework").alias("framework"),
        holding_layers(tree),
    )
    alike = asked.drop_nulls("name").unique(maintain_order=True)
    kinds = [layer_type(name, of, holds_layers=holds) for name, of, holds in alike.iter_rows()]
    known = alike.with_columns(kind=pl.Series(kinds, dtype=pl.String))
    keys = ("name", "framework", "holds_layers")
    return asked.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")["kind"]


def _fused(tree: Tree) -> pl.Series:
    """Return the main type of the operators that a compiler made an operator of."""
    sources = tree.attribute("source_ops").set(pl.Series(~tree.is_of(Kind.OP)), None)
    known = {text: _main(text) for text in sources.drop_nulls().unique().to_list()}
    return sources.replace_strict(known, default=None, return_dtype=pl.String)


def _main(sources: str) -> str | None:
    """Return the main type of operators such as `aten.add, aten.relu` or `mul, dot_general`."""
    names = [name.replace("aten.", "aten::") for name in sources.split(", ")]
    kinds = [layer_type(name, None if "::" in name else "jax") for name in names]
    known = [kind for kind in kinds if kind is not None and kind is not LayerType.OTHER]
    return main_type(known)


def _dominant(tree: Tree, told: pl.Series) -> pl.Series:
    """Return for each layer the type that most of the time of its own operators is of.

    Where times are equal, or not known, the main type of the operators counts.
    """
    operators, layers = tree.is_of(Kind.OP), tree.is_of(Kind.LAYER)
    found = (
        pl.DataFrame(
            {
                "row": tree.nearest(layers),
                "kind": told,
                "own_ns": np.nan_to_num(tree.own_ns(operators)),
            }
        )
        .filter(pl.Series(operators), pl.col("row") >= 0, pl.col("kind").is_not_null())
        .group_by("row", "kind")
        .agg(pl.sum("own_ns"))
        .sort("own_ns", pl.col("kind").replace_strict(_ORDER, default=-1), descending=[True, False])
        .unique("row", keep="first", maintain_order=True)
    )
    kinds = pl.Series([None], dtype=pl.String).new_from_index(0, len(told))
    return kinds.scatter(found["row"], found["kind"])
