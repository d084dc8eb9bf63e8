"""Lays device work out as points of streams, and finds the points that each point waits for.

Work on a stream begins when the work before it is done, when it was launched, and, where the host
told the stream to wait, when work of other streams is done; whichever is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.answer.analyses.device.activity import Bools, Work, reached_before
from xsp.matching import Ints

_FAR = 1 << 62
_JOIN, _START, _END = range(3)  # the order of the points of one work


@dataclass(frozen=True, slots=True)
class Streams:
    """Work in the order of streams. What overlaps on one stream counts for what began first.

    Attributes:
        table: The table of `Work`, sorted by lane and start.
        process: Process of each work.
        lane: Its lane.
        place: Its device.
        start: Start in ns, not before all earlier work of the lane is done.
        end: When it and all earlier work of the lane is done.
        done: When all earlier work of the lane is done; -2**62 for the first.
        launch: Row of the call that launched it, -1 where that is not known.
    """

    table: pl.DataFrame
    process: Ints
    lane: Ints
    place: Ints
    start: Ints
    end: Ints
    done: Ints
    launch: Ints

    @classmethod
    def of(cls, work: Work) -> Streams:
        """Return the streams of a trace."""
        table = work.table.sort("lane", "start_ns", "row")
        process, lane, place, start, end = (
            table[name].cast(pl.Int64).to_numpy()
            for name in ("process", "lane", "place", "start_ns", "end_ns")
        )
        before, first = reached_before(lane, end)
        done = np.where(first, -_FAR, before)
        launch = table["launch"].cast(pl.Int64).fill_null(-1).to_numpy()
        start, end = np.maximum(start, done), np.maximum(end, done)
        return cls(table, process, lane, place, start, end, done, launch)

    def last_of_lanes(self) -> Ints:
        """Return the last work of each lane."""
        return np.flatnonzero(np.append(self.lane[1:] != self.lane[:-1], len(self.lane) > 0))

    def last_before(self, lane: Ints, called: Ints, ended: Ints) -> Ints:
        """Return the last work of some lanes that was called before a time, and ended by another.

        Work whose call is not known was called in time. Returns -1 where there is none.
        """
        if not len(lane):
            return lane
        since = self.table["call_start_ns"].fill_null(0).to_numpy()
        before, first = reached_before(self.lane, since)
        since = np.where(first, since, np.maximum(since, before))
        stride = int(max(self.end.max(), since.max(), ended.max(), called.max())) + 2
        by_call = np.searchsorted(self.lane * stride + since, lane * stride + called)
        by_end = np.searchsorted(self.lane * stride + self.end, lane * stride + ended, "right")
        last = np.minimum(by_call, by_end) - 1
        return np.where((last >= 0) & (self.lane[last] == lane), last, -1)


@dataclass(frozen=True, slots=True)
class StreamPoints:
    """Points of all streams, in their order.

    Attributes:
        work: The work that each point is of.
        time: Its time in ns.
        weight: Time since the point before, in ns.
        is_end: Whether that is the work's self time, and not time in front of it.
        of_launch: Work whose launch the point waits for, -1 for none.
        of_work: Work of another stream that it waits for, -1 for none.
        delay: Time since the launch, in ns.
        ends: Position of the point where each work ends.
    """

    work: Ints
    time: Ints
    weight: Ints
    is_end: Bools
    of_launch: Ints
    of_work: Ints
    delay: Ints
    ends: Ints


def stream_points(streams: Streams, launched: Ints, joins: tuple[Ints, Ints]) -> StreamPoints:
    """Return the points of streams.

    Args:
        streams: The streams.
        launched: When each work was launched, -2**62 where that is not known.
        joins: Work, and the work of other streams that it waits for.
    """
    count = len(streams.start)
    launched = np.where(launched <= streams.start, launched, -_FAR)
    work, source = joins
    ready = streams.done.copy()
    np.maximum.at(ready, work, streams.end[source])
    by_launch = (launched > -_FAR) & (launched >= ready)
    latency = np.where(launched > -_FAR, streams.start - launched, 0)
    least = int(latency[by_launch].min(initial=_FAR))
    delay = np.where(by_launch, latency, np.minimum(latency, least))
    queue = np.where(by_launch | (ready == -_FAR), 0, streams.start - ready)
    each, none = np.arange(count), np.full(count, -1)
    of = np.concatenate((work, each, each))
    joined = np.maximum(streams.end[source], streams.done[work])
    time = np.concatenate((joined, streams.start, streams.end))
    weight = np.concatenate((np.zeros_like(work), queue, streams.end - streams.start))
    sort = np.repeat((_JOIN, _START, _END), (len(work), count, count))
    order = np.lexsort((time, sort, of))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    no_join = np.full(len(work), -1)
    return StreamPoints(
        of[order],
        time[order],
        weight[order],
        (sort == _END)[order],
        np.concatenate((no_join, np.where(launched > -_FAR, each, -1), none))[order],
        np.concatenate((source, none, none))[order],
        np.concatenate((np.zeros_like(work), delay, np.zeros(count, np.int64)))[order],
        position[len(work) + count :],
    )


def event_joins(streams: Streams, waits: Ints, process: Ints) -> tuple[Ints, Ints]:
    """Return which work waits for which of other streams, where the host told streams to wait.

    Work waits that was launched after such a call, and is the next one of its stream that was. It
    is not known for which stream it waits: for the last work of each other stream of the device
    that was launched before the call and had ended when this work began.

    Args:
        streams: The streams.
        waits: When the host called, sorted by process and time.
        process: The process that called.
    """
    called = streams.table["call_start_ns"].fill_null(-1).to_numpy()
    stride = int(max(called.max(initial=0), waits.max(initial=0))) + 2
    keys = process * stride + waits
    calls = np.searchsorted(keys, streams.process * stride + called)
    before = np.roll(calls, 1)
    before[streams.done == -_FAR] = 0
    waiting = np.flatnonzero((called >= 0) & (calls > before) & (calls > 0))
    waiting = waiting[process[calls[waiting] - 1] == streams.process[waiting]]
    lanes = pl.DataFrame({"place": streams.place, "lane": streams.lane}).unique().sort("lane")
    asked = pl.DataFrame({"work": waiting, "place": streams.place[waiting]})
    pairs = asked.join(lanes, on="place").sort("work", "lane")
    work, lane = (pairs[name].cast(pl.Int64).to_numpy() for name in ("work", "lane"))
    other = lane != streams.lane[work]
    work, lane = work[other], lane[other]
    source = streams.last_before(lane, waits[calls[work] - 1], streams.start[work])
    return work[source >= 0], source[source >= 0]
