"""Places the activities of devices on the host's timeline.

The host's part is rebuilt first (`host_timeline`), shorter by the overhead. A device activity is
moved along with its launch, and waits for the activity ahead in its stream.

    measured   launch 30-32    kernel 34-43       4 after its launch began
    drawn      launch 10-12    kernel 14-23       4 after its launch begins
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.matching import generations
from xsp.reading.merge.host_timeline import Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Activities:
    """Device activities: kernels, copies, sets and synchronizations; n entries each.

    Attributes:
        rows: Row of each activity.
        cause: Row of the host's span that the activity follows: its launch, or its parent
            where the launch is not known.
        launched: Whether the cause is a launch.
        stream: Number of the stream in which the activity queues; -1: it does not queue.
        length_ns: Length with which the activity is drawn.
    """

    rows: Ints
    cause: Ints
    launched: Bools
    stream: Ints
    length_ns: Ints


def place_activities(host: Timeline, done: Activities, *, start_ns: Ints, end_ns: Ints) -> Timeline:
    """Return the timeline with the activities of devices in it.

    An activity begins as long after its launch as was measured, but not before the activity
    ahead in its stream has ended. Where the two overlapped when they were measured, the second
    begins as long after the start of the first as was measured. An activity may outlast its
    parent. An activity without a launch keeps its place in its parent, in proportion.

    Args:
        host: The timeline, right for rows of the host.
        done: The device activities.
        start_ns: Measured start of every row.
        end_ns: Measured end of every row.

    >>> host = Timeline(np.array([0, 10, 0, 0]), np.array([20, 12, 0, 0]), np.full(4, np.nan))
    >>> done = Activities(np.array([2, 3]), np.array([1, 1]), np.array([True, True]),
    ...                   np.array([0, 0]), np.array([9, 5]))
    >>> line = place_activities(host, done, start_ns=np.array([0, 30, 34, 45]),
    ...                         end_ns=np.array([60, 32, 43, 50]))
    >>> line.start_ns[2:], line.end_ns[2:]
    (array([14, 25]), array([23, 30]))
    """
    # When each activity would begin if its stream were empty.
    cause = done.cause
    after = np.maximum(start_ns[done.rows] - start_ns[cause], 0)
    measured = np.maximum((end_ns - start_ns)[cause], 1)
    shrunk = np.minimum((host.end_ns - host.start_ns)[cause] / measured, 1.0)
    after = np.where(done.launched, after, np.rint(after * shrunk)).astype(np.int64)
    wanted = host.start_ns[cause] + after
    begin = _queued(wanted, done, start_ns[done.rows], end_ns[done.rows])
    start, end = host.start_ns.copy(), host.end_ns.copy()
    start[done.rows], end[done.rows] = begin, begin + done.length_ns
    return Timeline(start, end, host.scaled_ns)


def around_activities(line: Timeline, parent: Ints, derived: Bools) -> Timeline:
    """Return the timeline with each derived span on a device drawn around the activities in it.

    Args:
        line: The timeline, right for rows that are not derived.
        parent: Row of each row's parent, -1 for the root; parents before children.
        derived: Which rows are on a device and were made of the rows inside.

    >>> line = Timeline(np.array([0, 0, 4, 8]), np.array([9, 0, 6, 9]), np.full(4, np.nan))
    >>> drawn = around_activities(
    ...     line, np.array([-1, 0, 1, 1]), np.array([False, True, False, False]))
    >>> int(drawn.start_ns[1]), int(drawn.end_ns[1])
    (4, 9)
    """
    if not derived.any():
        return line
    start, end = line.start_ns.copy(), line.end_ns.copy()
    holds = np.zeros(len(parent), np.bool_)
    holds[parent[1:]] = True
    start[derived & holds], end[derived & holds] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for rows in reversed(list(generations(parent))[1:]):
        inside = rows[derived[parent[rows]]]
        np.minimum.at(start, parent[inside], start[inside])
        np.maximum.at(end, parent[inside], end[inside])
    return Timeline(start, end, line.scaled_ns)


def _queued(wanted: Ints, done: Activities, start: Ints, end: Ints) -> Ints:
    """Return when each activity begins, its stream being a queue.

    An activity begins at its wanted time or, if that is later, `apart` after the activity ahead
    began. So it begins at the latest of the wanted times of all activities up to itself in the
    queue, each plus the sum of `apart` between the two: a running maximum.

        wanted   0   2   9         each begins at    0   5   10
        apart        5   5
    """
    order = np.lexsort((done.rows, end, start, done.stream))
    stream, began = done.stream[order], start[order]
    apart = np.minimum(done.length_ns[order][:-1], np.diff(began))
    apart = np.where(end[order][:-1] <= began[1:], done.length_ns[order][:-1], apart)
    head = np.append(True, np.diff(stream) != 0) | (stream < 0)
    ahead = np.cumsum(np.append(0, np.where(head[1:], 0, apart)))
    group = np.cumsum(head)
    relative = wanted[order] - ahead
    low = int(relative.min(initial=0))
    span = int(relative.max(initial=0)) - low + 1
    latest = np.maximum.accumulate(relative - low + group * span) - group * span + low
    begin = np.empty_like(wanted)
    begin[order] = latest + ahead
    return begin
