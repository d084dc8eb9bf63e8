"""Size: rows of evaluations in; as many of them as memory holds out, and what is left out."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.provider.row import SpanRows

MOST_SPANS = 1_000_000  # of an evaluation: putting a trace together takes 5 kB of memory for each

_ALWAYS = (Kind.PIPELINE, Kind.LAYER)  # kept, however many there are


def within_memory(rows: SpanRows, evaluations: int) -> tuple[SpanRows, dict[Kind, int]]:
    """Return rows without the deepest kinds, where evaluations have too many of them.

    Args:
        rows: The rows of some evaluations.
        evaluations: How many there are, at least one.

    Returns:
        The rows, and of each kind that is left out how many rows an evaluation had.
    """
    if rows.height <= MOST_SPANS * evaluations:
        return rows, {}
    counts = {Kind(kind): count for kind, count in rows["kind"].value_counts().iter_rows()}
    left_out, total = {}, 0
    for kind in sorted(counts, key=lambda kind: kind.order):
        total += counts[kind]
        if total > MOST_SPANS * evaluations and kind not in _ALWAYS:
            left_out[kind] = max(counts[kind] // evaluations, 1)
    return rows.filter(~pl.col("kind").is_in([kind.value for kind in left_out])), left_out
