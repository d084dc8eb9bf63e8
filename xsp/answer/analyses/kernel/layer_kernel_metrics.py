"""Sums the operations and bytes of each layer (A12 of the paper)."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.kernel.kernel_information import SOURCE_COLUMN, WORK_COLUMNS
from xsp.answer.analyses.kernel.layer import LAYER_COLUMNS, done_by_layer, layer_frame
from xsp.answer.analyses.owned_work import MEANINGS
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    **LAYER_COLUMNS,
    **WORK_COLUMNS,
    "flops_pct": "Operations as a share of those of all layers.",
    "bytes_pct": "Bytes read and written as a share of those of all layers.",
    "unknown_operators": MEANINGS["unknown_operators"],
    **SOURCE_COLUMN,
}


@analysis(
    "Which layers compute most, and which move most?", _COLUMNS, needs=(Need.LAYERS,), paper="A12"
)
def layer_kernel_metrics(trace: Trace) -> pl.DataFrame:
    """Return the operations and bytes of each layer itself, without the layers inside.

    It is all that is known of the layer: of its kernels, and of its operators outside of these.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    tree = Tree.of(trace)
    work = done_by_layer(tree, np.ones(tree.spans.height, np.bool_))
    table = layer_frame(tree).join(work, on="row", how="left", maintain_order="left")
    moved = pl.col("read_bytes") + pl.col("write_bytes")
    return table.with_columns(
        flops_pct=(100 * pl.col("flops") / pl.col("flops").sum()).fill_nan(None),
        bytes_pct=(100 * moved / moved.sum()).fill_nan(None),
    ).select(*_COLUMNS)
