"""Memory at its peak: a trace in, the layers whose memory is alive at that moment out."""

from __future__ import annotations

import polars as pl

from xsp.analyses.contract import Need, analysis
from xsp.analyses.memory.alive import alive_at, peak_index
from xsp.analyses.memory.held import held
from xsp.analyses.memory.owner import owners
from xsp.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "part": "The evaluation or marked part of the trace that the layer was called in.",
    "phase": "`forward` or `backward`.",
    "layer": "Dotted path of the innermost module that allocated; null outside of layers.",
    "type": "Class of the module.",
    "operator": "Operator that most of it was allocated in, the outermost in the layer.",
    "alive_bytes": "What the layer allocated and is alive at the peak, as far as can be told.",
    "share_pct": "That as a share of all that is alive.",
    "peak_bytes": "Most memory held at one time, in all rows the same.",
    "at": "Path of the span that ran at that moment, in all rows the same.",
    "recorded": "Whether peaks are recorded; else they are put together from allocations.",
}


@analysis("Whose memory is alive at the peak?", _COLUMNS, needs=(Need.MEMORY,))
def memory_peak(trace: Trace) -> pl.DataFrame:
    """Return the layers that allocated what is alive when most memory is held, largest first.

    Only memory that was allocated in the trace counts: parameters and inputs are not in it.
    Which memory was freed is not recorded; see `xsp.analyses.memory.held` for what is assumed.

    Args:
        trace: A trace whose operators record what they allocate.

    Raises:
        AnalysisError: The trace has no allocations.
    """
    tree = Tree.of(trace)
    memory = held(tree)
    at = peak_index(memory)
    keys = ("part", "phase", "layer", "type")
    alive = owners(tree, memory.row).with_columns(pl.Series("alive_bytes", alive_at(memory, at)))
    largest = pl.col("operator").sort_by("alive_bytes", descending=True).first()
    return (
        alive.group_by(*keys, "operator", maintain_order=True)
        .agg(pl.sum("alive_bytes"))
        .group_by(keys, maintain_order=True)
        .agg(largest, pl.sum("alive_bytes"))
        .filter(pl.col("alive_bytes") > 0)
        .with_columns(
            share_pct=100 * pl.col("alive_bytes") / pl.sum("alive_bytes"),
            peak_bytes=pl.lit(int(memory.highest[at]), dtype=pl.Int64),
            at=pl.lit(tree.spans["path"][int(memory.row[at])]),
            recorded=pl.lit(memory.recorded),
        )
        .sort("alive_bytes", descending=True, maintain_order=True)
        .select(*_COLUMNS)
    )
