"""Finds graphs whose operators more threads, or fewer, would run sooner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from xsp.answer.analyses.advice.finding import Case, Finding
from xsp.answer.analyses.contract import Need
from xsp.answer.analyses.dataflow.graph import graph_runs
from xsp.answer.analyses.dataflow.parallelism import Reach, reach_of
from xsp.answer.analyses.dataflow.scheduling import waits
from xsp.level import Kind
from xsp.text import counted, duration

# ONNX Runtime 1.32 runs all nodes of a stream on one thread, and those of a device are one stream
# if no file says otherwise. The calling thread counts as one of the pool, and runs none.
_STREAMS = "a stream for each branch in the file session.node_partition_config_file"
# How each framework is told to run one operator at once, and several.
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "onnxruntime": (
        "execution_mode = ORT_SEQUENTIAL",
        f"execution_mode = ORT_PARALLEL, inter_op_num_threads = {{pool}}, and {_STREAMS}",
    ),
    "tensorflow": ("inter_op_parallelism_threads = 1", "inter_op_parallelism_threads = {threads}"),
}


def operators_at_once(case: Case) -> Iterator[Finding]:
    """Find graphs that list scheduling on another number of threads would run sooner."""
    if Need.INPUTS.unmet(case.trace) is not None:
        return
    frameworks = case.tree.attribute("framework").filter(pl.Series(case.is_of(Kind.OP)))
    settings = [_SETTINGS[name] for name in frameworks.drop_nulls().unique() if name in _SETTINGS]
    reach = reach_of(case.trace)
    chosen = _chosen(case, reach)
    if len(settings) != 1 or chosen is None:
        return
    threads, gain = chosen
    setting = settings[0][threads > 1]
    fewer = threads < reach.used
    yield Finding(
        "operators at once",
        f"Run {'fewer' if fewer else 'more'} operators at once: "
        f"{setting.format(threads=threads, pool=threads + 1)}.",
        f"operators ran on {counted(reach.used, 'thread')}; list scheduling needs "
        f"{duration(reach.latency_ns[reach.used])} on that many, and "
        f"{duration(reach.latency_ns[threads])} on {threads}; "
        f"the longest path by data takes {duration(reach.path_ns)}",
        gain,
        case.latency(np.zeros(1, np.int64))[1],
        "at most: as if operators took no longer than now"
        + ("" if fewer else ", and nothing else used the cores"),
        "xsp analyze FILE parallelism, then the same with that setting",
    )


def _chosen(case: Case, reach: Reach) -> tuple[int, float] | None:
    """Return the number of threads that gains most, and the gain; None where none gains.

    No more operators run at once than there are cores for the threads of each. One thread, which
    needs no pool, gains where operators and the executor's time between them take longer than the
    work: list scheduling alone never says so.
    """
    environment = case.trace.metadata.get("environment") or {}
    cores = environment.get("usable_cores") or 1
    of_tensorflow = (environment.get("frameworks") or {}).get("tensorflow") or {}
    of_nodes = case.tree.attribute("threads", pl.Int64).filter(pl.Series(case.is_of(Kind.OP)))
    each = max(of_nodes.drop_nulls().to_list(), default=0) or of_tensorflow.get("threads") or cores
    now = reach.latency_ns[reach.used]
    gains = {
        threads: now - time
        for threads, time in reach.latency_ns.items()
        if reach.used < threads <= cores / each
        and threads > of_tensorflow.get("operators_at_once", 0)
    }
    if reach.used > 1:
        took = 0.0
        for run in graph_runs(case.trace):
            told = zip(waits(run), run.latency_ns, strict=True)
            took += max(ready + wait + own for (ready, wait, _), own in told)
        gains[1] = min(took, reach.measured_ns) - reach.latency_ns[1]
    best = max(gains, key=gains.__getitem__, default=None)
    return None if best is None else (best, gains[best])
