"""Rebuilds the timeline of the host from measured times and latencies.

Every span is drawn as long as its latency, inside its parent. The timeline is rebuilt from
the root down, a generation at a time. Spans side by side keep their measured order; the gaps
between spans shrink or grow in proportion. Devices are drawn afterwards (`device_timeline`).

    measured   predict 0-12    a 2-4    b 6-10      latencies 9, 2 and 4
    drawn      predict 0-9     a 1-3    b 4-8       gaps of 2, 2 and 2 became 1, 1 and 1

Where threads take turns in the work of one span, each thread's gaps are the work of the others. So
one line of time is stretched for all children of such a span (`warp`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from xsp.matching import generations

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of each span as drawn.

    Attributes:
        start_ns: Start of each span, from the start of the root.
        end_ns: End of each span, from the start of the root.
        scaled_ns: By how much the children of a span, one after the other, are longer than the
            span: all spans below it were scaled down to fit. NaN where the children fit.
    """

    start_ns: Ints
    end_ns: Ints
    scaled_ns: Floats

    def spread(self, rows: Ints, count: int) -> Timeline:
        """Return a timeline of `count` spans: this timeline at `rows`, time 0 elsewhere."""
        start, end = np.zeros((2, count), dtype=np.int64)
        scaled = np.full(count, np.nan)
        start[rows], end[rows], scaled[rows] = self.start_ns, self.end_ns, self.scaled_ns
        return Timeline(start, end, scaled)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Start and end of rows of one generation, and of the parent of each (`low`, `high`)."""

    start: Ints
    end: Ints
    low: Ints
    high: Ints

    def warped(self, chosen: Bools, parent: Ints, length: Ints, room: Ints) -> _Measured:
        """Return the times with those of chosen rows as they are to be drawn in their parents."""
        rows = np.flatnonzero(chosen)
        within = (self.start - self.low)[rows], (self.end - self.low)[rows]
        whole = (self.high - self.low)[rows]
        begin = warp(parent[rows], within, length[rows], whole_ns=whole, room_ns=room[rows])
        start, end, low, high = (
            each.copy() for each in (self.start, self.end, self.low, self.high)
        )
        start[rows], end[rows] = begin, begin + length[rows]
        low[rows], high[rows] = 0, room[rows]
        return _Measured(start, end, low, high)


def rebuild(
    parent: Ints,
    lane: Ints,
    *,
    start_ns: Ints,
    end_ns: Ints,
    latency_ns: Floats,
    gathering: Bools | None = None,
) -> Timeline:
    """Return the timeline on which spans last as long as their latencies.

    Args:
        parent: Row index of each span's parent, -1 for the root, which is row 0.
        lane: Number of each span's thread; spans of one lane run one after the other.
        start_ns: Measured start.
        end_ns: Measured end.
        latency_ns: Latency without overhead; NaN stands for the measured duration.
        gathering: Spans whose children keep their order across lanes, too (`warp`); None: none.

    >>> line = rebuild(np.array([-1, 0, 0]), np.zeros(3, int), start_ns=np.array([0, 2, 6]),
    ...                end_ns=np.array([12, 4, 10]), latency_ns=np.array([9.0, 2.0, 4.0]))
    >>> line.start_ns, line.end_ns
    (array([0, 1, 4]), array([9, 3, 8]))
    """
    lengths = np.where(np.isnan(latency_ns), end_ns - start_ns, latency_ns)
    lengths = np.maximum(np.rint(lengths), 0).astype(np.int64)
    start, end = np.zeros(len(parent), dtype=np.int64), lengths.copy()
    scaled = np.full(len(parent), np.nan)
    for generation in list(generations(parent))[1:]:
        rows, group = _lanes(generation, parent, lane, (start_ns, end_ns))
        above = parent[rows]
        head = np.flatnonzero(np.diff(group, prepend=-1))
        room = (end - start)[above[head]]
        drawn = _Measured(start_ns[rows], end_ns[rows], start_ns[above], end_ns[above])
        if gathering is not None and gathering[above].any():
            drawn = drawn.warped(gathering[above], above, lengths[rows], (end - start)[above])
        # The gap before each row, and the sum of all gaps of each group.
        # The sum includes the gap from the last row of the group to the end of the parent.
        previous = np.roll(drawn.end, 1)
        previous[head] = drawn.low[head]
        before = np.maximum(drawn.start - previous, 0)
        tail = np.append(head[1:], len(drawn.end)) - 1
        last = np.maximum(drawn.high[tail] - drawn.end[tail], 0)
        gaps = before, np.add.reduceat(before, head) + last
        begin, finish, excess = _place(lengths[rows], gaps, head, room)
        start[rows], end[rows] = start[above] + begin, start[above] + finish
        excess += (
            room - lengths[above[head]]
        )  # over the latency; the parent may itself be drawn shorter
        np.fmax.at(scaled, above[head], np.where(excess > 0, excess, np.nan))
    return Timeline(start, end, scaled)


def _lanes(rows: Ints, parent: Ints, lane: Ints, measured: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the rows sorted by group and start, and the group number of each.

    The spans of a group are placed end to end in their parent: they are its children on one
    lane, split into several groups where they overlap.
    """
    start_ns, end_ns = measured
    rows = rows[np.lexsort((rows, end_ns[rows], start_ns[rows], lane[rows], parent[rows]))]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (np.diff(parent[rows]) != 0) | (np.diff(lane[rows]) != 0)
    group = first.cumsum() - 1
    overlap = np.zeros(len(rows), dtype=bool)
    overlap[1:] = (start_ns[rows][1:] < end_ns[rows][:-1]) & ~first[1:]
    if not overlap.any():
        return rows, group
    sublane = np.zeros(len(rows), dtype=np.int64)
    crowded = np.flatnonzero(np.isin(group, group[overlap]))
    sublane[crowded] = _sublanes(group[crowded], start_ns[rows[crowded]], end_ns[rows[crowded]])
    order = np.lexsort((np.arange(len(rows)), sublane, group))
    pairs = group[order] * (sublane.max() + 1) + sublane[order]
    return rows[order], np.unique(pairs, return_inverse=True)[1]


def _sublanes(group: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return a sublane for each span, the first of its group in which no earlier span still runs.

    The spans are sorted by group and start.
    """
    result = np.zeros(len(group), dtype=np.int64)
    current, used = -1, 0
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    columns = zip(group.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    for i, (number, start, end) in enumerate(columns):
        if number != current:
            current, used, busy, free = number, 0, [], []
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            result[i] = heappop(free)
        else:
            result[i], used = used, used + 1
        heappush(busy, (end, int(result[i])))
    return result


def _place(
    lengths: Ints, gaps: tuple[Ints, Ints], head: Ints, room: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return start and end of each row within its parent, and by how much each group is too long.

    Args:
        lengths: Length of each row.
        gaps: Measured gap before each row, and the sum of the gaps of each group.
        head: First row of each group.
        room: Length of the parent of each group.
    """
    size = np.diff(head, append=len(lengths))
    before, total = gaps
    filled = np.add.reduceat(lengths, head)
    excess = filled - room
    shrink = np.repeat(np.where(excess > 0, room / np.maximum(filled, 1), 1.0), size)
    stretch = np.repeat(np.maximum(-excess, 0) / np.maximum(total, 1), size)
    after = _running(lengths, head)
    shift = np.rint(_running(before, head) * stretch).astype(np.int64)
    begin = np.rint((after - lengths) * shrink).astype(np.int64) + shift
    finish = np.rint(after * shrink).astype(np.int64) + shift
    return begin, finish, excess


def _running(values: Ints, head: Ints) -> Ints:
    """Return running sums that begin anew at each position in `head`."""
    total = values.cumsum()
    counts = np.diff(head, append=len(values))
    return total - np.repeat(total[head] - values[head], counts)


def warp(
    parent: Ints, measured: tuple[Ints, Ints], length: Ints, *, whole_ns: Ints, room_ns: Ints
) -> Ints:
    """Return the drawn start of each row within its parent, on whatever thread it ran.

    Where children run, time is stretched by how much their latencies differ from what was measured
    (the mean of those that run at once). What is left of the parent goes to the gaps, in
    proportion. So what was measured in turns is drawn in turns.

    Args:
        parent: Number of each row's parent.
        measured: Measured start and end of each row, from the start of its parent.
        length: How long each row is to be drawn.
        whole_ns: How long the parent of each row was measured.
        room_ns: How long the parent of each row is drawn.

    >>> measured = np.array([2, 6]), np.array([4, 10])
    >>> warp(np.array([0, 0]), measured, np.array([2, 4]),
    ...      whole_ns=np.array([12, 12]), room_ns=np.array([9, 9]))
    array([1, 4])
    """
    numbers, first, group = np.unique(parent, return_index=True, return_inverse=True)
    start, end = (np.clip(each, 0, whole_ns) for each in measured)
    ratio = length / np.maximum(end - start, 1)
    parents = np.arange(len(numbers))
    whole = whole_ns[first]
    nothing = np.zeros(len(numbers))
    of = np.concatenate([parents, group, group, parents])
    moment = np.concatenate([nothing.astype(np.int64), start, end, whole])
    change = np.concatenate([nothing, np.ones(len(start)), -np.ones(len(end)), nothing])
    more = np.concatenate([nothing, ratio, -ratio, nothing])
    order = np.lexsort((moment, of))  # stable: of one parent its own start comes first
    of, moment, change, more = (each[order] for each in (of, moment, change, more))
    lasts = np.append(np.diff(moment), 0)
    lasts[np.append(of[1:] != of[:-1], True)] = 0
    running = np.rint(np.cumsum(change))
    slope = np.where(running > 0, np.cumsum(more) / np.maximum(running, 1), 0.0)
    gap = np.bincount(of, np.where(running > 0, 0, lasts), len(numbers))
    left = room_ns[first] - np.bincount(of, lasts * slope, len(numbers))
    slope = np.where(running > 0, slope, (np.maximum(left, 0) / np.maximum(gap, 1))[of])
    passed = np.cumsum(lasts * slope)
    at = np.append(0.0, passed[:-1])
    heads = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
    drawn = np.empty(len(order))
    drawn[order] = at - at[heads][of]
    begin = np.rint(drawn[len(numbers) : len(numbers) + len(start)]).astype(np.int64)
    return np.clip(begin, 0, np.maximum(room_ns - length, 0))
