"""Places each kernel below the roof (A9 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.kernel.intensity import COLUMNS, ROOF_COLUMNS, with_intensity, with_roof
from xsp.answer.analyses.kernel.kernel import kernels_of
from xsp.answer.analyses.kernel.kernel_information import SOURCE_COLUMN
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of
from xsp.trace import Trace

_COLUMNS = {
    "index": "Position of the kernel among all, as in kernel-information.",
    "path": "Path of the span in the trace.",
    "kernel": "Short name.",
    "latency_ns": "Time of the kernel, or, of a row on the host, its self time.",
    **COLUMNS,
    **ROOF_COLUMNS,
    **SOURCE_COLUMN,
}


@analysis("How near is each kernel to what the device can do?", _COLUMNS, paper="A9")
def kernel_roofline(trace: Trace) -> pl.DataFrame:
    """Return the place below the roof of each kernel whose work and time are known.

    Copies and sets have none: links and other engines limit them.

    Args:
        trace: A trace. Where no device worked, library calls stand for kernels, else operators.
    """
    tree, roof = Tree.of(trace), roof_of(trace)
    kernels = kernels_of(tree)
    table = with_intensity(kernels, roof, "latency_ns").with_columns(
        index=pl.int_range(1, kernels.height + 1, dtype=pl.Int64),
        path=tree.spans["path"][kernels["row"]],
    )
    return with_roof(table.filter(~pl.col("transfer")), roof, "latency_ns").select(*_COLUMNS)
