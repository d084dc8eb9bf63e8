"""Lists the memory held before, in and after each span that allocates or frees."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.memory.held import held
from xsp.answer.analyses.memory.owner import owners
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "path": "Path of the span, in which no other lies that allocates.",
    "part": "The step or marked part of the trace that it lies in.",
    "layer": "Dotted path of the innermost module around it; null for none.",
    "operator": "The outermost operator around it in that module.",
    "start_ns": "Start on the timeline without overhead.",
    "end_ns": "End on that timeline.",
    "before_bytes": "Held when the span began, of what was allocated since the trace began.",
    "highest_bytes": "Most held while the span ran.",
    "after_bytes": "Held when the span ended.",
}


@analysis("How much memory is held, over time?", _COLUMNS, needs=(Need.MEMORY,))
def memory_timeline(trace: Trace) -> pl.DataFrame:
    """Return the memory held around each span that allocates or frees, in the order they began.

    Drops between one row's end and the next row's start are what the spans around freed, at the
    moments that `xsp.answer.analyses.memory.held` assumes.

    Args:
        trace: A trace whose operators record what they allocate.

    Raises:
        AnalysisError: The trace has no allocations.
    """
    tree = Tree.of(trace)
    memory = held(tree)
    moves = np.flatnonzero(memory.is_leaf & ((memory.allocated > 0) | (memory.freed > 0)))
    rows = memory.row[moves]
    sizes = {
        "before_bytes": memory.before[moves],
        "highest_bytes": memory.highest[moves],
        "after_bytes": (memory.before + memory.net)[moves],
    }
    return (
        owners(tree, rows)
        .hstack(tree.spans.select("path", "start_ns", "end_ns")[rows])
        .with_columns(pl.Series(name, size) for name, size in sizes.items())
        .sort("start_ns", maintain_order=True)
        .select(*_COLUMNS)
    )
