"""Host lanes: a tree in, the innermost span open at each moment on each thread out.

A lane is what happens one after the other: here a thread. Its points are where something begins or
ends, where work is launched, and where it may have to wait; between two points the innermost open
span owns the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xsp.analyses.device.activity import Bools
from xsp.analyses.tree import Tree
from xsp.evaluation import Ints
from xsp.level import DEVICE_ACTIVITIES, Kind

_WAIT, _END, _OUT, _START = range(4)  # the order of points of one moment


@dataclass(frozen=True, slots=True)
class Marks:
    """Points of interest on threads, beside the beginnings and ends of spans.

    Attributes:
        lane: Lane of each mark.
        time: Its time in ns.
        waits: Whether the lane may have to wait there; otherwise something else waits for it.
    """

    lane: Ints
    time: Ints
    waits: Bools


@dataclass(frozen=True, slots=True)
class HostPoints:
    """Points of all threads, in their order on each.

    Attributes:
        lane: Lane of each point.
        time: Its time in ns.
        owner: Row of the span that owns the time since the point before, -1 for none.
        of_start: Position of the point where each span of the tree begins, -1 if it has none.
        of_end: Position of the point where it ends.
        of_mark: Position of the point of each mark.
    """

    lane: Ints
    time: Ints
    owner: Ints
    of_start: Ints
    of_end: Ints
    of_mark: Ints


@dataclass(frozen=True)
class Threads:
    """The threads of a trace.

    Attributes:
        start: Start of each span of the tree.
        end: Its end.
        lane: Its thread, from 0, which is the root's; -1 for what is not of the host.
        above: The innermost span around it on its own thread, -1 for none.
        parent: The span around it on any thread, -1 for the root.
    """

    start: Ints
    end: Ints
    lane: Ints
    above: Ints
    parent: Ints

    @classmethod
    def of(cls, tree: Tree) -> Threads:
        """Return the threads of a trace."""
        spans = tree.spans
        host = spans["device"].is_null().to_numpy() & ~tree.is_of(*DEVICE_ACTIVITIES, Kind.SYNC)
        host[0] = True
        lane = np.where(host, _numbered(spans["thread"].fill_null(-(1 << 62)).to_numpy()), -1)
        start, end = (spans[name].to_numpy() for name in ("start_ns", "end_ns"))
        return cls(start, end, lane, _above(tree.parent, lane), tree.parent)

    def points(self, marks: Marks | None = None) -> HostPoints:
        """Return the points of all threads, with those of some marks among them."""
        rows = np.flatnonzero((self.lane >= 0) & (self.end > self.start))
        rows = rows if len(rows) and rows[0] == 0 else np.insert(rows, 0, 0)
        none = np.empty(0, np.int64)
        marks = marks or Marks(none, none, none.astype(bool))
        count, of = len(rows), np.concatenate((rows, rows, np.full(len(marks.time), -1)))
        lane = np.concatenate((self.lane[rows], self.lane[rows], marks.lane))
        time = np.concatenate((self.start[rows], self.end[rows], marks.time))
        sort = np.repeat((_START, _END), count)
        sort = np.concatenate((sort, np.where(marks.waits, _WAIT, _OUT)))
        inner = np.where(sort == _END, -of, of)  # inner spans end first and begin last
        order = np.lexsort((inner, sort, time, lane))
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        after = np.where(sort == _START, of, np.where(sort == _END, self.above[of], -1))[order]
        of_start, of_end = np.full((2, len(self.lane)), -1)
        of_start[rows], of_end[rows] = position[:count], position[count : 2 * count]
        owner = _since(after, sort[order] == _START, sort[order] == _END, lane[order])
        return HostPoints(lane[order], time[order], owner, of_start, of_end, position[2 * count :])

    @cached_property
    def _unmarked(self) -> HostPoints:
        return self.points()

    def open_before(self, lane: Ints, time: Ints) -> tuple[Ints, Ints]:
        """Return the innermost span open on a thread just before a time, and since when it is.

        Since when it is the innermost, that is; -1 for none.
        """
        points, stride = self._unmarked, int(self.end.max()) + 2
        keys = points.lane * stride + points.time
        last = np.searchsorted(keys, lane * stride + time, "left") - 1
        following = np.minimum(last + 1, len(keys) - 1)
        inside = (last >= 0) & (points.lane[last] == lane) & (points.lane[following] == lane)
        return np.where(inside, points.owner[following], -1), points.time[last]


def _numbered(thread: NDArray[np.int64]) -> Ints:
    """Return numbers of threads from 0, which is the first one's."""
    _, number = np.unique(thread, return_inverse=True)
    return np.where(number == number[0], 0, number + (number < number[0]))


def _above(parent: Ints, lane: Ints) -> Ints:
    above = parent.copy()
    while True:
        other = np.flatnonzero((above >= 0) & (lane[above] != lane))
        if not len(other):
            return above
        above[other] = parent[above[other]]


def _since(after: Ints, start: Bools, end: Bools, lane: Ints) -> Ints:
    """Return who owns the time before each point: who does after the last start or end before."""
    index = np.maximum.accumulate(np.where(start | end, np.arange(len(after)), 0))
    owner = np.full(len(after), -1, np.int64)
    owner[1:] = np.where(lane[1:] == lane[:-1], after[index[:-1]], -1)
    return owner
