"""Sums the operations and bytes of all spans that have the same owner.

An owner is whatever a table has rows for: a layer, a third of a model, a step.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from xsp.answer.analyses.total import joined, total
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import work_of
from xsp.matching import Ints

MEANINGS: Final = {
    "flops": "Operations of all spans inside, a multiplication and an addition being two.",
    "read_bytes": "Bytes read.",
    "write_bytes": "Bytes written.",
    "work_source": "Where these are from: `counted`, `library` (sizes of calls), `analytical`.",
}


def work_by_owner(tree: Tree, owner: Ints) -> pl.DataFrame:
    """Return the work of each owner: the sum over its spans of what each of these does itself.

    Args:
        tree: The spans.
        owner: Number of each span's owner, -1 for none.

    Returns:
        A row per owner with `owner`, `flops`, `read_bytes`, `write_bytes` (null where nothing is
        known), and `work_source`, all sources of these, joined by commas.
    """
    sums = [total(name) for name in ("flops", "read_bytes", "write_bytes")]
    return (
        work_of(tree)
        .with_columns(pl.Series("owner", owner))
        .filter(pl.col("owner") >= 0)
        .group_by("owner", maintain_order=True)
        .agg(*sums, work_source=joined(pl.col("work_source")))
    )
