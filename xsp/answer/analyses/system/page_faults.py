"""Tells which layers and operators touch memory that the kernel has to map first."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.system.off_cpu import of_all
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

FAULT_NS = 1_600.0  # of one page of 4 KiB on a virtual machine (benchmarks/notes/2026-11-system.md)
_COLUMNS = {
    "kind": "Kind of span.",
    "name": "Name of the span.",
    "path": "Path of the span in the trace.",
    "latency_ns": "Latency, of all occurrences that the span stands for.",
    "page_faults": "Page faults in that time on the span's thread.",
    "own_page_faults": "These less those of the spans inside.",
    "major_faults": "How many of them waited for a disk; null: not known.",
    "estimated_ns": "What its own page faults take at 1.6 µs each, as on a small virtual machine.",
    "estimated_pct": "That as a share of the trace's latency.",
}


@analysis("Which layers make the kernel map memory again and again?", _COLUMNS,
          needs=(Need.FAULTS,))  # fmt: skip
def page_faults(trace: Trace) -> pl.DataFrame:
    """Return page faults by span, those with most of their own first; none without any.

    Args:
        trace: A trace with the system level.

    Raises:
        AnalysisError: The trace has no page faults.
    """
    tree = Tree.of(trace)
    faults = of_all(tree, "page_faults")
    known = ~np.isnan(faults)
    table = tree.spans.select("kind", "name", "path", "latency_ns").with_columns(
        page_faults=pl.Series(faults),
        own_page_faults=pl.Series(tree.own(faults, known)),
        major_faults=pl.Series(of_all(tree, "major_faults")).fill_nan(None),
    )
    estimated = pl.col("own_page_faults") * FAULT_NS
    return (
        table.filter(pl.Series(known) & (pl.col("page_faults") > 0))
        .with_columns(estimated_ns=estimated, estimated_pct=100 * estimated / tree.latency_ns()[0])
        .sort("own_page_faults", descending=True, maintain_order=True)
        .select(*_COLUMNS)
    )
