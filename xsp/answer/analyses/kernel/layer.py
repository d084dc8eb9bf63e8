"""Names layers, and sums the kernels of each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.kernel.kernel import WORK, Mask, aggregated, in_kernels, kernels_of
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.total import joined, whole_total
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import unknown_calls, work_of
from xsp.level import Kind
from xsp.matching import Ints

LAYER_COLUMNS = {
    "index": "Position of the layer among all, in the order they began, from 1.",
    "path": "Path of the span in the trace.",
    "layer": "Dotted path of the module, or the layer's name where it has none.",
    "type": "Class of the module.",
    "layer_type": "What the layer does, in words that hold for all frameworks.",
}


def layer_names(tree: Tree, layers: Ints) -> pl.DataFrame:
    """Return `layer_index` and `layer` of some layers' rows; null for row -1."""
    among = tree.is_of(Kind.LAYER)
    mask = pl.Series(layers >= 0)
    names = pl.coalesce(tree.attribute("module_path"), tree.spans["name"])
    frame = pl.DataFrame({"index": np.cumsum(among)}).with_columns(name=names)[
        np.maximum(layers, 0)
    ]
    return frame.select(
        layer_index=pl.when(mask).then(pl.col("index").cast(pl.Int64)),
        layer=pl.when(mask).then(pl.col("name")),
    )


@once_per_trace
def layer_frame(tree: Tree) -> pl.DataFrame:
    """Return `row` and `LAYER_COLUMNS` of each layer, in the order the layers began."""
    rows = tree.rows(Kind.LAYER)
    return tree.spans.select("path", "name")[rows].select(
        pl.Series("row", rows),
        pl.int_range(1, len(rows) + 1, dtype=pl.Int64).alias("index"),
        "path",
        pl.coalesce(tree.attribute("module_path")[rows], "name").alias("layer"),
        tree.attribute("module_class")[rows].alias("type"),
        layer_types(tree)[rows],
    )


@once_per_trace
def kernels_by_layer(tree: Tree) -> pl.DataFrame:
    """Return the layers that have kernels of their own, with those kernels summed up.

    A kernel is that of the innermost layer around it. The work is all that is done in the kernels
    of the layer, that of its operators with several kernels among it.
    """
    work = done_by_layer(tree, in_kernels(tree))
    kernels = aggregated(kernels_of(tree).filter(pl.col("layer_row") >= 0), ["layer_row"])
    kernels = kernels.rename({"layer_row": "row"}).drop(*WORK, "work_source")
    order: Any = {"on": "row", "maintain_order": "left"}
    return layer_frame(tree).join(kernels, **order).join(work, how="left", **order)


def done_by_layer(tree: Tree, among: Mask) -> pl.DataFrame:
    """Return the work of some spans summed up by the innermost layer.

    Columns are `row`, `WORK`, `unknown_operators` and `work_source`.
    Sums are of what is known, and null where that is 0 and something is not known.
    """
    source = pl.when(pl.any_horizontal(pl.col(*WORK) > 0)).then("work_source")
    # Layers and launches have no work, and that of kernels without counters is their operators'.
    working = tree.is_of(Kind.OP) | work_of(tree)["work_source"].is_not_null().to_numpy()
    return (
        work_of(tree)
        .with_columns(unknown_calls(tree), row=pl.Series(tree.nearest(tree.is_of(Kind.LAYER))))
        .filter(pl.Series(among & working) & (pl.col("row") >= 0))
        .group_by("row", maintain_order=True)
        .agg(
            *(known_sum(name) for name in WORK),
            whole_total("unknown_operators"),
            work_source=joined(source),
        )
    )


def known_sum(name: str) -> pl.Expr:
    """Return the sum of a column; null where that is 0 and something is not known."""
    value = pl.col(name)
    return pl.when(value.is_not_null().all() | (value.sum() > 0)).then(value.sum()).alias(name)
