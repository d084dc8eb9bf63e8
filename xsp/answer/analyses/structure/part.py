"""Finds the step or marked part of a trace to which each span belongs."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.structure.sums import Bools
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.matching import Ints


def is_part(tree: Tree) -> Bools:
    """Return which spans are parts: marked spans and steps that lie in no layer or operator.

    What the user marked inside of a model is no part, but belongs to that of the model.
    """
    marked = tree.is_of(Kind.REGION)
    return marked & (tree.nearest(~marked) < 0)


@once_per_trace
def part_rows(tree: Tree) -> Ints:
    """Return the row of the part that each span belongs to; a part belongs to itself."""
    parts = is_part(tree)
    return np.where(parts, np.arange(len(parts)), tree.nearest(parts))


@once_per_trace
def part_names(tree: Tree) -> pl.Series:
    """Return the name of each span's part; with that of the part around where names recur.

    Numbered steps keep their numbers: `ProfilerStep#6`.
    """
    of = part_rows(tree)
    rows = np.unique(of)
    own, around = tree.spans["name"][rows], tree.spans["name"][np.maximum(tree.parent[rows], 0)]
    recurs = own.is_duplicated() & pl.Series(tree.parent[rows] >= 0)
    told = pl.select(pl.when(recurs).then(around + " / " + own).otherwise(own)).to_series()
    return told[np.searchsorted(rows, of)].alias("part")
