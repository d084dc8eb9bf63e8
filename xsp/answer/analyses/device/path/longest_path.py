"""Finds the path that ends last through points that wait for each other.

Points lie in lanes, one after the other. A point is reached when the point before in its lane was
reached and the time of that way has passed, and not before the point of another lane that it waits
for was reached, and that delay has passed:

    reached[i] = max(reached[i - 1] + weight[i], reached[cross[i]] + delay[i])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xsp.answer.analyses.device.activity import Bools
from xsp.answer.analyses.tree import Floats
from xsp.matching import Ints


@dataclass(frozen=True, slots=True)
class Points:
    """Points in lanes, and what each waits for.

    Attributes:
        lane: Lane of each point; points are sorted by lane, and then in their order on it.
        is_host: Whether the lane is a thread; those of devices may wait for them in one pass.
        time: When the point was reached, in ns.
        weight: Time of the way from the point before in the lane, in ns.
        cross: Point of another lane that it waits for, -1 for none.
        delay: Time of the way from there, in ns.
    """

    lane: Ints
    is_host: Bools
    time: Ints
    weight: Ints
    cross: Ints
    delay: Ints

    @property
    def first(self) -> Bools:
        """Which points are the first of their lane."""
        return np.concatenate(([True], self.lane[1:] != self.lane[:-1]))


def in_order(points: Points) -> tuple[Points, Ints]:
    """Return the points without ways that lead back, and an order in which each follows its own.

    Times say the order; among points of one moment, what waits comes after what it waits for.
    """
    count = len(points.time)
    moment = np.cumsum(points.first | np.diff(points.time, prepend=points.time[0] - 1).astype(bool))
    level = np.zeros(count, np.int64)
    has = np.flatnonzero(points.cross >= 0)
    same = has[points.time[points.cross[has]] == points.time[has]]
    for _ in range(8):
        known = level.copy()
        level[same] = np.maximum(level[same], level[points.cross[same]] + 1)
        level = np.maximum.accumulate(level + moment * count) - moment * count
        if np.array_equal(level, known):
            break
    order = np.lexsort((np.arange(count), level, points.time))
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    back = (points.cross >= 0) & (rank[points.cross] >= rank)
    cross = np.where(back, -1, points.cross)
    return Points(
        points.lane, points.is_host, points.time, points.weight, cross, points.delay
    ), order


def condensed(points: Points) -> tuple[Points, Ints]:
    """Return the points that wait, are waited for or end a lane, and the next one for each point.

    The way to each of these has the weight of all ways since the one before it in its lane.
    """
    first = points.first
    keep = first | np.roll(first, -1) | (points.cross >= 0)
    keep[points.cross[points.cross >= 0]] = True
    kept = np.flatnonzero(keep)
    leads = np.searchsorted(kept, np.arange(len(first)))
    weight = np.bincount(leads, points.weight, len(kept)).astype(np.int64)
    cross = np.where(points.cross[kept] >= 0, leads[points.cross[kept]], -1)
    return Points(
        points.lane[kept], points.is_host[kept], points.time[kept], weight, cross,
        points.delay[kept],
    ), leads  # fmt: skip


def critical(points: Points, last: int) -> tuple[Bools, Ints]:
    """Return which ways from the point before, and which points' waits, are on the path to a point.

    Returns:
        For each point whether the path comes from the point before in its lane; and the points to
        which it comes from another lane.
    """
    first = points.first
    before = np.roll(points.time, 1) + points.weight
    waited = points.time[points.cross] + points.delay
    bound = (points.cross >= 0) & (first | (before < waited))
    turn = np.maximum.accumulate(np.where(bound | first, np.arange(len(first)), 0))
    edges = np.zeros(len(first) + 1, np.int64)
    crossed = []
    at = last
    while at >= 0:
        came = int(turn[at])
        edges[came + 1] += 1
        edges[at + 1] -= 1
        if not bound[came]:
            break
        crossed.append(came)
        at = int(points.cross[came])
    return np.cumsum(edges[:-1]) > 0, np.array(crossed, np.int64)


def reached(points: Points, order: Ints, weight: Floats, delay: Floats) -> Floats:
    """Return the time at which each point is reached, in several cases of weights and delays.

    Works through the points in pieces in which lanes wait only for earlier pieces, or devices for
    threads, so that each lane of a piece is one cumulative maximum.

    Args:
        points: n points without ways that lead back.
        order: An order of them, as `in_order` returns it.
        weight: Weights of n points in k cases.
        delay: Delays of n points in k cases.
    """
    found = np.full(weight.shape, -np.inf)
    began = np.where(points.first & (points.cross < 0), points.time.astype(np.float64), -np.inf)
    latest: dict[int, Floats] = {}
    for piece in _pieces(points, order):
        lanes = points.lane[piece]
        sorted_by_lane = piece[np.lexsort((piece, lanes, ~points.is_host[piece]))]
        for part in np.split(
            sorted_by_lane, np.flatnonzero(np.diff(points.lane[sorted_by_lane])) + 1
        ):
            lane = int(points.lane[part[0]])
            after = np.cumsum(weight[part], axis=0)
            limit = np.repeat(began[part][:, None], weight.shape[1], axis=1)
            waits = np.flatnonzero(points.cross[part] >= 0)
            across = found[points.cross[part[waits]]] + delay[part[waits]]
            limit[waits] = np.maximum(limit[waits], across)
            limit -= after
            if lane in latest:
                limit[0] = np.maximum(limit[0], latest[lane])
            found[part] = after + np.maximum.accumulate(limit, axis=0)
            latest[lane] = found[part[-1]]
    return found


def _pieces(points: Points, order: Ints) -> list[Ints]:
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    waits = points.cross >= 0
    simple = points.is_host[points.cross] & ~points.is_host
    hard = order[(waits & ~simple)[order]]
    cuts, since = [], 0
    for own, other in zip(rank[hard].tolist(), rank[points.cross[hard]].tolist(), strict=True):
        if other >= since:
            cuts.append(own)
            since = own
    return [piece for piece in np.split(order, cuts) if len(piece)]
