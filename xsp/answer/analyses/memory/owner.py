"""Finds the layer and the operator for which each span allocates memory."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.structure.part import part_names
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.matching import Ints


def owners(tree: Tree, rows: Ints) -> pl.DataFrame:
    """Return the owners of the memory that some spans allocate.

    Returns:
        Columns `part`, `phase`, `layer`, `type` and `operator`: the innermost module, and the
        outermost operator in it; null where there is none.
    """
    layers = tree.is_of(Kind.LAYER)
    innermost = np.where(layers, np.arange(len(layers)), tree.nearest(layers))[rows]
    known, of = pl.Series(innermost >= 0), np.maximum(innermost, 0)
    layer = pl.select(pl.coalesce(tree.attribute("module_path"), tree.spans["name"])).to_series()
    about = {
        "phase": tree.attribute("phase"),
        "layer": layer,
        "type": tree.attribute("module_class"),
    }
    values = pl.DataFrame({name: column[of] for name, column in about.items()})
    operator = _outermost_operator(tree, rows)
    named = pl.when(pl.Series(operator >= 0)).then(tree.spans["name"][np.maximum(operator, 0)])
    return pl.DataFrame([part_names(tree)[rows]]).hstack(
        values.select(pl.when(known).then(pl.all()))
    ).with_columns(operator=named)  # fmt: skip


def _outermost_operator(tree: Tree, rows: Ints) -> Ints:
    """Return the row of the outermost operator around each span within its layer, -1 for none."""
    operators = tree.is_of(Kind.OP)
    found = np.where(operators[rows], rows, -1)
    while True:
        above = np.where(found >= 0, tree.parent[found], -1)
        on = (above >= 0) & operators[above]
        if not on.any():
            return found
        found[on] = above[on]
