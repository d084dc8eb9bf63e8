"""Events of a program's log as items: calls, layers, passes, steps and parts, with their times.

    ENTER 10, CALL 12, LAYER 13, END 15, END 16      call 12-16, in it a layer 13-15; noted 2 ns

Begins and ends alternate at one depth, so that a stable sort by depth pairs all of them without a
loop. A signal's handler that raises within a hook tears a pair: depths begin anew at each ENTER,
and a begin without an end is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp.provider import (
    AT,
    BACKWARD,
    CALL,
    END,
    ENTER,
    KIND_BITS,
    KIND_MASK,
    LAYER,
    LEAVE,
    OPTIMIZER,
    PART,
    PAUSE,
    RAISED,
    REGION,
    WORKED,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Kinds of items that are made while reading, beside those of the log.
STEP, ITERATION, ROOT, TWIN = 12, 13, 14, 15


@dataclass(slots=True)
class Items:
    """Calls, layers, passes, steps and parts as arrays `[items]`, by begin on each thread.

    Attributes:
        kind: `CALL`, `LAYER`, `BACKWARD`, `OPTIMIZER`, `PART`, `PAUSE`, `REGION`, `STEP`, …
        number: What the code's number says; of a layer the id of its module.
        begin: When it began, ns.
        end: When it ended.
        thread: Number of the thread's log.
        region: Number of the region that its context was in; 0: none.
        raised: Number of the name of the exception that left it; 0: none.
        renamed: Number of the name that it turned out to have; 0: none.
        noted: How long xsp's hook worked right before it, of calls, passes and steps.
    """

    kind: Ints
    number: Ints
    begin: Ints
    end: Ints
    thread: Ints
    region: Ints
    raised: Ints
    renamed: Ints
    noted: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def joined(self, others: Items) -> Items:
        """Return these and other items."""
        both = ((getattr(self, f.name), getattr(others, f.name)) for f in fields(self))
        return Items(*(np.concatenate(pair) for pair in both))

    def take(self, at: Any) -> Items:
        """Return the items at some indices."""
        return Items(*(getattr(self, field.name)[at] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class RegionTimes:
    """Times and threads of regions' begins and ends, by region number less 1; 0 where not seen."""

    begin: Ints
    end: Ints
    thread: Ints  # number of the log of the thread that it began on
    end_thread: Ints


def join(parts: list[Items]) -> Items:
    """Return items one after the other."""
    if not parts:
        return Items(*(np.zeros(0, np.int64) for _ in fields(Items)))
    return Items(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Items)))


def entries(log: Ints, begin_ns: int, end_ns: int) -> tuple[Ints, Ints]:
    """Split a thread's log into codes and times (`xsp.provider.watching`), without torn pairs.

    Args:
        log: Code, time, code, time, …
        begin_ns: When the program began.
        end_ns: When it ended: what was logged later is left out.
    """
    if len(log) % 2 == 0:
        codes, times = log[0::2], log[1::2]
        if not len(times) or (times[0] >= begin_ns and np.all(times[1:] >= times[:-1])):
            kept = times <= end_ns
            return codes[kept], times[kept]
    # A code is either smaller than any time, or a layer's id, which is a multiple of 16
    # (`xsp.provider.watching`): so a pair that a signal's handler tore apart is found.
    chosen, at, last = [], 0, begin_ns - 1_000_000_000
    values = log.tolist()
    while at + 1 < len(values):
        if last <= values[at + 1] <= end_ns and (values[at] < begin_ns or not values[at] & 15):
            chosen.append(at)
            last = values[at + 1]
            at += 2
        else:
            at += 1
    found = np.array(chosen, dtype=np.int64)
    return log[found], log[found + 1]


def items_of(codes: Ints, times: Ints, thread: int, end_ns: int = 0) -> Items:
    """Return the items of a thread's log that have ended, and parts that end with the program.

    >>> log = np.array([6, 10, 3, 12, 1 << 4, 13, 1, 15, 1, 16])
    >>> items = items_of(log[0::2], log[1::2], 0)
    >>> items.kind.tolist(), items.begin.tolist(), items.end.tolist(), items.noted.tolist()
    ([3, 0], [12, 13], [16, 15], [2, 0])
    """
    low = codes & KIND_MASK
    opens = np.isin(low, (LAYER, CALL, BACKWARD, OPTIMIZER, PART, PAUSE))
    closes = (low == END) | (low == RAISED)
    step = opens.astype(np.int64) - closes
    depth = np.cumsum(step) - opens  # of a begin: how many are open around it
    enter = np.flatnonzero(low == ENTER)
    if len(enter):
        last = np.searchsorted(enter, np.arange(len(codes)), side="right") - 1
        base = (codes[enter] >> KIND_BITS) - np.cumsum(step)[enter]
        depth = depth + np.where(last >= 0, base[np.maximum(last, 0)], 0)
    at = np.flatnonzero(opens | closes)
    order = at[np.argsort(depth[at], kind="stable")]
    first, second = order[:-1], order[1:]
    pair = opens[first] & closes[second] & (depth[first] == depth[second])
    begin, end = first[pair], second[pair]
    if end_ns and len(codes):  # parts that are still open
        still = np.setdiff1d(np.flatnonzero(low == PART), begin)
        still = still[depth[still] <= depth[-1]] if len(still) else still
        begin, end = np.append(begin, still), np.append(end, np.full(len(still), len(codes)))
        codes, times, low = np.append(codes, END), np.append(times, end_ns), np.append(low, END)
    by_begin = np.argsort(begin, kind="stable")
    begin, end = begin[by_begin], end[by_begin]
    said = np.flatnonzero(np.isin(low, (AT, REGION)))
    place = np.searchsorted(said, begin, side="right") - 1
    region = np.zeros(len(begin), np.int64)
    if len(said):
        region = np.where(place >= 0, (codes[said] >> KIND_BITS)[np.maximum(place, 0)], 0)
    before = np.maximum(begin - 1, 0)
    entered = (low[begin] == CALL) & (low[before] == ENTER)
    entered |= np.isin(low[begin], (BACKWARD, OPTIMIZER)) & (low[before] == WORKED)
    kind = low[begin]
    return Items(
        kind=kind,
        number=np.where(kind == LAYER, codes[begin], codes[begin] >> KIND_BITS),
        begin=times[begin],
        end=times[end],
        thread=np.full(len(begin), thread, np.int64),
        region=region,
        raised=np.where(low[end] == RAISED, codes[end] >> KIND_BITS, 0),
        renamed=np.where(low[end] == END, codes[end] >> KIND_BITS, 0),
        noted=np.where(entered, times[begin] - times[before], 0),
    )


def region_times(logs: list[tuple[Ints, Ints]], count: int, end_ns: int) -> RegionTimes:
    """Return when regions began and ended; those that are open end with the program.

    Args:
        logs: Codes and times of each thread's log.
        count: How many regions there are.
        end_ns: When the program ended.
    """
    begin, end = np.zeros(count, np.int64), np.full(count, end_ns)
    thread, end_thread = np.zeros(count, np.int64), np.full(count, -1)
    for number, (codes, times) in enumerate(logs):
        low, which = codes & KIND_MASK, (codes >> KIND_BITS) - 1
        opened, left = low == REGION, low == LEAVE
        begin[which[opened]] = times[opened]
        thread[which[opened]] = number
        end[which[left]] = times[left]
        end_thread[which[left]] = number
    open_still = end_thread < 0
    end_thread[open_still] = thread[open_still]
    return RegionTimes(begin, np.maximum(end, begin), thread, end_thread)
