"""Tells how many instructions a cycle each span executed, and how often the caches failed it."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.system.off_cpu import of_all
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "kind": "Kind of span.",
    "name": "Name of the span.",
    "path": "Path of the span in the trace.",
    "latency_ns": "Latency, of all occurrences that the span stands for.",
    "cycles": "Cycles that the processor worked for the span's thread in that time.",
    "instructions": "Instructions that the thread executed.",
    "instructions_per_cycle": "Instructions by cycles; below 1 the processor mostly waited.",
    "cache_misses": "Accesses to memory that no cache answered.",
    "misses_per_1000": "Cache misses for every 1,000 instructions.",
}


@analysis("Do layers compute, or wait for memory?", _COLUMNS, needs=(Need.COUNTERS,))
def processor_counters(trace: Trace) -> pl.DataFrame:
    """Tabulate the processor's counters by span, those with most cycles first.

    The kernel samples the counters (every 1,000,000 cycles and instructions, every 10,000 misses),
    so a span needs some milliseconds in all steps together. Threads that a library starts for a
    span are not in its row.

    Args:
        trace: A trace with the system level, of a machine with hardware counters.

    Raises:
        AnalysisError: The trace has no counters.
    """
    tree = Tree.of(trace)
    cycles, instructions, misses = (
        of_all(tree, name) for name in ("cycles", "instructions", "cache_misses")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {
            "instructions_per_cycle": np.where(cycles > 0, instructions / cycles, np.nan),
            "misses_per_1000": np.where(instructions > 0, 1000 * misses / instructions, np.nan),
        }
    columns = {"cycles": cycles, "instructions": instructions, "cache_misses": misses} | rates
    return (
        tree.spans.select("kind", "name", "path", "latency_ns")
        .with_columns(pl.Series(name, values).fill_nan(None) for name, values in columns.items())
        .filter(pl.col("cycles") > 0)
        .sort("cycles", descending=True, maintain_order=True)
        .select(*_COLUMNS)
    )
