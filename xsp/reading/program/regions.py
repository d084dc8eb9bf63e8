"""Places the user's regions among the other items, and cuts regions that cross one.

Only regions are cut, wherever a call, a pass, a part or a step that they cross begins or ends, and
where a region that opened earlier closes first:

    step     ├──────────┤          ├──────────┤
    region        ├────────────────────┤
    pieces        ├─────┤├────────┤├───┤
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xsp.reading.correlation import enclosing
from xsp.reading.program.events import Items, RegionTimes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Regions, in several pieces where they cross an item or another region.

    Attributes:
        region: Number of the region of each piece, from 1; `[pieces]`.
        begin: When the piece begins.
        end: When it ends.
        thread: Number of the log that it is on.
        part: Which piece of its region it is, from 1; 0: the region is whole.
    """

    region: Ints
    begin: Ints
    end: Ints
    thread: Ints
    part: Ints

    def of(self, told: Bools) -> Pieces:
        """Return the pieces of some regions."""
        chosen = told[self.region - 1] if len(self.region) else np.zeros(0, bool)
        return Pieces(*(each[chosen] for each in (
            self.region, self.begin, self.end, self.thread, self.part
        )))  # fmt: skip


def cut(items: Items, order: Ints, regions: RegionTimes, stated: Bools) -> Pieces:
    """Return the regions, cut where they cross something.

    Args:
        items: What regions may not cross.
        order: Position of each item from outside in.
        regions: When regions began and ended.
        stated: Which regions' places time does not tell: they are never cut.
    """
    count = len(regions.begin)
    pieces: list[tuple[int, int, int, int, int]] = []
    by_time = np.flatnonzero(~stated & (regions.thread == regions.end_thread))
    opened, closed = regions.begin[by_time], regions.end[by_time]
    parent, around_open, around_close = _places(
        items, order, regions.thread[by_time], opened, closed
    )
    crossing = around_open != around_close
    cuts: dict[int, list[int]] = {}
    for at in np.flatnonzero(crossing).tolist():
        cuts[int(by_time[at])] = _edges(
            items, parent, int(around_open[at]), int(around_close[at]),
            int(opened[at]), int(closed[at]),
        )  # fmt: skip
    _cut_by_regions(regions, by_time, cuts)
    for number in range(count):
        begin, end = int(regions.begin[number]), int(regions.end[number])
        log = int(regions.thread[number])
        edges = sorted({at for at in cuts.get(number, ()) if begin < at < end})
        if not edges:
            pieces.append((number + 1, begin, end, log, 0))
            continue
        marks = [begin, *edges, end]
        pieces += [
            (number + 1, first, last, log, part)
            for part, (first, last) in enumerate(pairwise(marks), 1)
        ]
    table = np.array(pieces, dtype=np.int64).reshape(-1, 5)
    return Pieces(*table.T)


def _places(
    items: Items, order: Ints, log: Ints, opened: Ints, closed: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the item around each item, and around the begin and the end of each region."""
    count, moments = len(items), len(log)
    lane = np.concatenate([items.thread, log, log])
    start = np.concatenate([items.begin, opened, closed])
    end = np.concatenate([items.end, opened, closed])
    deep = np.full(2 * moments, 99)
    found = enclosing(lane, start, end, np.concatenate([order, deep]))
    parent, at_open, at_close = np.split(found, [count, count + moments])
    # A moment lies in no other moment.
    return parent, np.where(at_open < count, at_open, -1), np.where(at_close < count, at_close, -1)


def _edges(
    items: Items, parent: Ints, first: int, last: int, opened: int, closed: int
) -> list[int]:
    """Return the times at which a region is cut: ends and begins of what it crosses."""
    edges = []
    at = first
    while at >= 0 and items.end[at] < closed:
        edges.append(int(items.end[at]))
        at = int(parent[at])
    at = last
    while at >= 0 and items.begin[at] > opened:
        edges.append(int(items.begin[at]))
        at = int(parent[at])
    return edges


def _cut_by_regions(regions: RegionTimes, by_time: Ints, cuts: dict[int, list[int]]) -> None:
    """Add the ends of regions that close while a region is open that opened later."""
    moments = sorted(
        [(int(regions.begin[n]), 1, int(n)) for n in by_time]
        + [(int(regions.end[n]), 0, int(n)) for n in by_time]
    )
    open_on: dict[int, list[int]] = {}
    for time, begins, number in moments:
        stack = open_on.setdefault(int(regions.thread[number]), [])
        if begins:
            stack.append(number)
            continue
        if number not in stack:  # of no length
            continue
        place = stack.index(number)
        for later in stack[place + 1 :]:
            cuts.setdefault(later, []).append(time)
        del stack[place]
