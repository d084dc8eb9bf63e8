"""Lists time and work of each kernel (A8 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.kernel.intensity import COLUMNS, with_intensity
from xsp.answer.analyses.kernel.kernel import kernels_of
from xsp.answer.analyses.kernel.layer import layer_names
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of
from xsp.trace import Trace

WORK_COLUMNS = {
    "flops": "Floating-point operations, a multiplication and an addition being two.",
    "read_bytes": "Bytes read from the device's memory.",
    "write_bytes": "Bytes written to the device's memory.",
}
OCCUPANCY_COLUMNS = {
    "occupancy_pct": "Active warps on a multiprocessor, of those that could be.",
    "occupancy_source": "`counted` while it ran, or `theoretical`, as its size allows.",
}
TIME_COLUMNS = {
    "latency_ns": "Time of the kernel, or, of a row on the host, its self time.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
}
SOURCE_COLUMN = {
    "work_source": "Where operations and bytes are from: `counted`, `library` or `analytical`.",
}
_COLUMNS = {
    "index": "Position of the kernel among all, in the order of the trace, from 1.",
    "path": "Path of the span in the trace.",
    "kernel": "Short name.",
    "full_name": "Name with template arguments and parameters, of a device's kernel.",
    "layer_index": "Position of the layer that the kernel is of, as in layer-latency.",
    "layer": "Dotted path of that layer's module, or the layer's name.",
    "count": "How many kernels the row stands for: the rest of the row is of all of these.",
    **TIME_COLUMNS,
    **WORK_COLUMNS,
    **OCCUPANCY_COLUMNS,
    **COLUMNS,
    **SOURCE_COLUMN,
}


@analysis("What did each kernel compute and move, and how fast?", _COLUMNS, paper="A8")
def kernel_information(trace: Trace) -> pl.DataFrame:
    """Return time and work of each kernel, in the order of the trace.

    Args:
        trace: A trace. Where no device worked, library calls stand for kernels, else operators.
    """
    tree = Tree.of(trace)
    kernels = kernels_of(tree)
    table = with_intensity(kernels, roof_of(trace), "latency_ns")
    return (
        table.hstack(layer_names(tree, table["layer_row"].to_numpy()))
        .with_columns(
            index=pl.int_range(1, table.height + 1, dtype=pl.Int64),
            path=tree.spans["path"][kernels["row"]],
        )
        .select(*_COLUMNS)
    )
