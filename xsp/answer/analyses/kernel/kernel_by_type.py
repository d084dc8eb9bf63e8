"""Sums the kernels of each type of operator: matrix products, attention, copies, …."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMMUNICATING, Work
from xsp.answer.analyses.kernel.intensity import COLUMNS, with_intensity
from xsp.answer.analyses.kernel.kernel import WORK, aggregated, in_kernels, kernels_of
from xsp.answer.analyses.kernel.kernel_by_name import KNOWN_COLUMN, known_pct
from xsp.answer.analyses.kernel.kernel_information import (
    SOURCE_COLUMN,
    TIME_COLUMNS,
    WORK_COLUMNS,
)
from xsp.answer.analyses.kernel.layer import known_sum
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.structure.sums import device_total_ns, share_pct
from xsp.answer.analyses.total import joined
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of, work_of
from xsp.layer_type import LayerType
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace

_COLUMNS = {
    "type": "What the innermost operator or layer around the kernels computes; `communication`, "
    "`copy` or `set` of these; null: not known.",
    "count": "How many kernels, copies and sets there are.",
    **TIME_COLUMNS,
    "share_pct": "Their time as a share of the time of all, added up.",
    **WORK_COLUMNS,
    **COLUMNS,
    **KNOWN_COLUMN,
    **SOURCE_COLUMN,
    "operators": "Names of the operators, those with most device time first.",
}


@analysis("What kind of computing takes the device's time?", _COLUMNS, needs=(Need.DEVICE,))
def kernel_by_type(trace: Trace) -> pl.DataFrame:
    """Return time and work of the kernels of each type of operator, most time first.

    Args:
        trace: A trace with work of a device.

    Raises:
        AnalysisError: No device worked in the trace.
    """
    tree = Tree.of(trace)
    types = _types(tree)
    rows = tree.rows(*DEVICE_ACTIVITIES)
    kernels = kernels_of(tree).with_columns(type=types[rows])
    operator = tree.nearest(tree.is_of(Kind.OP))[kernels["row"].to_numpy()]
    named = kernels.select(
        "type",
        "latency_ns",
        operator=pl.when(pl.Series(operator >= 0)).then(
            tree.spans["name"].gather(np.maximum(operator, 0))
        ),
    )
    names = (
        named.group_by("type", "operator", maintain_order=True)
        .agg(pl.sum("latency_ns"))
        .sort("latency_ns", descending=True, maintain_order=True)
        .group_by("type", maintain_order=True)
        .agg(pl.col("operator").drop_nulls().str.join(", ").replace("", None).alias("operators"))
    )
    # All that is done in kernels, that of operators with several kernels among it.
    source = pl.when(pl.any_horizontal(pl.col(*WORK) > 0)).then("work_source")
    work = (
        work_of(tree)
        .with_columns(type=types)
        .filter(pl.Series(in_kernels(tree)))
        .group_by("type")
        .agg(*(known_sum(name) for name in WORK), work_source=joined(source))
    )
    sums = aggregated(kernels, ["type", "transfer"]).drop(*WORK, "work_source")
    sums = sums.join(work, on="type", how="left", nulls_equal=True, maintain_order="left")
    table = with_intensity(sums, roof_of(trace), "covered_ns")
    return (
        table.join(names, on="type", how="left", nulls_equal=True)
        .with_columns(
            share_pct=share_pct("latency_ns", device_total_ns(tree)), known_pct=known_pct()
        )
        .sort("latency_ns", "type", descending=[True, False], nulls_last=True)
        .select(*_COLUMNS)
    )


def _types(tree: Tree) -> pl.Series:
    """Return the type of each span: that of the innermost operator, else layer, which has one."""
    told = layer_types(tree)
    known = (told.is_not_null() & (told != LayerType.CONTAINER.value)).to_numpy()
    nearest = []
    for kind in (Kind.OP, Kind.LAYER):
        typed = tree.is_of(kind) & known
        row = np.where(typed, np.arange(len(typed)), tree.nearest(typed))
        found = pl.DataFrame({"row": row, "type": told.gather(np.maximum(row, 0))})
        nearest.append(found.select(pl.when(pl.col("row") >= 0).then("type")).to_series())
    work = Work.of(tree)
    communicates = np.zeros(len(known), np.bool_)
    communicates[work.column("row")[work.is_sort(COMMUNICATING)]] = True
    return pl.select(
        pl.when(pl.Series(tree.is_of(Kind.MEMCPY)))
        .then(pl.lit("copy"))
        .when(pl.Series(tree.is_of(Kind.MEMSET)))
        .then(pl.lit("set"))
        .when(pl.Series(communicates))
        .then(pl.lit("communication"))
        .otherwise(pl.coalesce(nearest))
    ).to_series()
