"""The graph of a trace: a tree in, points of threads and streams that wait for each other out.

docs/analyses.md states the rules, under critical-path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.analyses.device.activity import Work, processes_of
from xsp.analyses.device.path.host_lane import HostPoints, Marks, Threads
from xsp.analyses.device.path.longest_path import Points
from xsp.analyses.device.path.stream_lane import Streams, event_joins, stream_points
from xsp.analyses.device.path.wait import Waits, copied, on_other_threads, synchronised
from xsp.analyses.tree import Tree
from xsp.evaluation import Ints
from xsp.level import Kind

OWN, QUEUE = range(2)  # a span's own time, or time in the queue before it

_WAITS_FOR_EVENT = r"(?i)StreamWaitEvent"
_FAR = 1 << 62


@dataclass(frozen=True, slots=True)
class Graph:
    """The points of a trace, and whose time leads to each.

    Attributes:
        points: The points; the last one is the end of the evaluation.
        row: Row of the tree that owns the time from the point before, -1 for none; for points that
            wait, also that of the delay.
        what: Whether that is its own time or time in the queue before it; delays are latencies.
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


def graph_of(tree: Tree) -> Graph:
    """Return the points of a trace and what each waits for."""
    threads = Threads.of(tree)
    streams = Streams.of(Work.of(tree))
    beside, begun, following = on_other_threads(threads)
    copies = copied(streams, threads)
    waits = Waits.together(synchronised(tree, threads, streams), copies, beside)
    launched = _launched(streams, threads, copies)
    host = threads.points(_marks(threads, waits, launched, begun))
    at_wait, at_launch, at_begin, _ = np.split(
        host.of_mark, np.cumsum((len(waits.time), len(launched.rows), len(begun)))
    )
    time = np.append(launched.time, -_FAR)[launched.of_work]
    own = stream_points(streams, time, event_joins(streams, *_event_waits(tree)))
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
        np.concatenate((np.full(count, OWN), what, nobody)),
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


def _event_waits(tree: Tree) -> tuple[Ints, Ints]:
    """Return when the host told streams to wait for others, and in which process."""
    calls = tree.is_of(Kind.LAUNCH) & tree.spans["name"].str.contains(_WAITS_FOR_EVENT).to_numpy()
    table = processes_of(tree).filter(pl.Series(calls))
    table = table.with_columns(time=tree.spans["start_ns"].filter(pl.Series(calls)))
    table = table.sort("process", "time")
    return table["time"].to_numpy(), table["process"].cast(pl.Int64).to_numpy()


def _owned(host: HostPoints, waits: Waits, following: Ints, threads: Threads) -> tuple[Ints, Ints]:
    """Return who owns the time before each point of threads, and how much that is."""
    before = np.roll(host.time, 1)
    before[np.concatenate(([True], host.lane[1:] != host.lane[:-1]))] = _FAR
    before = np.minimum(before, host.time)
    idle = (waits.begun(host.owner, before) >= 0) & (host.time > before)
    owner = np.where(host.owner < 0, _between(host, following, threads), host.owner)
    idle |= owner < 0
    return owner, np.where(idle, 0, host.time - before)


def _between(host: HostPoints, following: Ints, threads: Threads) -> Ints:
    """Return who owns the time before each point if it lies between two spans of one caller."""
    starts = host.of_start[host.of_start >= 0]
    caller = np.full(len(host.time) + 1, -1)
    caller[host.of_start[following]] = threads.parent[following]
    starts = np.append(np.sort(starts), len(host.time))
    upcoming = starts[np.searchsorted(starts, np.arange(len(host.time)))]
    return caller[upcoming]


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
