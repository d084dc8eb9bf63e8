"""Layers side by side: traces of groups of evaluations in, one table with a column for each out."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from xsp.level import Kind
from xsp.trace import Trace, attribute_column

_KEYS = ("module_path", "module_class", "phase")


def side_by_side(groups: Mapping[str, Trace]) -> pl.DataFrame:
    """Return the latency of each layer in one evaluation of each group.

    Layers are the same where path, class and phase are. A layer that is called several times in an
    evaluation has the sum of its calls. Rows are in the order of the first group that has them.

    Args:
        groups: The trace of one evaluation of each group, by the group's name.

    Returns:
        Columns `module_path`, `module_class` and `phase`, and a column with the name of each group:
        nanoseconds, null where the group has no such layer, or its latency is not known.
    """
    table = pl.DataFrame(schema=dict.fromkeys(_KEYS, pl.String))
    for name, trace in groups.items():
        table = table.join(
            _layers(trace, name), on=_KEYS, how="full", coalesce=True, nulls_equal=True,
            maintain_order="left_right",
        )  # fmt: skip
    return table


def _layers(trace: Trace, name: str) -> pl.DataFrame:
    spans = trace.spans
    keys = {key: attribute_column(spans, key) for key in _KEYS}
    return (
        spans.select("kind", "latency_ns", **keys)
        .filter(pl.col("kind") == Kind.LAYER.value, pl.col("module_path").is_not_null())
        .group_by(_KEYS, maintain_order=True)
        .agg(
            pl.when(pl.col("latency_ns").is_not_null().any()).then(pl.sum("latency_ns")).alias(name)
        )
    )
