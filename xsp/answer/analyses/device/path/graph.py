"""Builds the graph of a trace: points of threads and streams that wait for each other.

docs/analyses.md states the rules, under critical-path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from xsp.answer.analyses.dataflow.graph import GraphRun
from xsp.answer.analyses.device.activity import Bools, Work, apart, processes_of
from xsp.answer.analyses.device.path.longest_path import Points
from xsp.answer.analyses.device.path.stream_lane import Streams, event_joins, stream_points
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.waiting import waiting
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints

# A span's self time, time in the queue before it, and time before an operator of a graph: since its
# last input was there, or since its thread was free.
OWN, QUEUE, DATA, EXECUTOR = range(4)

_WAITS_FOR_EVENT = r"(?i)StreamWaitEvent"
_FAR = 1 << 62


@dataclass(frozen=True, slots=True)
class Graph:
    """The points of a trace, and whose time leads to each.

    Attributes:
        points: The points; the last one is the end of the step.
        row: Row of the tree that owns the time from the point before, -1 for none; for points that
            wait, also that of the delay.
        what: Whether that is its self time, time in the queue before it, or the executor's; and
            whether the delay is a handing over of data, else it is a latency.
    """

    points: Points
    row: Ints
    what: Ints


@dataclass(frozen=True, slots=True)
class _Launched:
    """Calls that launched work: their rows, when each did so, and which one launched each work."""

    rows: Ints
    time: Ints
    of_work: Ints


def graph_of(tree: Tree, runs: Sequence[GraphRun] = ()) -> Graph:
    """Return the points of a trace and what each waits for.

    Args:
        tree: The spans.
        runs: Runs of graphs, whose operators wait for their inputs.
    """
    threads = Threads.of(tree)
    streams = Streams.of(Work.of(tree))
    beside, begun, following = on_other_threads(threads)
    copies = copied(streams, threads)
    waits = Waits.together(synchronized(tree, threads, streams), copies, beside)
    launched = _launched(streams, threads, copies)
    host = threads.points(_marks(threads, waits, launched, begun))
    at_wait, at_launch, at_begin, _ = np.split(
        host.of_mark, np.cumsum((len(waits.time), len(launched.rows), len(begun)))
    )
    time = np.append(launched.time, -_FAR)[launched.of_work]
    # When the host told streams to wait for others, and in which process.
    calls = tree.is_of(Kind.LAUNCH) & tree.spans["name"].str.contains(_WAITS_FOR_EVENT).to_numpy()
    table = processes_of(tree).filter(pl.Series(calls))
    table = table.with_columns(time=tree.spans["start_ns"].filter(pl.Series(calls)))
    table = table.sort("process", "time")
    event_waits = table["time"].to_numpy(), table["process"].cast(pl.Int64).to_numpy()
    own = stream_points(streams, time, event_joins(streams, *event_waits))
    count = len(host.time)
    cross = np.full(count, -1)
    for_span = host.of_end[waits.span]
    cross[at_wait] = np.where(waits.work < 0, for_span, count + np.append(own.ends, 0)[waits.work])
    cross[host.of_start[begun]] = at_begin
    by_launch = np.append(at_launch, -1)[np.append(launched.of_work, -1)][own.of_launch]
    by_work = np.where(own.of_work < 0, -1, count + own.ends[own.of_work])
    unbegun = (own.of_launch < 0) & (own.of_work < 0) & ~own.is_end
    unbegun &= streams.done[own.work] == -_FAR  # what began is not known, and nothing lies before
    across = np.where(own.of_launch >= 0, by_launch, by_work)
    across[unbegun] = 0
    own.delay[unbegun] = own.time[unbegun] - host.time[0]
    owner, weight = _owned(host, waits, following, threads)
    of_host = _along_data(host, threads, runs, (owner, weight, cross))
    ends = np.append(count + own.ends[streams.last_of_lanes()], host.of_end[0])
    points = _joined(
        host, weight, cross, lanes=streams.lane[own.work], stream=(own.time, own.weight),
        across=(across, own.delay), ends=ends,
    )  # fmt: skip
    of_streams = streams.table["row"].to_numpy()[own.work]
    nobody = np.full(len(ends), -1)
    what = np.where(own.is_end, OWN, QUEUE)
    return Graph(
        points,
        np.concatenate((owner, of_streams, nobody)),
        np.concatenate((of_host, what, nobody)),
    )


def _launched(streams: Streams, threads: Threads, copies: Waits) -> _Launched:
    """Return when calls launched: at their return, or at the work's start if that is earlier.

    A call that waits for its copy launched it at once.
    """
    known = np.flatnonzero((streams.launch >= 0) & (threads.lane[streams.launch] >= 0))
    rows, of = np.unique(streams.launch[known], return_inverse=True)
    first = np.full(len(rows), _FAR)
    np.minimum.at(first, of, streams.start[known])
    time = np.clip(first, threads.start[rows], threads.end[rows])
    time = np.where(np.isin(rows, copies.owner), threads.start[rows], time)
    of_work = np.full(len(streams.launch), -1)
    of_work[known] = of
    return _Launched(rows, time, of_work)


def _marks(threads: Threads, waits: Waits, launched: _Launched, begun: Ints) -> Marks:
    parent = threads.parent[begun]
    begins = np.clip(threads.start[begun], threads.start[parent], threads.end[parent])
    waiting = waits.begun(threads.open_before(threads.lane[parent], begins)[0], begins)
    begins = np.where(waiting >= 0, waiting, begins)
    rows = np.concatenate((waits.owner, launched.rows, parent, waits.owner))
    time = np.concatenate((waits.time, launched.time, begins, waits.since))
    return Marks(threads.lane[rows], time, np.arange(len(rows)) < len(waits.owner))


def _owned(host: HostPoints, waits: Waits, following: Ints, threads: Threads) -> tuple[Ints, Ints]:
    """Return who owns the time before each point of threads, and how much that is."""
    before = np.roll(host.time, 1)
    before[np.concatenate(([True], host.lane[1:] != host.lane[:-1]))] = _FAR
    before = np.minimum(before, host.time)
    idle = (waits.begun(host.owner, before) >= 0) & (host.time > before)
    # Who owns the time before each point if it lies between two spans of one caller.
    starts = host.of_start[host.of_start >= 0]
    caller = np.full(len(host.time) + 1, -1)
    caller[host.of_start[following]] = threads.parent[following]
    starts = np.append(np.sort(starts), len(host.time))
    upcoming = starts[np.searchsorted(starts, np.arange(len(host.time)))]
    between = caller[upcoming]
    owner = np.where(host.owner < 0, between, host.owner)
    idle |= owner < 0
    return owner, np.where(idle, 0, host.time - before)


def _along_data(
    host: HostPoints, threads: Threads, runs: Sequence[GraphRun], told: tuple[Ints, Ints, Ints]
) -> Ints:
    """Let operators of graphs wait for their last inputs, and return what each point's time is.

    Args:
        host: The points of threads.
        threads: The threads.
        runs: Runs of graphs.
        told: Owner, weight and cross of each point, which are changed.
    """
    owner, weight, cross = told
    what = np.full(len(host.time), OWN)
    pairs = [
        (run.row[at], max((run.row[source] for source in sources), key=threads.end.__getitem__))
        for run in runs
        for at, sources in enumerate(run.inputs)
        if sources
    ]
    if not pairs:
        return what
    row, last = np.array(pairs).T
    drawn = (host.of_start[row] >= 0) & (host.of_end[last] >= 0)
    drawn &= threads.end[last] <= threads.start[row]
    row, last = row[drawn], last[drawn]
    # Layers that were made of operators begin with the first of these, at the point before.
    is_start = np.isin(np.arange(len(host.time)), host.of_start)
    same = np.append(False, np.diff(host.lane) == 0)
    along = same & is_start & np.roll(is_start, 1) & np.append(False, np.diff(host.time) == 0)
    heads = np.maximum.accumulate(np.where(along, 0, np.arange(len(along))))
    start, end = heads[host.of_start[row]], host.of_end[last]
    before = np.where(same[start], host.time[start - 1], -_FAR)
    data = (host.lane[end] != host.lane[start]) & (host.time[end] >= before)
    at = start[data]
    owner[at], weight[at], cross[at], what[at] = row[data], 0, end[data], DATA
    # What the thread ran last was an operator of a graph, too.
    stride = int(host.time.max()) + 1
    ends = host.of_end[np.concatenate([run.row for run in runs])]
    keys = host.lane * stride + host.time
    follows = same[start] & np.isin(keys[start - 1], keys[ends[ends >= 0]]) & ~data
    at = start[follows]
    owner[at], weight[at], cross[at] = row[follows], host.time[at] - before[follows], -1
    what[at] = EXECUTOR
    return what


def _joined(  # noqa: PLR0913
    host: HostPoints,
    weight: Ints,
    cross: Ints,
    *,
    lanes: Ints,
    stream: tuple[Ints, Ints],
    across: tuple[Ints, Ints],
    ends: Ints,
) -> Points:
    """Return the points of threads, of streams, and the end of it all, a lane of its own."""
    first = int(host.lane.max()) + 1
    time = np.concatenate((host.time, stream[0]))
    ends = ends[np.argsort(time[ends], kind="stable")]
    nothing = np.zeros(len(ends), np.int64)
    begins = np.isin(np.arange(len(host.time)), host.of_start) & (cross >= 0)
    delay = np.where(begins, host.time - time[cross], 0)
    end_lane = first + int(lanes.max(initial=-1)) + 1
    is_host = np.repeat((True, False, True), (len(host.time), len(lanes), len(ends)))
    return Points(
        np.concatenate((host.lane, first + lanes, np.full(len(ends), end_lane))),
        is_host,
        np.concatenate((time, time[ends])),
        np.concatenate((weight, stream[1], nothing)),
        np.concatenate((cross, across[0], ends)),
        np.concatenate((delay, across[1], nothing)),
    )


# Finds where a thread waits for a stream or for another thread.

_SYNCHRONISES = r"(?i)synchronize(_v\d+|_ptsz)?$|^(cuda|hip)Free$|^cuMemFree"


@dataclass(frozen=True, slots=True)
class Waits:
    """Times until which threads wait, and what for.

    Attributes:
        time: Until when it waits, in ns.
        since: From when on, where nothing else happens on the thread.
        owner: Row of the span that waits.
        work: Work of a stream that it waits for, -1 for none.
        span: Row of the span of another thread that it waits for, -1 for none.
        ended: When that work, or that span, ended.
    """

    time: Ints
    since: Ints
    owner: Ints
    work: Ints
    span: Ints
    ended: Ints

    @classmethod
    def together(cls, *waits: Waits) -> Waits:
        """Return several waits as one, those that end last first."""
        columns = [np.concatenate([getattr(each, n) for each in waits]) for n in cls.__slots__]
        order = np.argsort(-columns[-1], kind="stable")
        return cls(*(column[order] for column in columns))

    def begun(self, owner: Ints, time: Ints) -> Ints:
        """Return since when some owners do nothing but wait at some times; -1 where they do not."""
        number, since, until = apart(self.owner, self.since, self.time)
        stride = int(max(time.max(initial=0), until.max(initial=0))) + 2
        at = np.searchsorted(number * stride + since, owner * stride + time, "right") - 1
        if not len(since):
            return np.full(len(owner), -1)
        inside = (at >= 0) & (number[at] == owner) & (time < until[at])
        return np.where(inside, since[at], -1)


def synchronized(tree: Tree, threads: Threads, streams: Streams) -> Waits:
    """Return waits of calls that synchronize, for the last work before them of each stream.

    That is work which was launched before the call began and had ended when it returned. Where the
    trace tells which stream a call waits for, it is that one alone.
    """
    spans = tree.spans
    rows = np.flatnonzero(
        tree.is_of(Kind.LAUNCH) & spans["name"].str.contains(_SYNCHRONISES).to_numpy()
    )
    begin, end = threads.start[rows], threads.end[rows]
    at_end = tree.attribute("device_wait_ns", pl.Float64)[0]
    if at_end:
        rows = np.append(0, rows)
        begin = np.append(max(threads.end[0] - int(at_end), threads.start[0]), begin)
        end = np.append(threads.end[0], end)
    process = processes_of(tree)["process"].to_numpy()
    asked = pl.DataFrame({
        "row": rows, "begin": begin, "end": end, "process": process[rows],
        "correlation_id": spans["correlation_id"][rows],
    })  # fmt: skip
    told = spans.select("kind", "correlation_id", told="stream").filter(
        pl.col("kind") == Kind.SYNC.value, pl.col("told").is_not_null()
    )
    told = told.drop("kind")
    lanes = streams.table.select("process", "stream", "lane").unique("lane").sort("lane")
    pairs = (
        asked.join(told.unique("correlation_id", keep="first"), on="correlation_id", how="left")
        .join(lanes, on="process")
        .filter(pl.col("told").is_null() | (pl.col("told") == pl.col("stream")))
        .sort("row", "lane")
    )
    row, begin, end, lane = (
        pairs[name].cast(pl.Int64).to_numpy() for name in ("row", "begin", "end", "lane")
    )
    last = streams.last_before(lane, begin, end)
    row, begin, end, last = (each[last >= 0] for each in (row, begin, end, last))
    ended = streams.end[last]
    return Waits(np.clip(ended, begin, end), begin, row, last, np.full(len(row), -1), ended)


def copied(streams: Streams, threads: Threads) -> Waits:
    """Return waits of copies for themselves: of calls that returned after the copy had ended."""
    is_copy = (streams.table["kind"] == Kind.MEMCPY.value).to_numpy() & (streams.launch >= 0)
    work = np.flatnonzero(is_copy)
    row = streams.launch[work]
    waited = (threads.lane[row] >= 0) & (threads.end[row] >= streams.end[work])
    work, row = work[waited], row[waited]
    since = threads.start[row]
    ended = np.maximum(streams.end[work], since)
    return Waits(ended, since, row, work, np.full(len(row), -1), streams.end[work])


def on_other_threads(threads: Threads) -> tuple[Waits, Ints, Ints]:
    """Return waits for other threads, what begins on them, and what goes on there.

    The outermost span on a thread was begun by the span around it, on another thread, which waits
    for its end if nothing else is open there then, and at its own end at the latest. Spans of one
    thread and one parent are one if the parent did nothing between them.

    Returns:
        The waits; rows of the spans that were begun; rows of those that follow another one.
    """
    top = (threads.lane >= 0) & (threads.above < 0) & (threads.end > threads.start)
    top &= (threads.parent >= 0) & (threads.lane[threads.parent] >= 0)
    rows = np.flatnonzero(top)
    rows = rows[np.lexsort((threads.start[rows], threads.lane[rows]))]
    if not len(rows):
        none = np.empty(0, np.int64)
        return Waits(none, none, none, none, none, none), none, none
    parent = threads.parent[rows]
    open_, since = threads.open_before(threads.lane[parent], threads.start[rows])
    follows = np.zeros(len(rows), bool)
    follows[1:] = (
        (threads.lane[rows[1:]] == threads.lane[rows[:-1]])
        & (parent[1:] == parent[:-1])
        & (open_[1:] == parent[1:])
        & (since[1:] <= threads.end[rows[:-1]])
    )
    last = np.append(~follows[1:], True)
    began = np.maximum.accumulate(np.where(follows, 0, np.arange(len(rows))))
    ends = last & (threads.end[rows] <= threads.end[parent])
    row, owner = rows[ends], parent[ends]
    end = threads.end[row]
    innermost, idle_since = threads.open_before(threads.lane[owner], end)
    waits = innermost == owner
    since = np.maximum(idle_since, threads.start[rows[began[ends]]])
    until = np.where(waits, end, threads.end[owner])
    since = np.where(waits, since, until)
    found = Waits(until, since, owner, np.full(len(row), -1), row, end)
    return found, rows[~follows], rows[follows]


# Finds the innermost open span at each moment on each thread.

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
        host &= ~waiting(tree)  # nothing waits for what only waits on its own thread
        host[0] = True
        # Numbers of threads from 0, which is the first one's.
        thread = spans["thread"].fill_null(-(1 << 62)).to_numpy()
        _, number = np.unique(thread, return_inverse=True)
        numbered = np.where(number == number[0], 0, number + (number < number[0]))
        lane = np.where(host, numbered, -1)
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
