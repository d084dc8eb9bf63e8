"""Gives device activities to the launches that asked for them: forest and rows in, a forest out.

A device works when it gets to it: a kernel may start after its operator has ended, or in
the time of the next evaluation. So its launch decides, by correlation id, to which
evaluation and under which parent the kernel belongs; the host's rows have their places before.

    op "mm" 10-50 holds launch 20-22 (correlation id 3)
    kernel "gemm" 60-90 on stream 7 (correlation id 3) lies in "mm" as well
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.correlation.forest import Forest
from xsp.correlation.interval import Integers, begun
from xsp.evaluation import highest, nearest
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, ON_DEVICE, SpanRows

_ORDER = Kind.LAUNCH.order
_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_NODE = f"{ATTRIBUTE}graph_node"
_CAPTURED = f"{ATTRIBUTE}captured_node"
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Launches:
    """Host rows and the device activities that they launched.

    Attributes:
        forest: The host rows, and behind them the device activities. Start and end of a
            device activity are those of its launch here, so that activities stand behind
            their launches, in the order in which they were launched.
        outside: How many device activities were launched outside of every evaluation; they
            are left out.
        ambiguous: Launches that lie in two spans that overlap on one thread, and device
            activities that bear an id which launches in two places bear.
    """

    forest: Forest
    outside: int
    ambiguous: Integers


def part_launched(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return two parts: the device activities whose launch is among the rows come second.

    >>> from xsp.provider.row import span_rows
    >>> rows = span_rows({"kind": ["launch", "kernel", "kernel"], "name": ["go", "mm", "lost"],
    ...                   "start_ns": [1, 5, 7], "end_ns": [2, 6, 8], "thread": [1, None, None],
    ...                   "device": [None, 0, 0], "correlation_id": [3, 3, 4]})
    >>> [part["name"].to_list() for part in part_launched(rows)]
    [['go', 'lost'], ['mm']]
    """
    made = rows.filter(_LAUNCH)["correlation_id"].drop_nulls().to_numpy()
    asked = rows.select(ON_DEVICE & ~_LAUNCH & pl.col("correlation_id").is_not_null()).to_series()
    if not len(made) or not asked.any():
        return rows, rows.clear()
    ids = rows["correlation_id"].fill_null(0).to_numpy()
    launched = pl.Series(np.isin(ids, made)) & asked
    return rows.filter(~launched), rows.filter(launched)


def attach(forest: Forest, by_time: Integers, activities: SpanRows) -> Launches:
    """Return the host's rows with the device activities that they launched.

    A device activity's parent is the one that it states, if that is among the rows of its
    launch's evaluation; else that of its launch (the paper's rule), or for the node of a
    graph the launch itself.

    Args:
        forest: Host rows.
        by_time: Index of the row that encloses each of the first of them on its lane, or -1.
        activities: Rows of devices, with the ids of launches.
    """
    launches = _launches(forest)
    if not len(launches):
        return Launches(forest, activities.height, launches)
    ambiguous = _crossed(forest, by_time, launches[launches < len(by_time)])
    if not activities.height:
        return Launches(forest, 0, ambiguous)
    outermost, home = _homes(forest, launches)
    launch = _launch_of(forest, launches, activities)
    kept = np.flatnonzero(launch >= 0)
    is_node, node = _nodes(activities)
    start = activities["start_ns"].to_numpy()
    kept = kept[np.lexsort((start[kept], node[kept], launch[kept]))]
    rows, launch = activities[kept], launch[kept]
    shared = _shared(forest, launches, home[launches], launch)
    above = np.where(is_node[kept], outermost[launch], home[launch])
    stated = forest.stated_parents(rows, forest.root[launch])
    above = np.where((stated >= 0) & (forest.order[stated] <= _ORDER), stated, above)
    return Launches(
        forest.with_rows(rows, outermost[launch], parent=above),
        activities.height - len(kept),
        np.append(ambiguous, len(forest) + shared),
    )


def _launches(forest: Forest) -> Integers:
    """Return the launches that have an id."""
    known = forest.rows.select(_LAUNCH & pl.col("correlation_id").is_not_null()).to_series()
    return np.flatnonzero(known.to_numpy())


def _homes(forest: Forest, launches: Integers) -> tuple[Integers, Integers]:
    """Return for each launch the outermost launch of its id around it, and that one's parent.

    A call of the runtime makes one of the driver, with the same id. The parent is the nearest
    ancestor that is not a launch itself.
    """
    is_launch = np.zeros(len(forest), bool)
    is_launch[forest.rows.select(_LAUNCH).to_series().to_numpy()] = True
    ids = forest.rows["correlation_id"].fill_null(_NEVER).to_numpy()
    parent = forest.parent
    outermost, home = np.arange(len(forest)), parent.copy()
    asking = launches
    while len(asking):
        above = parent[outermost[asking]]
        same = (above >= 0) & is_launch[above] & (ids[above] == ids[asking])
        asking = asking[same]
        outermost[asking] = above[same]
    home[launches] = nearest(parent, parent[outermost[launches]], ~is_launch)
    return outermost, home


def _launch_of(forest: Forest, launches: Integers, activities: SpanRows) -> Integers:
    """Return the last launch with its id that began before each device activity, or -1.

    Clocks are converted: an activity that seems to have begun before its only launch has that.
    """
    ids = forest.rows["correlation_id"].gather(launches).to_numpy()
    start = forest.start[launches]
    moments = activities["correlation_id"].to_numpy(), activities["start_ns"].to_numpy()
    found = begun(ids, start, moments)
    found = np.where(found < 0, begun(ids, start, moments, strategy="forward"), found)
    return np.where(found < 0, -1, launches[found])


def _nodes(activities: SpanRows) -> tuple[Integers, Integers]:
    """Return which device activities are the node of a graph, and the node's number."""
    if _NODE not in activities.columns:
        return np.zeros(activities.height, bool), np.zeros(activities.height, np.int64)
    node = activities[_NODE]
    if _CAPTURED in activities.columns:  # the order in which they were captured
        node = pl.select(pl.coalesce(activities[_CAPTURED], node)).to_series()
    return node.is_not_null().to_numpy(), node.fill_null(0).to_numpy()


def _shared(forest: Forest, launches: Integers, home: Integers, launch: Integers) -> Integers:
    """Return device activities whose id is that of launches in several places of one evaluation."""
    ids = forest.rows["correlation_id"].gather(launches)
    if ids.n_unique() == len(launches):
        return launch[:0]
    known = pl.DataFrame({"id": ids, "root": forest.root[launches], "home": home})
    several = known.select(pl.col("home").n_unique().over("id", "root") > 1).to_series()
    return np.flatnonzero(np.isin(launch, launches[several.to_numpy()]))


def _crossed(forest: Forest, by_time: Integers, launches: Integers) -> Integers:
    """Return launches that lie in two spans of which neither encloses the other.

    Spans of one thread overlap so where coroutines take turns on it.
    """
    reach = _crossing_ends(forest, by_time)
    if not np.any(reach > _NEVER):
        return launches[:0]
    reach = highest(by_time, reach)
    around = by_time[launches]
    return launches[(around >= 0) & (reach[around] >= forest.end[launches])]


def _crossing_ends(forest: Forest, by_time: Integers) -> Integers:
    """Return up to where an elder sibling of its own kind overlaps each row, or never.

    Siblings of a kind do not enclose each other: who began later ends later.
    """
    count = len(by_time)
    reach = np.full(count, _NEVER)
    outer = np.flatnonzero(forest.order[:count] < _ORDER)
    place = np.where(by_time < 0, count + forest.lane[:count], by_time) * _ORDER
    group = (place + forest.order[:count])[outer]
    by_group = np.argsort(group, kind="stable")
    rows, group = outer[by_group], group[by_group]
    end = forest.end[rows[:-1]]
    crossing = (group[1:] == group[:-1]) & (end > forest.start[rows[1:]])
    reach[rows[1:][crossing]] = end[crossing]
    return reach
