"""Measures the collectives of ranks that communicate without a device.

The libraries (gloo, MPI) communicate on threads of their own, while operators compute on others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.device.activity import Bools, processes_of
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import Kind
from xsp.matching import Ints, covered
from xsp.trace import Trace

_CALLS_OF_COLLECTIVES = "^c10d::"  # operators that only hand a collective over
# What the arrivals of a rank at collectives say, as the analysis `rank-imbalance` names it.
_ARRIVALS: dict[str, Any] = {
    **dict.fromkeys(("collectives", "last", "late_max_ns", "made_wait_ns"), pl.Int64),
    **dict.fromkeys(("late_median_ns", "ends_apart_ns"), pl.Float64),
}


def of_host(tree: Tree) -> pl.DataFrame:
    """Return the collectives that hosts carry out, a row per span.

    Columns `row` (in the tree), `process`, `rank`, `collective`, `group`, `group_size`, `calls`,
    `time_ns`, `wait_ns` (null where not known), `in_elements`, `out_elements`, `element_type`.
    """
    texts = ("collective", "collective_group", "element_type")
    numbers = ("group_size", "in_elements", "out_elements", "calls")
    known = [tree.attribute(name) for name in texts]
    known += [tree.attribute(name, pl.Int64) for name in numbers]
    table = tree.spans.select("kind", time_ns="latency_ns").hstack(known)
    table = table.with_columns(tree.attribute("wait_ns", pl.Float64).alias("wait_ns"))
    table = table.hstack(processes_of(tree)).with_row_index("row")
    is_one = (pl.col("kind") == Kind.OP.value) & pl.col("collective").is_not_null()
    return table.filter(is_one).with_columns(
        pl.col("calls").fill_null(1), group=pl.col("collective_group")
    )


def communicating(tree: Tree) -> Bools:
    """Return which spans are collectives that hosts carry out, or hand them over."""
    known = tree.attribute("collective").is_not_null()
    found = known | tree.spans["name"].str.contains(_CALLS_OF_COLLECTIVES)
    return tree.is_of(Kind.OP) & found.to_numpy()


def while_communicating(tree: Tree, rows: Ints, start: Ints, end: Ints) -> Floats:
    """Return for how long of some times of some rows a collective of their process ran."""
    of = processes_of(tree)["process"].fill_null(-1).to_numpy()
    ones = of_host(tree)["row"].cast(pl.Int64).to_numpy()
    found = np.zeros(len(rows))
    for process in np.unique(of[ones]):
        drawn = tree.spans[ones[of[ones] == process]].sort("start_ns")
        until = np.maximum.accumulate(drawn["end_ns"].to_numpy())
        since = np.maximum(drawn["start_ns"].to_numpy(), np.append(0, until[:-1]))
        edges = np.column_stack((since, until)).ravel()
        sums = np.cumsum(np.diff(edges, prepend=edges[0]) * (np.arange(len(edges)) % 2))
        own = of[rows] == process
        found[own] = np.interp(end[own], edges, sums) - np.interp(start[own], edges, sums)
    return found


def shares(tree: Tree, rows: Ints, number: Ints, process: Ints) -> tuple[Floats, Floats]:
    """Return shares of the time of collectives, as drawn, by their number.

    Args:
        tree: The tree.
        rows: The collectives' rows in the tree.
        number: The number of each, from 0.
        process: The process of each.

    Returns:
        Which part of the sum of their times at least one ran, as several may at once, and in which
        part of that operators computed.
    """
    count = int(number.max(initial=-1)) + 1
    operators = _computing(tree)
    of = processes_of(tree)["process"].to_numpy()
    pairs = [
        (operators[of[operators] == process[number == each][0]], each) for each in range(count)
    ]
    computing = np.concatenate([members for members, _ in pairs] or [rows])
    numbers = np.concatenate([np.full(len(m), each) for m, each in pairs] or [number])
    both = np.concatenate([rows, computing]), np.concatenate([number, numbers])
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))

    def lasting(members: Ints, groups: Ints) -> Floats:
        return covered(groups, start[members], end[members], count)

    own = lasting(rows, number)
    overlap = own + lasting(computing, numbers) - lasting(*both)
    summed = np.bincount(number, weights=(end - start)[rows], minlength=count)
    once = np.where(summed > 0, own / np.maximum(summed, 1.0), 1.0)
    return once, overlap / np.maximum(own, 1.0)


def imbalance(trace: Trace, tree: Tree) -> pl.DataFrame:
    """Return the table of the analysis `rank-imbalance` for ranks without devices."""
    of_ranks = of_host(tree)
    told_of_waits = pl.col("wait_ns").is_not_null().any()
    ranks = of_ranks.group_by("process", "rank").agg(waiting_ns=told_of_waits).sort("process")
    communicating, computing = of_ranks["row"].cast(pl.Int64).to_numpy(), _computing(tree)
    start, end = (tree.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    waits_ns = tree.attribute("wait_ns", pl.Float64).fill_null(0.0).to_numpy()
    working = {
        "busy_ns": (np.concatenate([communicating, computing]), end),
        "computing_ns": (computing, end),
        "communicating_ns": (communicating, end),
        "waiting_ns": (communicating, np.minimum(start + waits_ns, end)),
    }
    processes = ranks["process"].to_numpy()
    times = {
        name: pl.Series(_lasting(tree, processes, rows, (start, until)))
        for name, (rows, until) in working.items()
    }
    times["waiting_ns"] = times["waiting_ns"].set(~ranks["waiting_ns"], None)
    # Only traces of ranks that were profiled together tell who arrived when.
    told = [dict(each) for each in trace.metadata.get("ranks", ())]
    arrivals = pl.from_dicts(told, schema={"rank": pl.Int64, **_ARRIVALS}, strict=False)
    return (
        ranks.with_columns(**times, device=pl.lit(None, dtype=pl.Int64))
        .join(arrivals, on="rank", how="left", maintain_order="left")
        .with_columns(pl.col("collectives").fill_null(0))
    )


def _lasting(tree: Tree, processes: Ints, rows: Ints, times: tuple[Ints, Ints]) -> Floats:
    """Return how long at least one of some rows ran in each of some processes, as drawn.

    `times` are start and end of every row of the tree.
    """
    of = processes_of(tree)["process"].to_numpy()[rows]
    chosen = np.isin(of, processes)
    start, end = (time[rows[chosen]] for time in times)
    return covered(np.searchsorted(processes, of[chosen]), start, end, len(processes))


def _computing(tree: Tree) -> Ints:
    """Return the rows of the operators and calls that hold no layer and no collective."""
    others = communicating(tree) | tree.is_of(Kind.LAYER, Kind.REGION)
    above = tree.parent[others]
    while len(above := np.unique(above[above >= 0])):
        others[above] = True
        above = tree.parent[above]
    return np.flatnonzero(tree.is_of(Kind.OP, Kind.CALL) & ~others)
