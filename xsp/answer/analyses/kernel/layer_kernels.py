"""Sums time and work of the kernels of each layer (A11 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.kernel.intensity import COLUMNS, with_intensity
from xsp.answer.analyses.kernel.kernel_by_name import KNOWN_COLUMN, known_pct
from xsp.answer.analyses.kernel.kernel_information import (
    OCCUPANCY_COLUMNS,
    SOURCE_COLUMN,
    WORK_COLUMNS,
)
from xsp.answer.analyses.kernel.layer import LAYER_COLUMNS, kernels_by_layer
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of
from xsp.level import Kind
from xsp.trace import Trace

_TIMES = {
    "kernel_ns": "Time of the layer's kernels, without those of the layers inside.",
    "kernel_low_ns": "Lower end of its 95 % interval.",
    "kernel_high_ns": "Upper end of its 95 % interval.",
}
_COLUMNS = {
    **LAYER_COLUMNS,
    "own_ns": "Latency of the layer less that of the layers inside.",
    "count": "How many kernels the layer has.",
    **_TIMES,
    **WORK_COLUMNS,
    **OCCUPANCY_COLUMNS,
    **COLUMNS,
    **KNOWN_COLUMN,
    **SOURCE_COLUMN,
}


@analysis("What do each layer's kernels do?", _COLUMNS, needs=(Need.LAYERS,), paper="A11")
def layer_kernels(trace: Trace) -> pl.DataFrame:
    """Return the layers that have kernels of their own, with time and work of these kernels.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    tree = Tree.of(trace)
    table = with_intensity(kernels_by_layer(tree), roof_of(trace), "covered_ns")
    own = tree.own_ns(tree.is_of(Kind.LAYER))[table["row"].to_numpy()]
    return (
        table.with_columns(known_pct=known_pct(), own_ns=pl.Series(own).fill_nan(None))
        .rename({name.replace("kernel", "latency", 1): name for name in _TIMES})
        .select(*_COLUMNS)
    )
