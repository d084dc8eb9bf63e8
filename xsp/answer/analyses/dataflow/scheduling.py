"""Finds the operators that waited although their inputs were there, and behind which others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.dataflow.graph import GraphRun, graph_runs
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "name": "Name of the operator.",
    "node": "Name of its node in the graph.",
    "count": "How often it ran.",
    "ready_ns": "When its inputs were there, from the start of the graph's run; of several "
    "times, the first.",
    "wait_ns": "How long it then waited to begin, in all.",
    "behind": "Node that its thread ran longest in that time, of the last hundred; null where the "
    "thread was idle for longer.",
}
_FARTHEST = 100  # operators before it on its thread that are looked at: time grows with these


@analysis(
    "Which operators waited although their inputs were there, and behind whom?",
    _COLUMNS,
    needs=(Need.INPUTS,),
)
def scheduling(trace: Trace) -> pl.DataFrame:
    """Return how long each operator waited for a thread, those that waited longest first.

    Args:
        trace: A trace of a graph whose operators' inputs are known.

    Raises:
        AnalysisError: The trace has no inputs of operators.
    """
    names = Tree.of(trace).spans["name"].to_list()
    rows = [
        (names[run.row[at]], run.node[at], ready, wait, None if other is None else run.node[other])
        for run in graph_runs(trace)
        for at, (ready, wait, other) in enumerate(waits(run))
    ]
    schema: dict[str, Any] = {"name": pl.String, "node": pl.String, "ready_ns": pl.Float64}
    schema |= {"wait_ns": pl.Float64, "behind": pl.String}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return (
        table.group_by("name", "node", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("ready_ns").min(),
            pl.col("wait_ns").sum(),
            pl.col("behind").get(pl.col("wait_ns").arg_max()),
        )
        .sort("wait_ns", descending=True, maintain_order=True)
        .select(*_COLUMNS)
    )


def waits(run: GraphRun) -> Iterator[tuple[float, float, int | None]]:
    """Yield when each operator was ready, how long it waited, and for which other one.

    The run is told anew with latencies without the profiler: operators keep their threads and
    their order. Time in which neither an input nor the thread was waited for stays as measured.
    """
    first = min(run.start_ns, default=0)
    ends: list[float] = []
    lanes: dict[int, _Lane] = {}
    for at, (latency, sources, thread) in enumerate(
        zip(run.latency_ns, run.inputs, run.thread, strict=True)
    ):
        lane = lanes.setdefault(thread, _Lane())
        before = run.end_ns[lane.operators[-1]] if lane.operators else first
        there = max((run.end_ns[source] for source in sources), default=first)
        idle = max(run.start_ns[at] - max(before, there), 0)
        ready = max((ends[source] for source in sources), default=0.0)
        begin = max(ready, lane.ends[-1] if lane.ends else 0.0) + idle
        yield ready, begin - ready, lane.behind(ready, begin)
        ends.append(begin + latency)
        lane.operators.append(at)
        lane.starts.append(begin)
        lane.ends.append(begin + latency)
        lane.lengths.append(latency)
        lane.busy.append(lane.busy[-1] + latency)


@dataclass(frozen=True, slots=True)
class _Lane:
    """What a thread ran, one after the other, and for how long it was busy by then."""

    operators: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=lambda: [0.0])

    def behind(self, ready: float, begin: float) -> int | None:
        """Return what the thread ran longest between two times; None where it was rather idle."""
        since = bisect_right(self.ends, ready)
        if since == len(self.ends):
            return None
        early = max(ready - self.starts[since], 0.0)
        idle = begin - ready - (self.busy[-1] - self.busy[since] - early)
        recent = max(since, len(self.ends) - _FARTHEST)
        lengths = self.lengths[recent:]
        lengths[0] -= early if recent == since else 0.0
        most = max(lengths)
        return self.operators[recent + lengths.index(most)] if most > idle else None
