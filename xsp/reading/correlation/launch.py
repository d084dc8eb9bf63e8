"""Attaches device activities to the forest of host rows by the launches of the activities.

A device works later than it is asked to: a kernel may start after its operator has ended, or in
the time of the next step. So the kernel's launch, found by correlation id, decides to which
step and under which parent the kernel belongs; host rows have their parents before.

    op "mm" 10-50 holds launch 20-22 (correlation id 3)
    kernel "gemm" 60-90 on stream 7 (correlation id 3) lies in "mm" as well
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import ON_DEVICE, highest, nearest
from xsp.provider import ATTRIBUTE, SpanRows
from xsp.reading.correlation.forest import Forest
from xsp.reading.correlation.interval import Integers, begun

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
        outside: How many device activities were launched outside of every step, and so
            are left out.
        ambiguous: Index of each launch that lies in two spans which overlap on one thread, and
            of each device activity whose correlation id launches in two places have.
    """

    forest: Forest
    outside: int
    ambiguous: Integers


def part_launched(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return the rows in two parts: the second holds device activities whose launch is a row too.

    >>> from xsp.provider import span_rows
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

    A device activity's parent is the row that it states, if that row is in the step of its
    launch; else the parent of its launch (the rule of the XSP paper), or for a node of a CUDA
    graph the launch itself.

    Args:
        forest: Host rows.
        by_time: Index of the row that encloses each recorded host row on its lane, or -1;
            the derived rows behind these have no entry.
        activities: Rows of devices, with the correlation ids of launches.
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
    known = forest.rows.select(_LAUNCH & pl.col("correlation_id").is_not_null()).to_series()
    return np.flatnonzero(known.to_numpy())


def _homes(forest: Forest, launches: Integers) -> tuple[Integers, Integers]:
    """Return for each launch the outermost launch of the same id around it, and that one's parent.

    A call of the CUDA runtime makes a call of the driver, with the same correlation id. The parent
    is the nearest ancestor that is not a launch.
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
    """Return the last launch with the same id that began before each device activity, or -1.

    Times of devices are converted between clocks: an activity that seems to have begun before all
    launches of its id gets the first.
    """
    ids = forest.rows["correlation_id"].gather(launches).to_numpy()
    start = forest.start[launches]
    moments = activities["correlation_id"].to_numpy(), activities["start_ns"].to_numpy()
    found = begun(ids, start, moments)
    found = np.where(found < 0, begun(ids, start, moments, strategy="forward"), found)
    return np.where(found < 0, -1, launches[found])


def _nodes(activities: SpanRows) -> tuple[Integers, Integers]:
    """Return which device activities are nodes of a CUDA graph, and the numbers of the nodes."""
    if _NODE not in activities.columns:
        return np.zeros(activities.height, bool), np.zeros(activities.height, np.int64)
    node = activities[_NODE]
    if _CAPTURED in activities.columns:  # numbered in the order of capture
        node = pl.select(pl.coalesce(activities[_CAPTURED], node)).to_series()
    return node.is_not_null().to_numpy(), node.fill_null(0).to_numpy()


def _shared(forest: Forest, launches: Integers, home: Integers, launch: Integers) -> Integers:
    """Return activities whose id several launches of one step, in different rows, have."""
    ids = forest.rows["correlation_id"].gather(launches)
    if ids.n_unique() == len(launches):
        return launch[:0]
    known = pl.DataFrame({"id": ids, "root": forest.root[launches], "home": home})
    several = known.select(pl.col("home").n_unique().over("id", "root") > 1).to_series()
    return np.flatnonzero(np.isin(launch, launches[several.to_numpy()]))


def _crossed(forest: Forest, by_time: Integers, launches: Integers) -> Integers:
    """Return launches that lie in two spans of which neither encloses the other.

    Spans of one thread overlap in this way where coroutines take turns on the thread.
    """
    reach = _crossing_ends(forest, by_time)
    if not np.any(reach > _NEVER):
        return launches[:0]
    reach = highest(by_time, reach)
    around = by_time[launches]
    return launches[(around >= 0) & (reach[around] >= forest.end[launches])]


def _crossing_ends(forest: Forest, by_time: Integers) -> Integers:
    """Return the end of the elder sibling of the same kind that overlaps each row, or `_NEVER`.

    Siblings of a kind do not enclose each other: the one that began later ends later.
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
