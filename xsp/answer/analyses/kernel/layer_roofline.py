"""Places each layer below the roof (A14 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.kernel.intensity import COLUMNS, ROOF_COLUMNS, with_intensity, with_roof
from xsp.answer.analyses.kernel.kernel_information import SOURCE_COLUMN
from xsp.answer.analyses.kernel.layer import LAYER_COLUMNS, kernels_by_layer
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of
from xsp.trace import Trace

_COLUMNS = {
    **LAYER_COLUMNS,
    "kernel_ns": "Time of the layer's kernels, without those of the layers inside.",
    **COLUMNS,
    **ROOF_COLUMNS,
    **SOURCE_COLUMN,
}


@analysis(
    "How near is each layer to what the device can do?", _COLUMNS, needs=(Need.LAYERS,), paper="A14"
)
def layer_roofline(trace: Trace) -> pl.DataFrame:
    """Return the place below the roof of each layer whose kernels' work is known.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    tree, roof = Tree.of(trace), roof_of(trace)
    table = with_intensity(kernels_by_layer(tree), roof, "covered_ns")
    return (
        with_roof(table, roof, "covered_ns").rename({"latency_ns": "kernel_ns"}).select(*_COLUMNS)
    )
