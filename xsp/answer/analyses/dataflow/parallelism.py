"""Compares the latency of graphs with what other numbers of threads could reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.dataflow.graph import graph_runs
from xsp.answer.analyses.dataflow.schedule import ListScheduling, longest_path
from xsp.answer.analyses.tree import Tree
from xsp.text import counted, duration, percent
from xsp.trace import Trace

_COLUMNS = {
    "threads": "How many operators run at once; null for as many as want to.",
    "latency_ns": "What list scheduling reaches: of one thread the work, of any number the "
    "longest path by data.",
    "speedup": "How many times as quick as one thread that is.",
    "busy_pct": "Share of the threads' time in which they run operators.",
    "used": "Whether it is the number of threads that ran the operators.",
    "measured_ns": "What was measured, with what lies around the operators; on that row only.",
    "problem": "Why the two differ by more than a tenth; on that row only.",
}
_TENTH = 0.1  # of the measured latency, by which a forecast may miss
_CLOSE = 1.01  # times the longest path: more threads are not worth a row
_MOST = 16  # threads that a row is for


@dataclass(frozen=True, slots=True)
class Reach:
    """The latency that list scheduling gives for each number of threads.

    Attributes:
        latency_ns: By the number of threads, in rising order.
        path_ns: The longest path by data, which none goes below.
        used: How many threads ran the operators.
        measured_ns: Latency of the spans that the graphs' runs lie in; NaN where not known.
    """

    latency_ns: dict[int, float]
    path_ns: float
    used: int
    measured_ns: float


@analysis("What could more threads for operators reach?", _COLUMNS, needs=(Need.INPUTS,))
def parallelism(trace: Trace) -> pl.DataFrame:
    """Return the latency that 1, 2, 4, … threads could reach, operators as quick as they were.

    Runs of several graphs are taken to follow each other.

    Args:
        trace: A trace of a graph whose operators' inputs are known.

    Raises:
        AnalysisError: The trace has no inputs of operators.
    """
    reach = reach_of(trace)
    work = reach.latency_ns[1]
    times: list[tuple[int | None, float]] = [*reach.latency_ns.items(), (None, reach.path_ns)]
    rows = [
        {
            "threads": threads,
            "latency_ns": time,
            "speedup": work / time if time else None,
            "busy_pct": 100 * work / (threads * time) if threads and time else None,
            "used": threads == reach.used,
            "measured_ns": reach.measured_ns if threads == reach.used else None,
            "problem": _problem(reach) if threads == reach.used else None,
        }
        for threads, time in times
    ]
    schema: dict[str, Any] = dict.fromkeys(_COLUMNS, pl.Float64)
    schema |= {"threads": pl.Int64, "used": pl.Boolean, "problem": pl.String}
    return pl.DataFrame(rows, schema=schema)


def reach_of(trace: Trace) -> Reach:
    """Schedule the operators of a trace on each number of threads, and return the latencies."""
    return Tree.of(trace).once("reach of threads", lambda: _reach(trace))


def _reach(trace: Trace) -> Reach:
    runs = graph_runs(trace)
    path = sum(longest_path(run.latency_ns, run.inputs) for run in runs)
    used = max((len(set(run.thread)) for run in runs), default=1)
    lists = [ListScheduling(run.latency_ns, run.inputs) for run in runs]
    found = {1: float(sum(sum(run.latency_ns) for run in runs))}
    threads = 1
    while found[threads] > _CLOSE * path and threads < _MOST:
        threads *= 2
        found[threads] = sum(each.makespan_ns(threads) for each in lists)
    if used not in found:
        found[used] = sum(each.makespan_ns(used) for each in lists)
    around = np.array(sorted({run.around for run in runs}))
    measured = float(Tree.of(trace).latency_ns()[around].sum())
    return Reach(dict(sorted(found.items())), path, used, measured)


def _problem(reach: Reach) -> str | None:
    forecast, measured = reach.latency_ns[reach.used], reach.measured_ns
    missing = measured - forecast
    if not abs(missing) > _TENTH * measured:
        return None
    threads = counted(reach.used, "thread")
    if missing < 0:
        return (
            f"{threads} should take {duration(forecast)}, which is more than measured: operators "
            "wait inside, or ran on more threads. Trust the ratios alone."
        )
    return (
        f"{duration(missing)}, {percent(missing / measured)}, of what was measured is not "
        f"explained by operators on {threads}: more threads do not shorten that."
    )
