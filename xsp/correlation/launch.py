"""Gives what ran on a device to the launch that asked for it.

A device works when it gets to it: a kernel may start after its operator has ended, or in
the time of the next evaluation. So its launch decides, by correlation id, to which
evaluation and under which parent it belongs; for `xsp.correlation.parent`, after the host's rows
have their places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.correlation.interval import Integers, Placed
from xsp.evaluation import generations
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, SpanRows, concat_rows, orders

_ORDER = Kind.LAUNCH.order
_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_NODE = f"{ATTRIBUTE}graph_node"
_CAPTURED = f"{ATTRIBUTE}captured_node"
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Launched:
    """Host rows with what they launched behind them.

    Attributes:
        placed: The rows. For those of a device, start and end are those of their launch:
            they stand behind it, in the order in which they were launched.
        parent: Index of each row's parent, -1 for roots.
        outside: How many rows were launched outside of every evaluation; they are left out.
        contested: Launches that lie in two spans that overlap on one thread, and rows of
            devices that bear an id which launches in two places bear.
    """

    placed: Placed
    parent: Integers
    outside: int
    contested: Integers


def part_launched(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return all rows but those of devices whose launch is among them, and those.

    >>> from xsp.provider.row import span_rows
    >>> rows = span_rows({"kind": ["launch", "kernel", "kernel"], "name": ["go", "mm", "lost"],
    ...                   "start_ns": [1, 5, 7], "end_ns": [2, 6, 8], "thread": [1, None, None],
    ...                   "device": [None, 0, 0], "correlation_id": [3, 3, 4]})
    >>> [part["name"].to_list() for part in part_launched(rows)]
    [['go', 'lost'], ['mm']]
    """
    made = rows.filter(_LAUNCH)["correlation_id"].drop_nulls().to_numpy()
    on_device = pl.col("device").is_not_null() & pl.col("thread").is_null() & ~_LAUNCH
    asked = rows.select(on_device & pl.col("correlation_id").is_not_null()).to_series()
    if not len(made) or not asked.any():
        return rows, rows.clear()
    ids = rows["correlation_id"].fill_null(0).to_numpy()
    launched = pl.Series(np.isin(ids, made)) & asked
    return rows.filter(~launched), rows.filter(launched)


def attach(placed: Placed, parent: Integers, by_time: Integers, executions: SpanRows) -> Launched:
    """Return the host's rows with what they launched.

    An execution's parent is the one that it states, if that is among the rows of its
    launch's evaluation; else that of its launch (the paper's rule), or for the node of a
    graph the launch itself.

    Args:
        placed: Host rows, n of them.
        parent: Index of each one's parent, -1 for roots.
        by_time: Index of the row that encloses each of the first of them on its lane, or -1.
        executions: What ran on devices, with the ids of launches.
    """
    launches = _launches(placed)
    if not len(launches):
        return Launched(placed, parent, executions.height, launches)
    contested = _crossed(placed, by_time, launches[launches < len(by_time)])
    if not executions.height:
        return Launched(placed, parent, 0, contested)
    outermost, home = _homes(placed, parent, launches)
    launch = _launch_of(placed, launches, executions)
    kept = np.flatnonzero(launch >= 0)
    is_node, node = _nodes(executions)
    start = executions["start_ns"].to_numpy()
    kept = kept[np.lexsort((start[kept], node[kept], launch[kept]))]
    rows, launch = executions[kept], launch[kept]
    shared = _shared(placed, launches, home[launches], launch)
    contested = np.append(contested, len(placed) + shared)
    above = np.where(is_node[kept], outermost[launch], home[launch])
    widened = _append(placed, rows, outermost[launch])
    stated = _stated(placed, rows, placed.root[launch])
    above = np.where(stated >= 0, stated, above)
    return Launched(widened, np.append(parent, above), executions.height - len(kept), contested)


def _launches(placed: Placed) -> Integers:
    """Return the launches that have an id."""
    known = placed.rows.select(_LAUNCH & pl.col("correlation_id").is_not_null()).to_series()
    return np.flatnonzero(known.to_numpy())


def _homes(placed: Placed, parent: Integers, launches: Integers) -> tuple[Integers, Integers]:
    """Return for each launch the outermost of its id around it, and what that one lies in.

    A call of the runtime makes one of the driver, with the same id. What a launch lies
    in is never another launch.
    """
    is_launch = np.zeros(len(placed), bool)
    is_launch[placed.rows.select(_LAUNCH).to_series().to_numpy()] = True
    ids = placed.rows["correlation_id"].fill_null(_NEVER).to_numpy()
    outermost, home = np.arange(len(placed)), parent.copy()
    asking = launches
    while len(asking):
        above = parent[outermost[asking]]
        same = (above >= 0) & is_launch[above] & (ids[above] == ids[asking])
        asking = asking[same]
        outermost[asking] = above[same]
    home[launches] = parent[outermost[launches]]
    asking = launches
    while len(asking := asking[is_launch[home[asking]]]):
        home[asking] = parent[home[asking]]
    return outermost, home


def _launch_of(placed: Placed, launches: Integers, executions: SpanRows) -> Integers:
    """Return the last launch with its id that began before each execution, or -1.

    Clocks are converted: one that seems to have begun before its only launch has that.
    """
    ids = np.append(
        placed.rows["correlation_id"].gather(launches).to_numpy(),
        executions["correlation_id"].to_numpy(),
    )
    start = np.append(placed.start[launches], executions["start_ns"].to_numpy())
    asking = np.arange(len(ids)) >= len(launches)
    order = np.lexsort((asking, start, ids))
    ids, asking, place = ids[order], asking[order], np.arange(len(order))
    before = np.maximum.accumulate(np.where(asking, -1, place))
    after = np.minimum.accumulate(np.where(asking, len(place), place)[::-1])[::-1]
    after = np.where(after < len(place), after, -1)
    at = np.where((before >= 0) & (ids[before] == ids), before, after)
    found = np.where((at >= 0) & (ids[at] == ids), launches[order[at] % len(launches)], -1)
    result = np.empty_like(found)
    result[order] = found
    return result[len(launches) :]


def _nodes(executions: SpanRows) -> tuple[Integers, Integers]:
    """Return which executions are the node of a graph, and its number."""
    if _NODE not in executions.columns:
        return np.zeros(executions.height, bool), np.zeros(executions.height, np.int64)
    node = executions[_NODE]
    if _CAPTURED in executions.columns:  # the order in which they were captured
        node = pl.select(pl.coalesce(executions[_CAPTURED], node)).to_series()
    return node.is_not_null().to_numpy(), node.fill_null(0).to_numpy()


def _stated(placed: Placed, rows: SpanRows, root: Integers) -> Integers:
    """Return the parent that each execution states, -1 where it is none or not there."""
    if rows["parent_id"].null_count() == rows.height:
        return np.full(rows.height, -1, np.int64)
    owners = placed.rows.select("id", root=placed.root, owner=np.arange(len(placed))).filter(
        pl.col("id").is_not_null() & pl.Series(placed.order <= _ORDER)
    )
    asking = rows.select("parent_id", root=root).join(
        owners.unique(["root", "id"], keep="first"),
        left_on=["root", "parent_id"],
        right_on=["root", "id"],
        how="left",
        maintain_order="left",
    )
    to_root = pl.when(pl.col("parent_id") == 0).then("root").otherwise("owner")
    return asking.select(to_root.fill_null(-1)).to_series().to_numpy()


def _append(placed: Placed, rows: SpanRows, launch: Integers) -> Placed:
    return Placed(
        rows=concat_rows([placed.rows, rows]),
        root=np.append(placed.root, placed.root[launch]),
        lane=np.append(placed.lane, placed.lane[launch]),
        start=np.append(placed.start, placed.start[launch]),
        end=np.append(placed.end, placed.end[launch]),
        order=np.append(placed.order, orders(rows)),
    )


def _shared(placed: Placed, launches: Integers, home: Integers, launch: Integers) -> Integers:
    """Return executions whose id is that of launches in several places of one evaluation."""
    ids = placed.rows["correlation_id"].gather(launches)
    if ids.n_unique() == len(launches):
        return launch[:0]
    known = pl.DataFrame({"id": ids, "root": placed.root[launches], "home": home})
    several = known.select(pl.col("home").n_unique().over("id", "root") > 1).to_series()
    return np.flatnonzero(np.isin(launch, launches[several.to_numpy()]))


def _crossed(placed: Placed, by_time: Integers, launches: Integers) -> Integers:
    """Return launches that lie in two spans of which neither encloses the other.

    Spans of one thread overlap so where coroutines take turns on it.
    """
    reach = _crossing_ends(placed, by_time)
    if not np.any(reach > _NEVER):
        return launches[:0]
    for rows in list(generations(by_time))[1:]:
        reach[rows] = np.maximum(reach[rows], reach[by_time[rows]])
    around = by_time[launches]
    return launches[(around >= 0) & (reach[around] >= placed.end[launches])]


def _crossing_ends(placed: Placed, by_time: Integers) -> Integers:
    """Return up to where an elder sibling of its own kind overlaps each row, or never.

    Siblings of a kind do not enclose each other: who began later ends later.
    """
    count = len(by_time)
    reach = np.full(count, _NEVER)
    outer = np.flatnonzero(placed.order[:count] < _ORDER)
    place = np.where(by_time < 0, count + placed.lane[:count], by_time) * _ORDER
    group = (place + placed.order[:count])[outer]
    by_group = np.argsort(group, kind="stable")
    rows, group = outer[by_group], group[by_group]
    end = placed.end[rows[:-1]]
    crossing = (group[1:] == group[:-1]) & (end > placed.start[rows[1:]])
    reach[rows[1:][crossing]] = end[crossing]
    return reach
