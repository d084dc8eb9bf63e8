"""Sums the operations and bytes of all spans that have the same owner.

An owner is whatever a table has rows for: a layer, a third of a model, a step.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from xsp.answer.analyses.total import joined, total, whole_total
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import unknown_calls, work_of
from xsp.matching import Ints

MEANINGS: Final = {
    "flops": "Operations of all spans inside, a multiplication and an addition being two.",
    "read_bytes": "Bytes read.",
    "write_bytes": "Bytes written.",
    "unknown_operators": "Calls of operators whose operations are unknown, and in no sum.",
    "work_source": "Where these are from: `counted`, `library` (sizes of calls), `analytical`.",
}


def work_by_owner(tree: Tree, owner: Ints) -> pl.DataFrame:
    """Return the work of each owner: the sum over its spans of what each of these does itself.

    Args:
        tree: The spans.
        owner: Number of each span's owner, -1 for none.

    Returns:
        A row per owner with `owner`, `flops`, `read_bytes`, `write_bytes` (null where nothing is
        known), `unknown_operators`, and `work_source`, all sources of these, joined by commas.
    """
    sums = [total(name) for name in ("flops", "read_bytes", "write_bytes")]
    return (
        work_of(tree)
        .with_columns(unknown_calls(tree), pl.Series("owner", owner))
        .filter(pl.col("owner") >= 0)
        .group_by("owner", maintain_order=True)
        .agg(*sums, whole_total("unknown_operators"), work_source=joined(pl.col("work_source")))
    )
