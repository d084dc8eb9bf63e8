"""Lists the layers whose memory is alive when most memory is held."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.memory.family import family_order, lowest_from, running_sum
from xsp.answer.analyses.memory.held import Held, held, summed
from xsp.answer.analyses.memory.owner import owners
from xsp.answer.analyses.tree import Tree
from xsp.matching import Ints
from xsp.trace import Trace

_COLUMNS = {
    "part": "The step or marked part of the trace that the layer was called in.",
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
    Where the recording has the address of each allocation, as torch.profiler's have, what is alive
    is known. Else which memory was freed is not; see `memory.held` for what is assumed.

    Args:
        trace: A trace whose operators record what they allocate.

    Raises:
        AnalysisError: The trace has no allocations.
    """
    tree = Tree.of(trace)
    alive_bytes = tree.attribute("alive_at_peak_bytes", pl.Int64).fill_null(0).to_numpy()
    if alive_bytes.any():
        row = np.arange(len(alive_bytes))
        peak_bytes, recorded = int(alive_bytes.sum()), True
        reaching = tree.attribute("reaches_peak", pl.Boolean).fill_null(value=False)
        at = int(reaching.arg_max() or 0)
    else:
        memory = held(tree)
        at = peak_index(memory)
        row, alive_bytes, recorded = memory.row, alive_at(memory, at), memory.recorded
        peak_bytes, at = int(memory.highest[at]), int(memory.row[at])
    keys = ("part", "phase", "layer", "type")
    alive = owners(tree, row).with_columns(pl.Series("alive_bytes", alive_bytes))
    largest = pl.col("operator").sort_by("alive_bytes", descending=True).first()
    return (
        alive.group_by(*keys, "operator", maintain_order=True)
        .agg(pl.sum("alive_bytes"))
        .group_by(keys, maintain_order=True)
        .agg(largest, pl.sum("alive_bytes"))
        .filter(pl.col("alive_bytes") > 0)
        .with_columns(
            share_pct=100 * pl.col("alive_bytes") / pl.sum("alive_bytes"),
            peak_bytes=pl.lit(peak_bytes, dtype=pl.Int64),
            at=pl.lit(tree.spans["path"][at]),
            recorded=pl.lit(recorded),
        )
        .sort("alive_bytes", descending=True, maintain_order=True)
        .select(*_COLUMNS)
    )


# Computes how much of each span's memory is alive at the peak of one span.

Bools = NDArray[np.bool_]


def peak_index(memory: Held) -> int:
    """Return the index of the innermost span in which most memory was held, the first of these."""
    leaf = np.flatnonzero(memory.is_leaf)
    return int(leaf[np.argmax(memory.highest[leaf])])


def alive_at(memory: Held, at: int) -> Ints:
    """Return how many bytes that each span itself allocated are alive at the peak of one of them.

    Of what the spans of one parent left behind, later ones free the latest, as a backward pass
    frees what the forward pass saved; and the parent frees the oldest, as a chain of layers does.

    Args:
        memory: The memory of a trace's spans.
        at: Index of a span in which no other lies.
    """
    running = _around(memory.parent, at)
    begun, gone = _begun(memory.parent, running), memory.own_freed.copy()
    for child in np.flatnonzero(running):
        if memory.parent[child] >= 0:
            gone[memory.parent[child]] = memory.released[child]
    left = _left(np.where(begun & ~running, memory.net, 0), memory.parent, gone)
    # What a span freed itself beyond what the spans in it had left was its own.
    rest = np.maximum(gone - summed(np.maximum(memory.net, 0) - left, memory.parent), 0)
    own = np.maximum(memory.own_allocated - np.where(running, 0, rest), 0)
    own[at] = memory.peak[at]
    part = _part_alive(memory, running, left, own)
    return np.rint(own * part).astype(np.int64)


def _around(parent: Ints, at: int) -> Bools:
    """Return which spans are one of them, or around it."""
    found = np.zeros(len(parent), dtype=np.bool_)
    while at >= 0:
        found[at] = True
        at = int(parent[at])
    return found


def _begun(parent: Ints, running: Bools) -> Bools:
    """Return which spans had begun, of the siblings of those that run."""
    order, begin = family_order(parent)
    place = np.flatnonzero(running[order])
    last = np.full(len(parent), len(parent))
    last[begin[place]] = place
    begun = np.empty(len(parent), dtype=np.bool_)
    begun[order] = np.arange(len(parent)) <= last[begin]
    return begun


def _left(net: Ints, parent: Ints, gone: Ints) -> Ints:
    """Compute how much of each span's net bytes later siblings and the parent leave allocated."""
    order, begin = family_order(parent)
    above, values = parent[order], net[order]
    level = running_sum(values, begin)
    kept = np.clip(lowest_from(level, begin) - level + values, 0, np.maximum(values, 0))
    older = running_sum(kept, begin) - np.where(above >= 0, gone[above], 0)
    left = np.empty_like(net)
    left[order] = np.clip(older, 0, kept)
    return left


def _part_alive(memory: Held, running: Bools, left: Ints, own: Ints) -> NDArray[np.float64]:
    """Return the part of each span's own bytes that is alive, from the outermost spans inwards."""
    inside = own + summed(left, memory.parent)
    part = np.ones(len(own))
    for rows in memory.levels:
        above = memory.parent[rows]
        around = np.where(above >= 0, part[above], 1.0)
        ratio = np.minimum(left[rows] / np.maximum(inside[rows], 1), 1.0)
        part[rows] = np.where(running[rows], 1.0, around * ratio)
    return part
