"""Finds the host row that waited for each device activity without a known launch.

In a synchronous run the host waits for each kernel, so that the kernel's time lies inside of the
row that caused it. The rule is for synchronous runs alone, and for device activities whose launch
is not known.

    thread 1:  op "mm" 10-50      stream 7: kernel "gemm" 20-45, without a launch
               "gemm" lies in "mm"
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import nearest, on_device
from xsp.reading.correlation.forest import Forest
from xsp.reading.correlation.interval import Integers, enclosing


def waiting_rows(forest: Forest, activities: Integers) -> Integers:
    """Return the innermost row of the host that encloses each device activity in time, or -1.

    The host row is on the step's thread. Where another thread has a layer, or a row of a
    deeper kind, open around the activity, either thread may have waited: -1.

    Args:
        forest: All rows.
        activities: Indices of n device activities.
    """
    if not len(activities):
        return activities
    # Launches are left out: an activity lies in the row that its launch lies in.
    hosts = np.flatnonzero(~on_device(forest.rows) & (forest.order < Kind.LAUNCH.order))
    # Each activity asks on every lane of the host in its step.
    lanes = pl.DataFrame({"root": forest.root[hosts], "lane": forest.lane[hosts]}).unique()
    asking = pl.DataFrame({"root": forest.root[activities]}).with_row_index("question")
    pairs = asking.join(lanes, on="root")
    question, lane = pairs["question"].to_numpy().astype(np.int64), pairs["lane"].to_numpy()
    index = np.append(hosts, activities[question])
    on = np.append(forest.lane[hosts], lane)
    held = enclosing(on, forest.start[index], forest.end[index], forest.order[index])
    # Device activities that overlap enclose each other.
    is_host = np.arange(len(index)) < len(hosts)
    inner = nearest(held, held[len(hosts) :], is_host)
    around = np.where(inner < 0, -1, index[inner])
    deep = (around >= 0) & (forest.order[around] > Kind.REGION.order)
    own = lane == forest.lane[forest.root[activities[question]]]
    others = np.bincount(question[deep & ~own], minlength=len(activities))
    chosen = own & (others[question] == 0)
    found = np.full(len(activities), -1, np.int64)
    found[question[chosen]] = around[chosen]
    return found
