"""Times of nodes that were cut to whole microseconds in; times to the nanosecond out.

What was cut off start and duration is half a microsecond each on average. Of nodes that follow each
other on a thread none begins before the last has ended, and only control flow holds other nodes.
"""

from __future__ import annotations

import numpy as np

from xsp.onnxruntime_profile import US
from xsp_levels.framework.onnxruntime.record import Integers, NodeEvents

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def event_times(events: NodeEvents) -> tuple[Integers, Integers]:
    """Return start and end of each event.

    >>> events = NodeEvents("net", nodes=(("a", "Relu", ""),), node=np.array([0, 0]),
    ...                     start_ns=np.array([3_000, 3_000]), duration_ns=np.array([0, 2_000]),
    ...                     thread=np.array([1, 1]))
    >>> [times.tolist() for times in event_times(events)]
    [[3333, 3666], [3666, 6166]]
    """
    holds = np.array([op in _CONTROL_FLOW for _, op, _ in events.nodes], bool)[events.node]
    order = np.lexsort((~holds, events.start_ns, events.thread))
    start = _spread(events, order)
    end = start + events.duration_ns + US // 2
    _end_before_next(events, order, holds, start, end)
    for at in np.flatnonzero(holds):
        _hold(events, int(at), start, end)
    return start, end


def _spread(events: NodeEvents, order: Integers) -> Integers:
    """Return starts, spread over the microsecond that they were cut to, in the order given."""
    thread, start = events.thread[order], events.start_ns[order]
    first = np.append(True, (thread[1:] != thread[:-1]) | (start[1:] != start[:-1]))
    group = np.cumsum(first) - 1
    counts = np.bincount(group)
    place = np.arange(len(order)) - np.flatnonzero(first)[group] + 1
    found = np.empty_like(events.start_ns)
    found[order] = start + place * US // (counts[group] + 1)
    return found


def _end_before_next(
    events: NodeEvents,
    order: Integers,
    holds: np.ndarray[tuple[int], np.dtype[np.bool_]],
    start: Integers,
    end: Integers,
) -> None:
    """Let no event end after the next one on its thread begins, but those that may hold that."""
    before, after = order[:-1], order[1:]
    follows = (events.thread[before] == events.thread[after]) & ~holds[before]
    end[before] = np.where(follows, np.minimum(end[before], start[after]), end[before])


def _hold(events: NodeEvents, at: int, start: Integers, end: Integers) -> None:
    """Let control flow end before what follows, and what lies inside end before it."""
    last = events.start_ns[at] + events.duration_ns[at]
    near = (events.thread == events.thread[at]) & (start > start[at])
    later = start[near & (events.start_ns >= last) & (start > end[at] - US)]
    end[at] = min(end[at], *later.tolist(), end[at])
    inside = near & (start < end[at])
    end[inside] = np.minimum(end[inside], end[at])
