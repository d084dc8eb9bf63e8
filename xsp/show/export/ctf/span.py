"""Turns spans into events: one where a span begins, one where it ends, nested on each thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind, Level
from xsp.show.export import label
from xsp.show.export.ctf.packet import Events, Integers, records, string
from xsp.show.export.timeline import Track
from xsp.trace import parent_rows

# What stands for a missing parent, and for a latency that is not known.
NO_PARENT, UNKNOWN = 2**32 - 1, -1

_MOST_TID = 2**31 - 1
_BEGIN = np.dtype(
    [("kind_and_level", "u1"), ("span", "<u4"), ("parent", "<u4"), ("latency_ns", "<i8")]
)
_END = np.dtype([("span", "<u4")])
_KINDS = {kind.value: number for number, kind in enumerate(Kind)}
_LEVELS = {level.label: int(level) for level in Level}

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Threads:
    """Numbers and names of the threads on which spans are drawn.

    Viewers take numbers of 31 bits, so a thread whose own is larger gets another one. Streams of
    devices have negative numbers. Spans that take turns on a thread are on several.

    Attributes:
        tracks: The tracks of the spans.
        number: Number of each track.
        name: Name of each track; no two are equal.
        of_thread: Number of each thread on which there are system calls.
    """

    tracks: Sequence[Track]
    number: list[int]
    name: list[str]
    of_thread: dict[int | None, int]

    @classmethod
    def of(cls, tracks: Sequence[Track], threads: Sequence[int | None]) -> Threads:
        """Number tracks, and threads on which there are system calls.

        >>> Threads.of([Track(None, 2**40, 0), Track(None, 7, 0), Track(0, 3, 0)], [7]).name
        ['thread 1', 'thread 7', 'GPU 0 stream 3']
        """
        keys = [(track.number, track.lane) for track in tracks if track.device is None]
        keys += [(thread, 0) for thread in threads]
        own = {
            (thread, lane): thread
            for thread, lane in keys
            if thread is not None and lane == 0 and 0 < thread <= _MOST_TID
        }
        taken = set(own.values())
        free = (number for number in range(1, _MOST_TID) if number not in taken)
        numbers = {key: own[key] if key in own else next(free) for key in dict.fromkeys(keys)}
        devices = iter(range(-1, -len(tracks) - 1, -1))
        number = [
            numbers[track.number, track.lane] if track.device is None else next(devices)
            for track in tracks
        ]
        name = [_name(track, at) for track, at in zip(tracks, number, strict=True)]
        return cls(tracks, number, name, {thread: numbers[thread, 0] for thread in threads})

    def lines(self) -> list[str]:
        """Return a line for each number: its name, and what xsp calls the thread."""
        names = {at: f"thread {at}" for at in self.of_thread.values()}
        names |= dict(zip(self.number, self.name, strict=True))
        own = {at: thread for thread, at in self.of_thread.items()}
        own |= {
            at: track.number
            for at, track in zip(self.number, self.tracks, strict=True)
            if track.device is None
        }
        return [
            f"{at:>11}  {name}"
            + (f", in xsp thread {own[at]}" if own.get(at) not in (at, None) else "")
            for at, name in sorted(names.items())
        ]


def _name(track: Track, number: int) -> str:
    """Return the name of a track; what takes turns is told apart by a number of its own."""
    if track.device is None:
        return f"thread {number}" if track.number is not None else f"unknown thread {number}"
    stream = "" if track.number is None else f" stream {track.number}"
    return f"GPU {track.device}{stream}" + (f" ({track.lane + 1})" if track.lane else "")


@dataclass(frozen=True, slots=True)
class Nesting:
    """The begins and ends of spans, in an order in which those of a thread nest.

    Attributes:
        row: The span's row.
        begins: Whether the event is its begin.
        time_ns: When it happens.
    """

    row: Integers
    begins: Bools
    time_ns: Integers

    @classmethod
    def of(cls, spans: pl.DataFrame, parents: Integers, track: Integers) -> Nesting:
        """Order the events of spans on tracks, as `timeline.tracks` places them.

        A span without length begins and ends between its neighbors, whose times may all be its
        own. So the events of each track are ordered first, and then all by time.

        >>> spans = pl.DataFrame({"start_ns": [0, 4], "end_ns": [4, 4]})
        >>> nesting = Nesting.of(spans, np.array([-1, 0]), np.array([0, 0]))
        >>> nesting.row.tolist(), nesting.begins.tolist()
        ([0, 1, 1, 0], [True, True, False, False])
        """
        starts, ends = (spans[name].to_numpy() for name in ("start_ns", "end_ns"))
        ends = np.maximum(starts, ends)
        inside = (parents >= 0) & (track[parents] == track)
        inside &= (starts >= starts[parents]) & (ends <= ends[parents])
        above, on = np.where(inside, parents, -1).tolist(), track.tolist()
        open_rows: dict[int, list[int]] = {each: [] for each in set(on)}
        codes: dict[int, list[int]] = {each: [] for each in open_rows}  # an end is `~row`
        for row in np.argsort(starts, kind="stable").tolist():
            stack, events = open_rows[on[row]], codes[on[row]]
            while stack and stack[-1] != above[row]:
                events.append(~stack.pop())
            stack.append(row)
            events.append(row)
        for each, stack in open_rows.items():
            codes[each] += [~row for row in reversed(stack)]
        code = np.fromiter(chain.from_iterable(codes.values()), np.int64, 2 * len(on))
        begins = code >= 0
        row = np.where(begins, code, ~code)
        time_ns = np.where(begins, starts[row], ends[row])
        order = np.argsort(time_ns, kind="stable")
        return cls(row[order], begins[order], time_ns[order])


def span_events(spans: pl.DataFrame, threads: Threads, track: Integers, origin_ns: int) -> Events:
    """Return the events of spans.

    Args:
        spans: Columns of `trace.spans` and of `reduction.EXTRA`.
        threads: Numbers and names of the tracks.
        track: Track of each span.
        origin_ns: Time of the spans that is 0 of the events.
    """
    parents = parent_rows(spans)
    nesting = Nesting.of(spans, parents, track)
    levels, kinds = (
        spans[name].replace_strict(known, return_dtype=pl.Int64).to_numpy()
        for name, known in (("level", _LEVELS), ("kind", _KINDS))
    )
    latency = spans["latency_ns"].fill_nan(None).round().fill_null(UNKNOWN).cast(pl.Int64)
    heads = records(
        _BEGIN,
        kind_and_level=kinds | levels << 4,
        span=np.arange(spans.height),
        parent=np.where(parents < 0, NO_PARENT, parents),
        latency_ns=latency.to_numpy(),
    )
    names = label.names(spans)
    encoded = {name: string(name) for name in names.unique().to_list()}
    begin = [head + encoded[name] for head, name in zip(heads, names.to_list(), strict=True)]
    end = records(_END, span=np.arange(spans.height))
    fields = [
        (begin if begins else end)[row]
        for row, begins in zip(nesting.row.tolist(), nesting.begins.tolist(), strict=True)
    ]
    thread = track[nesting.row]
    return Events(
        time_ns=nesting.time_ns - origin_ns,
        number=np.where(nesting.begins, 0, 1),
        tid=np.array(threads.number, np.int64)[thread],
        thread=thread,
        names=[string(name) for name in threads.name],
        fields=fields,
    )


def call_events(
    calls: pl.DataFrame, threads: Threads, names: Sequence[str], origin_ns: int
) -> Events:
    """Return the events of system calls, which have no fields: arguments and results are not kept.

    Args:
        calls: Columns of `trace.typical_runs`.
        threads: Numbers of the threads.
        names: Names of the calls; that at place `n` has the events `2 * n` and `2 * n + 1`.
        origin_ns: Time of the calls that is 0 of the events.
    """
    tid = calls["thread"].replace_strict(threads.of_thread, return_dtype=pl.Int64).to_numpy()
    at = {name: place for place, name in enumerate(names)}
    number = calls["name"].replace_strict(at, return_dtype=pl.Int64).to_numpy()
    nesting = Nesting.of(calls, np.full(calls.height, -1), tid)
    known, thread = np.unique(tid[nesting.row], return_inverse=True)
    return Events(
        time_ns=nesting.time_ns - origin_ns,
        number=2 * number[nesting.row] + np.where(nesting.begins, 0, 1),
        tid=tid[nesting.row],
        thread=thread,
        names=[string(f"thread {each}") for each in known.tolist()],
        fields=[b""] * len(thread),
    )
