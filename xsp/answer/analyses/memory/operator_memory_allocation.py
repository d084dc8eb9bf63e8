"""Sums the memory that operators of each name allocate, keep, and free again at once."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.memory.held import Held, held, summed
from xsp.answer.analyses.structure.sums import Bools, calls, outermost
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.matching import Ints
from xsp.trace import Trace

_COLUMNS = {
    "operator": "Name of the operator.",
    "calls": "How often it was called.",
    "allocating_calls": "How many of these allocated, by themselves or by operators inside.",
    "allocated_bytes": "Allocated by it with the operators inside; in nested calls once.",
    "own_allocated_bytes": "Allocated outside of the operators inside: these sum to the whole.",
    "kept_bytes": "What it left behind: allocated less freed; negative where it freed more.",
    "temporary_bytes": "Allocated in it and freed by it at once; null for steps of autograd.",
    "temporary_share_pct": "These as a share of all that operators allocated.",
    "largest_bytes": "Most that one call allocated.",
    "peak_bytes": "Most that one call held at a time, above its start; null if not recorded.",
}

_SUMMED = ("allocated_bytes", "own_allocated_bytes", "kept_bytes")
# Steps of a backward pass: `autograd::engine::evaluate_function: MulBackward0`, `MulBackward0`.
_AUTOGRAD = r"^autograd::|Backward\d*$"


@analysis("Which operators allocate, and free again at once?", _COLUMNS,
          needs=(Need.OPERATORS, Need.MEMORY))  # fmt: skip
def operator_memory_allocation(trace: Trace) -> pl.DataFrame:
    """Return the allocations of operators by name, those with the largest temporaries first.

    Temporary memory is what is allocated and freed within one operator: the lesser of the two,
    less that of the operators inside. It is that of the innermost operator around both:
    workspaces, copies in another layout, intermediate results. Where an operator frees what was
    allocated before it, this is an upper bound; and nothing is known of the steps of autograd,
    which free what the forward pass saved. How many allocations there were is not recorded.

    Args:
        trace: A trace whose operators record what they allocate.

    Raises:
        AnalysisError: The trace has no operators, or no allocations.
    """
    tree = Tree.of(trace)
    among, memory = tree.is_of(Kind.OP), held(tree)
    name = tree.spans["name"]
    first = outermost(tree.nearest(among), among, name.hash().to_numpy())[memory.row]
    frame = _of_each(memory, name[memory.row], calls(tree)[memory.row], first)
    table = (
        frame.filter(pl.Series(among[memory.row]))
        .group_by("operator", maintain_order=True)
        .agg(
            pl.sum("calls", "allocating_calls", *_SUMMED),
            pl.when(pl.col("temporary_bytes").count() > 0).then(pl.sum("temporary_bytes")),
            pl.max("largest_bytes", "peak_bytes"),
        )
    )
    whole = table["own_allocated_bytes"].sum() or None
    share = 100 * pl.col("temporary_bytes") / pl.lit(whole, dtype=pl.Float64)
    return (
        table.with_columns(temporary_share_pct=share)
        .filter((pl.col("allocated_bytes") > 0) | (pl.col("kept_bytes") != 0))
        .sort("temporary_bytes", "allocated_bytes", descending=True, nulls_last=True,
              maintain_order=True)
        .select(*_COLUMNS)
    )  # fmt: skip


def _of_each(memory: Held, name: pl.Series, often: Ints, first: Bools) -> pl.DataFrame:
    """Sum the bytes that each span allocates, over all calls that it stands for.

    Args:
        memory: The memory of the spans.
        name: Their names.
        often: How many calls each stands for.
        first: Which of them lie in no span of their name.
    """
    lost = np.minimum(memory.allocated, memory.freed)
    temporary = np.maximum(lost - summed(lost, memory.parent), 0) * often
    frame = pl.DataFrame(
        {
            "operator": name,
            "calls": often,
            "allocating_calls": np.where(memory.allocated > 0, often, 0),
            "allocated_bytes": np.where(first, memory.allocated * often, 0),
            "own_allocated_bytes": memory.own_allocated * often,
            "kept_bytes": np.where(first, memory.net * often, 0),
            "temporary_bytes": temporary,
            "largest_bytes": memory.allocated,
            "peak_bytes": memory.peak,
        }
    )
    return frame.with_columns(
        pl.when(~pl.col("operator").str.contains(_AUTOGRAD)).then(pl.col("temporary_bytes")),
        pl.when(memory.recorded).then(pl.col("peak_bytes")),
    )
