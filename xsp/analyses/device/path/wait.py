"""Waits: threads and streams in, where a thread waits for a stream or for another thread out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.analyses.device.activity import apart, processes_of
from xsp.analyses.device.path.host_lane import Threads
from xsp.analyses.device.path.stream_lane import Streams
from xsp.analyses.tree import Tree
from xsp.evaluation import Ints
from xsp.level import Kind

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


def synchronised(tree: Tree, threads: Threads, streams: Streams) -> Waits:
    """Return waits of calls that synchronise, for the last work before them of each stream.

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
