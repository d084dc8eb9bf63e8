"""Tells of each step, region, layer and operator how long its thread ran and waited, and why."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

WATCHED = (Kind.REGION, Kind.LAYER, Kind.OP)
_COLUMNS = {
    "kind": "Kind of span.",
    "name": "Name of the span.",
    "path": "Path of the span in the trace.",
    "latency_ns": "Latency, of all occurrences that the span stands for.",
    "running_ns": "Part of that in which the thread of the span was on a CPU.",
    "runnable_ns": "Part in which the thread could have run, and waited for a CPU.",
    "blocked_ns": "Part in which the thread waited for something else.",
    "own_off_ns": "Time off the CPU less that of the spans inside: these sum to the root's.",
    "off_pct": "Time off the CPU as a share of the latency.",
    "blocked_in": "System call in which the thread was blocked longest; null: not known.",
    "woken_by": "Thread, process or interrupt that woke it most often; null: not known.",
    "preempted": "How often the thread had to give way to another one.",
    "migrations": "How often it went on on another CPU.",
}


@analysis("Where did threads wait instead of running, and for what?", _COLUMNS,
          needs=(Need.STATES,))  # fmt: skip
def off_cpu(trace: Trace) -> pl.DataFrame:
    """Return the states of spans' threads, those first in whose own time most was waiting.

    Args:
        trace: A trace with the system level.

    Raises:
        AnalysisError: The trace has no states of threads.
    """
    tree = Tree.of(trace)
    states = {name: of_all(tree, name) for name in ("running_ns", "runnable_ns", "blocked_ns")}
    off_ns = states["runnable_ns"] + states["blocked_ns"]
    known = ~np.isnan(off_ns)
    counts = {name: of_all(tree, name) for name in ("preempted", "migrations")}
    table = tree.spans.select("kind", "name", "path", "latency_ns").with_columns(
        *(pl.Series(name, values) for name, values in (states | counts).items()),
        pl.Series("own_off_ns", tree.own(off_ns, known)),
        (100 * pl.Series("off_pct", off_ns) / pl.Series(tree.latency_ns())),
        tree.attribute("blocked_in"),
        tree.attribute("woken_by"),
    )
    table = table.filter(pl.Series(known))
    return table.sort("own_off_ns", descending=True, maintain_order=True).select(*_COLUMNS)


def of_all(tree: Tree, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return an attribute, told of one occurrence, of all that each span stands for; NaN: unknown.

    Args:
        tree: The tree of a trace.
        name: Name of the attribute.
    """
    calls = tree.attribute("calls", pl.Int64).fill_null(1)
    values = (tree.attribute(name, pl.Float64) * calls).fill_null(float("nan"))
    return values.to_numpy()
