"""Sums time and work of the kernels of each name (A10 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.kernel.intensity import COLUMNS, with_intensity
from xsp.answer.analyses.kernel.kernel import aggregated, kernels_of
from xsp.answer.analyses.kernel.kernel_information import (
    OCCUPANCY_COLUMNS,
    SOURCE_COLUMN,
    TIME_COLUMNS,
    WORK_COLUMNS,
)
from xsp.answer.analyses.structure.sums import share_pct
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of
from xsp.trace import Trace

KNOWN_COLUMN = {"known_pct": "Share of the kernels' time whose operations are known."}
_COLUMNS = {
    "kernel": "Short name.",
    "full_name": "Name with template arguments and parameters, by which a device's kernels count.",
    "count": "How many kernels there were.",
    **TIME_COLUMNS,
    "share_pct": "Latency as a share of the trace's latency.",
    "least_ns": "Time of the shortest of them.",
    "median_ns": "Median of their times.",
    "most_ns": "Time of the longest.",
    "deviation_ns": "Standard deviation of their times; null of a single one.",
    **WORK_COLUMNS,
    **OCCUPANCY_COLUMNS,
    **COLUMNS,
    **KNOWN_COLUMN,
    **SOURCE_COLUMN,
}


@analysis("Which kernels take the time?", _COLUMNS, paper="A10")
def kernel_by_name(trace: Trace) -> pl.DataFrame:
    """Return time and work of the kernels of each name, those that took longest first.

    Args:
        trace: A trace. Where no device worked, library calls stand for kernels, else operators.
    """
    tree = Tree.of(trace)
    keys = ["kernel", "full_name", "transfer"]
    kernels = kernels_of(tree)
    each = pl.col("latency_ns") / pl.col("count")
    spread = kernels.group_by(keys).agg(
        least_ns=each.min(), median_ns=each.median(), most_ns=each.max(), deviation_ns=each.std()
    )
    summed = aggregated(kernels, keys).join(
        spread, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    table = with_intensity(summed, roof_of(trace), "covered_ns")
    return (
        table.with_columns(
            share_pct=share_pct("latency_ns", tree.latency_ns()[0]),
            known_pct=known_pct(),
        )
        .sort("latency_ns", descending=True, nulls_last=True, maintain_order=True)
        .select(*_COLUMNS)
    )


def known_pct() -> pl.Expr:
    """Return the share of the kernels' time whose operations are known."""
    known = pl.col("latency_ns") > 0
    return pl.when(known).then(100 * pl.col("covered_ns") / pl.col("latency_ns"))
