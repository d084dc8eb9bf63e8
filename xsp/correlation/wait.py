"""Finds which row of the host waited for what ran on a device; for `xsp.correlation.parent`.

In a serialised run the host waits for each kernel, so that the kernel's time lies inside of
what caused it. Only there does time say so, and only of kernels whose launch is not known. Has
not run on a GPU yet.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.correlation.interval import Integers, Placed, enclosing, sort_outside_in
from xsp.level import Kind


def waiting_rows(placed: Placed, executions: Integers) -> Integers:
    """Return the innermost row of the host that encloses each execution in time, or -1.

    It is on the evaluation's thread. Where another one has a layer, or something deeper,
    open around the execution, either may have waited: -1. Launches are passed over, for
    an execution lies in what its launch lies in.

    Args:
        placed: All rows.
        executions: Index of each of n executions.
    """
    if not len(executions):
        return executions
    question, lane = _questions(placed, executions)
    around = _around(placed, executions[question], lane)
    deep = (around >= 0) & (placed.order[around] > Kind.PIPELINE.order)
    own = lane == placed.lane[placed.root[executions[question]]]
    others = np.bincount(question[deep & ~own], minlength=len(executions))
    chosen = own & (others[question] == 0)
    found = np.full(len(executions), -1, np.int64)
    found[question[chosen]] = around[chosen]
    return found


def _hosts(placed: Placed) -> Integers:
    """Return the rows of the host that may have launched something."""
    on_host = placed.rows.select(pl.col("thread").is_not_null() | pl.col("device").is_null())
    return np.flatnonzero(on_host.to_series().to_numpy() & (placed.order < Kind.LAUNCH.order))


def _questions(placed: Placed, executions: Integers) -> tuple[Integers, Integers]:
    """Return numbers of executions, each with every lane of the host in its evaluation."""
    hosts = _hosts(placed)
    lanes = pl.DataFrame({"root": placed.root[hosts], "lane": placed.lane[hosts]}).unique()
    asking = pl.DataFrame({"root": placed.root[executions]}).with_row_index("question")
    pairs = asking.join(lanes, on="root")
    return pairs["question"].to_numpy().astype(np.int64), pairs["lane"].to_numpy()


def _around(placed: Placed, rows: Integers, lane: Integers) -> Integers:
    """Return the innermost row of the host around each row, as if that was on the lane."""
    hosts = _hosts(placed)
    index = np.append(hosts, rows)
    lanes = np.append(placed.lane[hosts], lane)
    start, end, order = placed.start[index], placed.end[index], placed.order[index]
    by_time = sort_outside_in(start, end, order)
    found = enclosing(lanes[by_time], start[by_time], end[by_time], order[by_time])
    parent = np.full(len(index), -1, np.int64)
    parent[by_time] = np.where(found < 0, -1, by_time[found])
    while np.any(asking := parent >= len(hosts)):  # executions that overlap
        parent = np.where(asking, parent[parent], parent)
    above = parent[len(hosts) :]
    return np.where(above < 0, -1, index[above])
