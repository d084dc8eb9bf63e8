"""Leaves out rows of the deepest kinds where steps have more rows than memory holds."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.provider.row import SpanRows

MOST_SPANS = 1_000_000  # of a step: putting a trace together takes 5 kB of memory for each

_ALWAYS = (Kind.REGION, Kind.LAYER)  # kept, however many there are


def within_memory(rows: SpanRows, steps: int) -> tuple[SpanRows, dict[Kind, int]]:
    """Return rows without the deepest kinds, where steps have too many of them.

    Args:
        rows: The rows of some steps.
        steps: How many there are, at least one.

    Returns:
        The rows, and of each kind that is left out how many rows a step had.
    """
    if rows.height <= MOST_SPANS * steps:
        return rows, {}
    counts = {Kind(kind): count for kind, count in rows["kind"].value_counts().iter_rows()}
    left_out, total = {}, 0
    for kind in sorted(counts, key=lambda kind: kind.order):
        total += counts[kind]
        if total > MOST_SPANS * steps and kind not in _ALWAYS:
            left_out[kind] = max(counts[kind] // steps, 1)
    return rows.filter(~pl.col("kind").is_in([kind.value for kind in left_out])), left_out
